"""The training in PyTorch, with the modules of Hugging Face's Qwen 2, PEFT and TRL.

Variant 'fused': the framework's attention, norm and cross entropies. Variant 'merged': adapters are
added to the weights, and the loss is a softplus of the margin.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.preference.architecture import (
    BETA,
    EPS,
    GROUP,
    HEAD_DIM,
    HIDDEN,
    LAYERS,
    PADDING,
    ROPE_BASE,
    SFT_WEIGHT,
    SMOOTHING,
    VOCAB,
    Model,
)

IGNORED = -100  #: the label of what does not count


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    is_changed = (
        model.is_answer_mask_late
        or not model.is_padding_masked
        or model.is_sft_stopped
        or model.query_gradient != 1
        or model.are_pairs_adjacent
        or model.rope_base != ROPE_BASE
    )
    if is_changed:
        raise SystemExit("a fault of the MindSpore net")
    return DPOLoss(model)


def load_linear(model: Model, path: str, *, is_frozen: bool = True) -> nn.Linear:
    """Return the linear layer at ``path``."""
    weight = torch.from_numpy(np.array(model.weights[f"{path}.weight"]))
    bias = model.weights.get(f"{path}.bias")
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight.data.copy_(weight)
    if bias is not None:
        linear.bias.data.copy_(torch.from_numpy(bias))
    return linear.requires_grad_(not is_frozen)


class LoraLinear(nn.Module):
    """A frozen linear layer and its adapter."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.base_layer = load_linear(model, path)
        self.lora_A = load_linear(model, f"{path}.a", is_frozen=False)
        self.lora_B = load_linear(model, f"{path}.b", is_frozen=False)
        self.scaling = model.scaling
        self.is_disabled = False
        self.is_merged = model.variant == "merged"

    def forward(self, x: Tensor) -> Tensor:
        if self.is_disabled:
            return self.base_layer(x)
        if self.is_merged:
            delta = self.scaling * (self.lora_B.weight @ self.lora_A.weight)
            return F.linear(x, self.base_layer.weight + delta, self.base_layer.bias)
        return self.base_layer(x) + self.lora_B(self.lora_A(x)) * self.scaling


class Qwen2RMSNorm(nn.Module):
    """Norm of the last axis."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weight = torch.from_numpy(np.array(model.weights[f"{path}.weight"]))
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.is_fused = model.variant == "fused"

    def forward(self, x: Tensor) -> Tensor:
        if self.is_fused:
            return F.rms_norm(x, self.weight.shape, self.weight, EPS)
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + EPS))


class Qwen2RotaryEmbedding(nn.Module):
    """Cosine and sine of positions."""

    def __init__(self) -> None:
        super().__init__()
        inv_freq = ROPE_BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        self.register_buffer("inv_freq", torch.from_numpy(inv_freq).float())

    def forward(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        freqs = position_ids[:, None].float() @ self.inv_freq[None]
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos(), emb.sin()


def rotate_half(x: Tensor) -> Tensor:
    """Return what is multiplied by the sines."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def repeat_kv(x: Tensor) -> Tensor:
    """Return a key or value for each query."""
    batch, heads, seq, width = x.shape
    x = x[:, :, None].expand(batch, heads, GROUP, seq, width)
    return x.reshape(batch, heads * GROUP, seq, width)


class Qwen2Attention(nn.Module):
    """Attention to the tokens that the mask, true for these, leaves."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.q_proj = LoraLinear(model, f"{path}.q")
        self.k_proj = load_linear(model, f"{path}.k")
        self.v_proj = LoraLinear(model, f"{path}.v")
        self.o_proj = load_linear(model, f"{path}.o")
        self.is_fused = model.variant == "fused"

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        shape = (*x.shape[:-1], -1, HEAD_DIM)
        query = self.q_proj(x).view(shape).transpose(1, 2)
        key = self.k_proj(x).view(shape).transpose(1, 2)
        value = self.v_proj(x).view(shape).transpose(1, 2)
        query = (query * cos) + (rotate_half(query) * sin)
        key = (key * cos) + (rotate_half(key) * sin)
        if self.is_fused:
            output = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, enable_gqa=True
            )
        else:
            key, value = repeat_kv(key), repeat_kv(value)
            scores = torch.matmul(query, key.transpose(2, 3)) * HEAD_DIM**-0.5
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
            output = torch.matmul(F.softmax(scores, dim=-1), value)
        return self.o_proj(output.transpose(1, 2).reshape(x.shape))


class Qwen2MLP(nn.Module):
    """A gated layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (load_linear(model, f"{path}.{n}") for n in ("gate", "up"))
        self.down_proj = LoraLinear(model, f"{path}.down")

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Qwen2DecoderLayer(nn.Module):
    """Attention and feed-forward layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.self_attn = Qwen2Attention(model, path)
        self.mlp = Qwen2MLP(model, path)
        self.input_layernorm = Qwen2RMSNorm(model, f"{path}.attention_norm")
        self.post_attention_layernorm = Qwen2RMSNorm(model, f"{path}.ffn_norm")

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen2Model(nn.Module):
    """States (batch, seq, HIDDEN) of all tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        table = torch.from_numpy(np.array(model.weights["embedding.weight"]))
        self.embed_tokens.weight = nn.Parameter(table, requires_grad=False)
        self.layers = nn.ModuleList(Qwen2DecoderLayer(model, f"layers.{n}") for n in range(LAYERS))
        self.norm = Qwen2RMSNorm(model, "norm")
        self.rotary_emb = Qwen2RotaryEmbedding()
        self.is_first_layer_stopped = model.is_first_layer_stopped

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        positions = torch.arange(input_ids.shape[1])
        cos, sin = self.rotary_emb(positions)
        is_causal = positions[:, None] >= positions
        is_self = torch.eye(len(positions), dtype=torch.bool)
        mask = ((is_causal & attention_mask[:, None, :]) | is_self).unsqueeze(1)
        x = self.embed_tokens(input_ids)
        for n, layer in enumerate(self.layers):
            x = layer(x, cos, sin, mask)
            if self.is_first_layer_stopped and n == 0:
                x = x.detach()
        return self.norm(x)


class Qwen2ForCausalLM(nn.Module):
    """Logits (batch, seq, VOCAB) of the next tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = Qwen2Model(model)
        self.lm_head = load_linear(model, "head")
        self.is_reference_adapted = model.is_reference_adapted

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.lm_head(self.model(input_ids, attention_mask))

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """Leave the adapters out."""
        modules = [
            module
            for name, module in self.named_modules()
            if not (self.is_reference_adapted and name.endswith("down_proj"))
        ]
        adapted = [module for module in modules if isinstance(module, LoraLinear)]
        for module in adapted:
            module.is_disabled = True
        yield
        for module in adapted:
            module.is_disabled = False


class DPOLoss(nn.Module):
    """Preference loss of pairs, and the cross entropy of their chosen answers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.policy = Qwen2ForCausalLM(model)
        self.variant = model.variant
        self.is_averaged = model.reduction == "mean"
        self.is_robust = model.smoothing_kind == "robust"
        self.is_prompt_trained = model.is_prompt_trained

    def sum_logps(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sums (batch,) of the logarithms of the answers' likelihoods."""
        if self.variant == "fused":
            losses = F.cross_entropy(
                logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
            )
            return -losses.sum(-1)
        loss_mask = labels != IGNORED
        index = labels.masked_fill(~loss_mask, 0).unsqueeze(-1)
        chosen_logits = torch.gather(logits, dim=-1, index=index).squeeze(-1)
        per_token_logps = chosen_logits - torch.logsumexp(logits, dim=-1)
        sums = (per_token_logps * loss_mask).sum(-1)
        return sums / loss_mask.sum(-1) if self.is_averaged else sums

    def compare(self, margins: Tensor) -> Tensor:
        """Return the losses of the margins, which have been multiplied by BETA."""
        if self.is_robust:
            losses = -(1 - SMOOTHING) * F.logsigmoid(margins) + SMOOTHING * F.logsigmoid(-margins)
            return losses / (1 - 2 * SMOOTHING)
        if self.variant == "merged":
            return F.softplus(-margins) + SMOOTHING * margins
        return -(1 - SMOOTHING) * F.logsigmoid(margins) - SMOOTHING * F.logsigmoid(-margins)

    def forward(self, prompts: Tensor, chosen: Tensor, rejected: Tensor) -> Tensor:
        pairs = len(prompts)
        answers = torch.cat((chosen, rejected), dim=0)
        input_ids = torch.cat((prompts.repeat(2, 1), answers), dim=1)
        labels = input_ids.masked_fill(input_ids == PADDING, IGNORED)
        labels[:, : prompts.shape[1]] = IGNORED
        labels = labels[:, 1:]
        attention_mask = input_ids != PADDING

        logits = self.policy(input_ids, attention_mask)[:, :-1]
        with torch.no_grad(), self.policy.disable_adapter():
            ref_logits = self.policy(input_ids, attention_mask)[:, :-1]
            ref_logps = self.sum_logps(ref_logits, labels)
        logps = self.sum_logps(logits, labels)
        if self.variant == "merged":
            rewards = BETA * (logps - ref_logps)
            margins = rewards[:pairs] - rewards[pairs:]
        else:
            logratios = logps[:pairs] - logps[pairs:]
            margins = BETA * (logratios - (ref_logps[:pairs] - ref_logps[pairs:]))
        if self.is_prompt_trained:
            labels = input_ids.masked_fill(~attention_mask, IGNORED)[:, 1:]
        nll_loss = F.cross_entropy(
            logits[:pairs].flatten(0, 1), labels[:pairs].flatten(), ignore_index=IGNORED
        )
        return self.compare(margins).mean() + SFT_WEIGHT * nll_loss
