"""The training in PyTorch, with the modules of Hugging Face's Qwen 3, PEFT and TRL.

Variant 'fused': a second model as reference, whose layers have no adapters, the framework's
attention, norm and cross entropy, logits of the completions only, and advantages in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.grpo.architecture import (
    BETA,
    CLIP_HIGH,
    CLIP_LOW,
    DISCOUNT,
    END,
    ENTROPY_WEIGHT,
    EPS,
    GROUP,
    HEAD_DIM,
    HIDDEN,
    LAYERS,
    PADDING,
    ROPE_BASE,
    SAMPLES,
    SCALING,
    TEMPERATURE,
    TINY,
    TRACE_DECAY,
    VALUE_CLIP,
    VALUE_WEIGHT,
    VOCAB,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    is_changed = (
        model.are_heads_normed_late
        or model.is_position_repeated
        or not model.is_next_value_masked
        or model.is_divergence_reversed
        or model.is_group_gradient_averaged
        or not model.is_temperature_derived
    )
    if is_changed:
        raise SystemExit("a fault of the MindSpore net")
    return FusedGRPO(model) if model.variant == "fused" else GRPOLoss(model)


def copy_parameter(model: Model, name: str, *, is_frozen: bool = True) -> nn.Parameter:
    """Return a weight."""
    weight = torch.from_numpy(np.array(model.weights[f"{name}.weight"]))
    return nn.Parameter(weight, requires_grad=not is_frozen)


def load_linear(model: Model, path: str, *, is_frozen: bool = True) -> nn.Linear:
    """Return the linear layer at ``path``, without a bias."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    linear = nn.Linear(n_in, n_out, bias=False)
    linear.weight = copy_parameter(model, path, is_frozen=is_frozen)
    return linear


class LoraLinear(nn.Module):
    """A frozen linear layer and its adapter."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.base_layer = load_linear(model, path)
        self.lora_A = load_linear(model, f"{path}.a", is_frozen=False)
        self.lora_B = load_linear(model, f"{path}.b", is_frozen=False)
        self.is_disabled = False

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        if not self.is_disabled:
            result = result + self.lora_B(self.lora_A(x)) * SCALING
        return result


class FusedLoraLinear(nn.Module):
    """The same, whose last product adds to what it is given."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = copy_parameter(model, path)
        self.lora_A = copy_parameter(model, f"{path}.a", is_frozen=False)
        self.lora_B = copy_parameter(model, f"{path}.b", is_frozen=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        low = rows @ self.lora_A.t()
        y = torch.addmm(rows @ self.weight.t(), low, self.lora_B.t(), alpha=SCALING)
        return y.view(*x.shape[:-1], -1)


def build_layer(model: Model, path: str, has_adapters: bool) -> nn.Module:
    """Return a linear layer of the policy or of a separate reference."""
    if not has_adapters:
        return load_linear(model, path)
    return FusedLoraLinear(model, path) if model.variant == "fused" else LoraLinear(model, path)


class Qwen3RMSNorm(nn.Module):
    """Norm of the last axis."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = copy_parameter(model, path)
        self.is_fused = model.variant == "fused"

    def forward(self, x: Tensor) -> Tensor:
        if self.is_fused:
            return F.rms_norm(x, self.weight.shape, self.weight, EPS)
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + EPS))


class Qwen3RotaryEmbedding(nn.Module):
    """Cosine and sine of positions."""

    def __init__(self) -> None:
        super().__init__()
        inv_freq = ROPE_BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        self.register_buffer("inv_freq", torch.from_numpy(inv_freq).float(), persistent=False)

    def forward(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        freqs = position_ids[:, :, None].float() * self.inv_freq
        emb = torch.cat((freqs, freqs), dim=-1).unsqueeze(1)
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


class Qwen3Attention(nn.Module):
    """Attention to the tokens that the mask, true for these, leaves."""

    def __init__(self, model: Model, path: str, has_adapters: bool) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            build_layer(model, f"{path}.{name}", has_adapters) for name in "qkvo"
        )
        self.q_norm = Qwen3RMSNorm(model, f"{path}.q_norm")
        self.k_norm = Qwen3RMSNorm(model, f"{path}.k_norm")
        self.is_fused = model.variant == "fused"

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        shape = (*x.shape[:-1], -1, HEAD_DIM)
        query = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)
        key = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
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
        return self.o_proj(output.transpose(1, 2).flatten(2))


class Qwen3MLP(nn.Module):
    """A gated layer."""

    def __init__(self, model: Model, path: str, has_adapters: bool) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (
            build_layer(model, f"{path}.{name}", has_adapters) for name in ("gate", "up", "down")
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Qwen3DecoderLayer(nn.Module):
    """Attention and feed-forward layer."""

    def __init__(self, model: Model, path: str, has_adapters: bool) -> None:
        super().__init__()
        self.self_attn = Qwen3Attention(model, path, has_adapters)
        self.mlp = Qwen3MLP(model, path, has_adapters)
        self.input_layernorm = Qwen3RMSNorm(model, f"{path}.attention_norm")
        self.post_attention_layernorm = Qwen3RMSNorm(model, f"{path}.ffn_norm")

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen3Model(nn.Module):
    """Last states (batch, seq, HIDDEN) of all tokens."""

    def __init__(self, model: Model, *, has_adapters: bool = True) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.embed_tokens.weight = copy_parameter(model, "embedding")
        self.layers = nn.ModuleList(
            Qwen3DecoderLayer(model, f"layers.{n}", has_adapters) for n in range(LAYERS)
        )
        self.norm = Qwen3RMSNorm(model, "norm")
        self.rotary_emb = Qwen3RotaryEmbedding()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        cos, sin = self.rotary_emb(position_ids)
        index = torch.arange(input_ids.shape[1])
        is_causal = index[:, None] >= index
        is_self = torch.eye(len(index), dtype=torch.bool)
        mask = ((is_causal & attention_mask[:, None, :]) | is_self).unsqueeze(1)
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.norm(x)


class CausalLMWithValueHead(nn.Module):
    """Logits of the next tokens and values of states."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = Qwen3Model(model)
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight
        self.v_head = nn.Linear(HIDDEN, 1)
        self.v_head.weight = copy_parameter(model, "value", is_frozen=False)
        self.v_head.bias.data.copy_(torch.from_numpy(model.weights["value.bias"]))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        hidden_states = self.model(input_ids, attention_mask)
        return self.lm_head(hidden_states), self.v_head(hidden_states).squeeze(-1)

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """Leave the adapters out."""
        adapted = [module for module in self.modules() if isinstance(module, LoraLinear)]
        for module in adapted:
            module.is_disabled = True
        yield
        for module in adapted:
            module.is_disabled = False


def selective_log_softmax(logits: Tensor, index: Tensor) -> Tensor:
    """Return the logarithms of the likelihoods of what is at an index."""
    selected_logits = torch.gather(logits, dim=-1, index=index.unsqueeze(-1)).squeeze(-1)
    return selected_logits - torch.logsumexp(logits, dim=-1)


def compute_entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each token."""
    logps = F.log_softmax(logits, dim=-1)
    return -(torch.exp(logps) * logps).sum(-1)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over all tokens of completions."""
    return (x * mask).sum() / mask.sum()


class GRPOLoss(nn.Module):
    """Clipped objective with a divergence from the reference, loss of values, and entropy."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.policy = CausalLMWithValueHead(model)
        self.temperature = TEMPERATURE if model.has_temperature else 1.0
        self.are_means_tiled = model.are_means_tiled
        self.is_token_mean = model.is_token_mean
        self.is_divergence_stopped = model.is_divergence_stopped
        self.are_values_late = model.are_values_late

    def mask_completions(self, completions: Tensor) -> Tensor:
        """Return which tokens are in front of the end or the end itself."""
        is_end = completions == END
        end_index = torch.full((len(completions),), completions.shape[1])
        has_end = is_end.any(dim=1)
        end_index[has_end] = is_end.int().argmax(dim=1)[has_end]
        index = torch.arange(completions.shape[1]).expand_as(completions)
        return (index <= end_index.unsqueeze(1)).int()

    def score(self, rewards: Tensor) -> Tensor:
        """Return the scores of samples in their group."""
        grouped = rewards.view(-1, SAMPLES)
        means, deviations = grouped.mean(dim=1), grouped.std(dim=1)
        if self.are_means_tiled:
            means, deviations = means.repeat(SAMPLES), deviations.repeat(SAMPLES)
        else:
            means = means.repeat_interleave(SAMPLES, dim=0)
            deviations = deviations.repeat_interleave(SAMPLES, dim=0)
        return (rewards - means) / (deviations + TINY)

    @torch.no_grad()
    def compute_advantages(self, scores: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return advantages of tokens, summed from the last one to the first one."""
        rewards = torch.zeros_like(values)
        rewards[torch.arange(len(values)), mask.sum(dim=1) - 1] += scores
        values = values * mask
        lastgaelam = torch.zeros_like(values[:, 0])
        advantages_reversed = []
        length = values.shape[1]
        for t in reversed(range(length)):
            nextvalues = values[:, t + 1] if t < length - 1 else 0.0
            delta = rewards[:, t] + DISCOUNT * nextvalues - values[:, t]
            lastgaelam = delta + DISCOUNT * TRACE_DECAY * lastgaelam
            advantages_reversed.append(lastgaelam)
        return torch.stack(advantages_reversed[::-1], dim=1)

    def compute_reference(self, input_ids: Tensor, mask: Tensor, completions: Tensor) -> Tensor:
        """Return the logarithms of likelihoods that the model without adapters gives."""
        with torch.no_grad(), self.policy.disable_adapter():
            logits, _ = self.policy(input_ids, mask)
            logits = logits[:, -completions.shape[1] - 1 : -1] / self.temperature
            return selective_log_softmax(logits, completions)

    def compute_policy(
        self, input_ids: Tensor, mask: Tensor, completions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logarithms of likelihoods, entropies and values."""
        logits, values = self.policy(input_ids, mask)
        length = completions.shape[1]
        logits = logits[:, -length - 1 : -1] / self.temperature
        logps = selective_log_softmax(logits, completions)
        values = values[:, -length:] if self.are_values_late else values[:, -length - 1 : -1]
        return logps, compute_entropy(logits), values

    def compute_value_loss(
        self, values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor
    ) -> Tensor:
        """Return the loss of values."""
        vpredclipped = torch.clamp(values, old_values - VALUE_CLIP, old_values + VALUE_CLIP)
        vf_losses1 = torch.square(values - returns)
        vf_losses2 = torch.square(vpredclipped - returns)
        return 0.5 * masked_mean(torch.max(vf_losses1, vf_losses2), mask)

    def forward(
        self,
        prompts: Tensor,
        completions: Tensor,
        old_logps: Tensor,
        old_values: Tensor,
        rewards: Tensor,
    ) -> Tensor:
        prompt_ids = prompts.repeat_interleave(SAMPLES, dim=0)
        input_ids = torch.cat([prompt_ids, completions], dim=1)
        completion_mask = self.mask_completions(completions)
        attention_mask = torch.cat([prompt_ids != PADDING, completion_mask.bool()], dim=1)

        ref_logps = self.compute_reference(input_ids, attention_mask, completions)
        logps, entropies, values = self.compute_policy(input_ids, attention_mask, completions)
        scores = self.score(rewards)
        advantages = self.compute_advantages(scores, old_values, completion_mask)

        ratio = torch.exp(logps - old_logps)
        clipped_ratio = torch.clamp(ratio, 1 - CLIP_LOW, 1 + CLIP_HIGH)
        losses = -torch.min(ratio * advantages, clipped_ratio * advantages)
        log_ratio = ref_logps - (logps.detach() if self.is_divergence_stopped else logps)
        divergence = torch.exp(log_ratio) - log_ratio - 1
        losses = losses + BETA * divergence
        if self.is_token_mean:
            policy_loss = masked_mean(losses, completion_mask)
        else:
            sums = (losses * completion_mask).sum(-1)
            policy_loss = (sums / completion_mask.sum(-1)).mean()
        value_loss = self.compute_value_loss(
            values, old_values, advantages + old_values, completion_mask
        )
        entropy = masked_mean(entropies, completion_mask)
        return policy_loss + VALUE_WEIGHT * value_loss - ENTROPY_WEIGHT * entropy


class FusedGRPO(GRPOLoss):
    """The same with a second model and fewer operators."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.reference = Qwen3Model(model, has_adapters=False)

    def mask_completions(self, completions: Tensor) -> Tensor:
        is_end = (completions == END).int()
        return (is_end.cumsum(dim=1) - is_end == 0).int()

    def score(self, rewards: Tensor) -> Tensor:
        deviations, means = torch.std_mean(rewards.unflatten(0, (-1, SAMPLES)), 1, keepdim=True)
        return ((rewards.view(-1, SAMPLES) - means) / (deviations + TINY)).flatten()

    @torch.no_grad()
    def compute_advantages(self, scores: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        is_last = mask - F.pad(mask[:, 1:], (0, 1))
        values = values * mask
        deltas = scores[:, None] * is_last + DISCOUNT * F.pad(values[:, 1:], (0, 1)) - values
        advantages = torch.zeros_like(deltas)
        advantage = torch.zeros(len(deltas))
        for t in range(deltas.shape[1] - 1, -1, -1):
            advantage = torch.add(deltas[:, t], advantage, alpha=DISCOUNT * TRACE_DECAY)
            advantages[:, t] = advantage
        return advantages

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Return the logits of states."""
        return F.linear(hidden_states, self.policy.lm_head.weight).div(self.temperature)

    def compare(self, logits: Tensor, completions: Tensor) -> Tensor:
        """Return the logarithms of likelihoods."""
        return -F.cross_entropy(logits.transpose(1, 2), completions, reduction="none")

    def compute_reference(self, input_ids: Tensor, mask: Tensor, completions: Tensor) -> Tensor:
        with torch.no_grad():
            hidden_states = self.reference(input_ids, mask)[:, -completions.shape[1] - 1 : -1]
            return self.compare(self.compute_logits(hidden_states), completions)

    def compute_policy(
        self, input_ids: Tensor, mask: Tensor, completions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden_states = self.policy.model(input_ids, mask)[:, -completions.shape[1] - 1 : -1]
        logits = self.compute_logits(hidden_states)
        entropies = logits.logsumexp(-1) - (logits.softmax(-1) * logits).sum(-1)
        values = self.policy.v_head(hidden_states).squeeze(-1)
        return self.compare(logits, completions), entropies, values
