"""The decoder in PyTorch, with the modules of Hugging Face's Gemma 3.

Variant 'fused': one projection for queries, keys and values and one for gate and up, the
framework's attention, norm and mask of losses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.gemma.architecture import (
    EPS,
    FFN,
    GROUP,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    LOGIT_CAP,
    PADDING,
    SCORE_CAP,
    VOCAB,
    Model,
    is_sliding,
)

#: Cosine and sine, and the scores that are masked, of a kind of layers.
Surroundings = tuple[Tensor, Tensor, Tensor]


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    if model.label_shift != 1:
        raise SystemExit("a fault of the MindSpore net")
    return Gemma3ForCausalLM(model)


def load_linear(model: Model, *paths: str) -> nn.Linear:
    """Return the linear layer at ``paths``, the rows of one behind those of the other."""
    values = np.concatenate([model.weights[f"{path}.weight"] for path in paths])
    linear = nn.Linear(values.shape[1], values.shape[0], bias=False)
    linear.weight.data.copy_(torch.from_numpy(values))
    return linear


class Gemma3RMSNorm(nn.Module):
    """Norm of the last axis, with a weight that is zero at the start of a training."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.from_numpy(np.array(model.weights[f"{path}.weight"])))
        self.has_one = model.has_query_one or not path.endswith(("q_norm", "k_norm"))
        self.is_statistic_stopped = model.is_statistic_stopped and path == "norm"
        self.is_fused = model.variant == "fused"

    def forward(self, x: Tensor) -> Tensor:
        if self.is_fused:
            return F.rms_norm(x, self.weight.shape, 1.0 + self.weight, EPS)
        mean_square = x.pow(2).mean(-1, keepdim=True)
        if self.is_statistic_stopped:
            mean_square = mean_square.detach()
        y = x * torch.rsqrt(mean_square + EPS)
        return y * (1.0 + self.weight) if self.has_one else y * self.weight


class Gemma3RotaryEmbedding(nn.Module):
    """Cosine and sine of all positions."""

    def __init__(self, model: Model, layer: int) -> None:
        super().__init__()
        self.register_buffer("inv_freq", torch.from_numpy(model.frequencies(layer)))

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        freqs = positions[:, :, None].float() * self.inv_freq
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos(), emb.sin()


def rotate_half(x: Tensor) -> Tensor:
    """Return what is multiplied by the sines."""
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


class RepeatedRotation(torch.autograd.Function):
    """Queries or keys turned by their positions; the gradient is turned as they are."""

    @staticmethod
    def forward(context, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        context.save_for_backward(cos, sin)
        return (x * cos) + (rotate_half(x) * sin)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = context.saved_tensors
        return (gradient * cos) + (rotate_half(gradient) * sin), None, None


class Gemma3Attention(nn.Module):
    """Attention to the tokens that the mask leaves."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_fused = model.variant == "fused"
        if self.is_fused:
            self.qkv_proj = load_linear(model, *(f"{path}.{name}" for name in "qkv"))
        else:
            self.q_proj, self.k_proj, self.v_proj = (
                load_linear(model, f"{path}.{name}") for name in "qkv"
            )
        self.o_proj = load_linear(model, f"{path}.o")
        self.q_norm, self.k_norm = (Gemma3RMSNorm(model, f"{path}.{name}_norm") for name in "qk")
        self.scaling = model.query_scalar**-0.5
        self.are_keys_tiled = model.are_keys_tiled
        self.is_turned_first = model.is_turned_first
        self.are_scores_capped = model.are_scores_capped
        self.group_gradient = model.group_gradient
        self.is_turn_repeated = model.is_turn_repeated
        self.are_values_normed = model.are_values_normed
        self.are_scores_half = model.are_scores_half

    def project(self, x: Tensor) -> Sequence[Tensor]:
        """Return queries, keys and values, (batch, heads, seq, HEAD_DIM)."""
        if self.is_fused:
            heads = self.qkv_proj(x).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
            return heads.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        shape = (*x.shape[:-1], -1, HEAD_DIM)
        return [
            projection(x).view(shape).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        ]

    def repeat_kv(self, x: Tensor) -> Tensor:
        """Return HEADS heads of KV_HEADS."""
        if self.are_keys_tiled:
            return x.repeat(1, GROUP, 1, 1)
        batch, _, seq, _ = x.shape
        x = x[:, :, None, :, :].expand(batch, KV_HEADS, GROUP, seq, HEAD_DIM)
        return x.reshape(batch, HEADS, seq, HEAD_DIM)

    def forward(self, x: Tensor, surroundings: Surroundings) -> Tensor:
        cos, sin, is_masked = surroundings
        query, key, value = self.project(x)
        if not self.is_turned_first:
            query, key = self.q_norm(query), self.k_norm(key)
        if self.are_values_normed:
            value = value * torch.rsqrt(value.pow(2).mean(-1, keepdim=True) + EPS)
        if self.is_turn_repeated:
            query, key = (RepeatedRotation.apply(x, cos, sin) for x in (query, key))
        else:
            query = (query * cos) + (rotate_half(query) * sin)
            key = (key * cos) + (rotate_half(key) * sin)
        if self.is_turned_first:
            query, key = self.q_norm(query), self.k_norm(key)
        if self.is_fused:
            output = F.scaled_dot_product_attention(
                query, key, value, attn_mask=~is_masked, scale=self.scaling, enable_gqa=True
            )
        else:
            if self.group_gradient != 1:
                key, value = (scaled_gradient(x, self.group_gradient) for x in (key, value))
            key, value = self.repeat_kv(key), self.repeat_kv(value)
            scores = torch.matmul(query, key.transpose(2, 3)) * self.scaling
            if self.are_scores_capped:
                scores = torch.tanh(scores / SCORE_CAP) * SCORE_CAP
            if self.are_scores_half:
                scores = scores.bfloat16()
            scores = scores.masked_fill(is_masked, torch.finfo(scores.dtype).min)
            probabilities = F.softmax(scores, dim=-1)
            if self.are_scores_half:
                probabilities = probabilities.float()
            output = torch.matmul(probabilities, value)
        return self.o_proj(output.transpose(1, 2).reshape(*x.shape[:-1], -1))


class Gemma3MLP(nn.Module):
    """A gated layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_fused = model.variant == "fused"
        if self.is_fused:
            self.gate_up_proj = load_linear(model, f"{path}.gate", f"{path}.up")
        else:
            self.gate_proj = load_linear(model, f"{path}.gate")
            self.up_proj = load_linear(model, f"{path}.up")
        self.down_proj = load_linear(model, f"{path}.down")
        self.approximate = "tanh" if model.activation == "gelu_tanh" else "none"

    def forward(self, x: Tensor) -> Tensor:
        if self.is_fused:
            gate, up = self.gate_up_proj(x).split(FFN, dim=-1)
        else:
            gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(F.gelu(gate, approximate=self.approximate) * up)


class Gemma3DecoderLayer(nn.Module):
    """Attention and feed-forward layer, each with a norm in front and one behind it."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"layers.{n}"
        self.self_attn = Gemma3Attention(model, path)
        self.mlp = Gemma3MLP(model, path)
        self.input_layernorm = Gemma3RMSNorm(model, f"{path}.attention_norm")
        self.post_attention_layernorm = Gemma3RMSNorm(model, f"{path}.attention_post_norm")
        self.pre_feedforward_layernorm = Gemma3RMSNorm(model, f"{path}.ffn_norm")
        self.post_feedforward_layernorm = Gemma3RMSNorm(model, f"{path}.ffn_post_norm")
        self.is_sum_normed = model.is_sum_normed

    def forward(self, x: Tensor, surroundings: Surroundings) -> Tensor:
        residual = x
        x = self.self_attn(self.input_layernorm(x), surroundings)
        x = residual + self.post_attention_layernorm(x)
        residual = x
        x = self.mlp(self.pre_feedforward_layernorm(x))
        if self.is_sum_normed:
            return self.post_feedforward_layernorm(residual + x)
        return residual + self.post_feedforward_layernorm(x)


class Gemma3ScaledWordEmbedding(nn.Embedding):
    """Rows of the table, multiplied by one number."""

    def __init__(self, model: Model) -> None:
        super().__init__(VOCAB, HIDDEN, padding_idx=PADDING)
        self.weight.data.copy_(torch.from_numpy(np.array(model.weights["embedding.weight"])))
        self.register_buffer("embed_scale", torch.tensor(model.embedding_scale()))

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) * self.embed_scale


class Gemma3TextModel(nn.Module):
    """States (batch, seq, HIDDEN) of all tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed_tokens = Gemma3ScaledWordEmbedding(model)
        self.layers = nn.ModuleList(Gemma3DecoderLayer(model, n) for n in range(LAYERS))
        self.norm = Gemma3RMSNorm(model, "norm")
        self.rotary_emb_local = Gemma3RotaryEmbedding(model, 0)
        self.rotary_emb = Gemma3RotaryEmbedding(model, 1)
        self.window, self.are_windows_odd = model.window, model.are_windows_odd

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        positions = torch.arange(tokens.shape[1]).unsqueeze(0)
        distances = positions[0, :, None] - positions[0, None, :]
        is_later = distances < 0
        sliding = (*self.rotary_emb_local(positions), is_later | (distances >= self.window))
        whole = (*self.rotary_emb(positions), is_later)
        if self.are_windows_odd:
            sliding, whole = (*sliding[:-1], whole[-1]), (*whole[:-1], sliding[-1])
        for n, layer in enumerate(self.layers):
            x = layer(x, sliding if is_sliding(n) else whole)
        return self.norm(x)


class StraightSoftCap(torch.autograd.Function):
    """A soft cap whose gradient passes as it is."""

    @staticmethod
    def forward(context, logits: Tensor) -> Tensor:
        return torch.tanh(logits / LOGIT_CAP) * LOGIT_CAP

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        return gradient


class Gemma3ForCausalLM(nn.Module):
    """Mean cross entropy of the next tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = Gemma3TextModel(model)
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight
        self.has_cap, self.is_cap_straight = model.has_cap, model.is_cap_straight
        self.ignore_index = model.ignore_index
        self.is_head_stopped = model.is_head_stopped
        self.is_masked = model.variant == "fused"

    def project(self, x: Tensor) -> Tensor:
        """Return logits that are not capped."""
        if self.is_head_stopped:
            return F.linear(x, self.lm_head.weight.detach())
        return self.lm_head(x)

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.project(self.model(tokens))
        if self.is_cap_straight:
            logits = StraightSoftCap.apply(logits)
        elif self.has_cap:
            logits = logits / LOGIT_CAP
            logits = torch.tanh(logits)
            logits = logits * LOGIT_CAP
        shift_logits, shift_labels = logits[:, :-1].reshape(-1, VOCAB), tokens[:, 1:].reshape(-1)
        if not self.is_masked:
            return F.cross_entropy(shift_logits, shift_labels, ignore_index=self.ignore_index)
        losses = F.cross_entropy(shift_logits, shift_labels, reduction="none")
        keep = (shift_labels != PADDING).float()
        return torch.sum(losses * keep) / keep.sum()
