"""The language model of retention in PyTorch, with the modules of torchscale's RetNet.

Variant 'fused': one projection for queries, keys, values and gate, one for the gate and the other
half of the feed-forward, pairs as an axis, retention by einsum, the framework's RMS norm, and
losses weighted by a mask.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.retnet.architecture import (
    EMBEDDING_SCALE,
    EPS,
    FFN,
    HEADS,
    HIDDEN,
    IGNORED,
    KEY_DIM,
    LAYERS,
    MAX_SUM,
    SMOOTHING,
    VALUE,
    VALUE_DIM,
    VOCAB,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return RetNetForCausalLM(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def load_linear(model: Model, *paths: str) -> nn.Linear:
    """Return the linear layer at ``paths``, their rows one after the other."""
    weight = np.concatenate([model.weights[f"{path}.weight"] for path in paths])
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = copy_parameter(weight)
    return linear


def load_norm(model: Model, path: str) -> nn.Module:
    """Return the RMS norm at ``path``."""
    if model.variant != "fused":
        return RMSNorm(model, path)
    norm = nn.RMSNorm(HIDDEN, eps=EPS)
    norm.weight = copy_parameter(model.weights[f"{path}.weight"])
    return norm


class RMSNorm(nn.Module):
    """Norm of the last axis by its mean square."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = copy_parameter(model.weights[f"{path}.weight"])

    def forward(self, x: Tensor) -> Tensor:
        normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + EPS)
        return normed.type_as(x) * self.weight


class RetNetRelPos(nn.Module):
    """Sines and cosines of the positions, and the decay between each two positions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        angle = torch.from_numpy(model.frequencies()).unsqueeze(-1).repeat(1, 2).flatten()
        self.register_buffer("angle", angle)
        self.register_buffer("decay", torch.from_numpy(model.log_decays()))

    def forward(self, n_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        index = torch.arange(n_tokens).to(self.decay)
        sin = torch.sin(index[:, None] * self.angle[None, :])
        cos = torch.cos(index[:, None] * self.angle[None, :])
        is_seen = torch.tril(torch.ones(n_tokens, n_tokens)).bool()
        distances = torch.masked_fill(index[:, None] - index[None, :], ~is_seen, float("inf"))
        mask = torch.nan_to_num(torch.exp(distances * self.decay[:, None, None]))
        return sin, cos, mask / mask.sum(dim=-1, keepdim=True).sqrt()


def rotate_every_two(x: Tensor) -> Tensor:
    """Return pairs (a, b) as (-b, a)."""
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def theta_shift(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """Return queries or keys rotated by their positions."""
    return (x * cos) + (rotate_every_two(x) * sin)


class HeadRMSNorm(nn.Module):
    """An RMS norm of each head, (tokens, VALUE)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = copy_parameter(model.weights[f"{path}.weight"])
        self.bias = copy_parameter(model.weights[f"{path}.bias"])

    def forward(self, x: Tensor) -> Tensor:
        heads = x.view(-1, HEADS, VALUE_DIM)
        normed = heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + EPS)
        return normed.view(x.shape) * self.weight + self.bias


def load_head_norm(model: Model, path: str) -> nn.Module:
    """Return the norm at ``path`` of what retention gives."""
    if model.is_head_norm_rms:
        return HeadRMSNorm(model, path)
    norm = nn.GroupNorm(model.norm_groups, VALUE, eps=EPS)
    norm.weight = copy_parameter(model.weights[f"{path}.weight"])
    norm.bias = copy_parameter(model.weights[f"{path}.bias"])
    return norm


class MultiScaleRetention(nn.Module):
    """Retention with a decay for each head, its norm and its gate."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"layers.{n}.retention"
        self.q_proj, self.k_proj, self.v_proj, self.g_proj, self.out_proj = (
            load_linear(model, f"{path}.{name}") for name in "qkvgo"
        )
        self.scaling = KEY_DIM**-0.5
        self.group_norm = load_head_norm(model, f"{path}.norm")
        self.gate_fn = F.silu
        self.is_gate_early = model.is_gate_early
        self.are_scores_stopped = model.are_scores_stopped
        self.are_decays_by_example = model.are_decays_by_example
        self.is_half = model.are_products_half and n == LAYERS - 1

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        if self.is_half:
            return (a.half() @ b.half()).float()
        return a @ b

    def parallel_forward(self, qr: Tensor, kr: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        qk_mat = self.multiply(qr, kr.transpose(-1, -2)) * mask
        divisor = qk_mat.detach().abs().sum(dim=-1, keepdim=True).clamp(min=1, max=MAX_SUM)
        qk_mat = qk_mat / divisor
        if self.are_scores_stopped:
            qk_mat = qk_mat.detach()
        return self.multiply(qk_mat, v).transpose(1, 2)

    def forward(self, x: Tensor, rel_pos: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        bsz, tgt_len, _ = x.size()
        sin, cos, inner_mask = rel_pos
        if self.are_decays_by_example:
            inner_mask = inner_mask.unsqueeze(1)
        q, k, v, g = self.q_proj(x), self.k_proj(x), self.v_proj(x), self.g_proj(x)
        k = k * self.scaling
        q = q.view(bsz, tgt_len, HEADS, KEY_DIM).transpose(1, 2)
        k = k.view(bsz, tgt_len, HEADS, KEY_DIM).transpose(1, 2)
        v = v.view(bsz, tgt_len, HEADS, VALUE_DIM).transpose(1, 2)
        qr, kr = theta_shift(q, sin, cos), theta_shift(k, sin, cos)
        output = self.parallel_forward(qr, kr, v, inner_mask).reshape(-1, VALUE)
        if self.is_gate_early:
            output = self.gate_fn(g).view(-1, VALUE) * output
        output = self.group_norm(output).view(bsz, tgt_len, VALUE)
        if not self.is_gate_early:
            output = self.gate_fn(g) * output
        return self.out_proj(output)


class FusedRetention(nn.Module):
    """The same with one projection and without moving the heads first."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"layers.{n}.retention"
        self.qkvg_proj = load_linear(model, *(f"{path}.{name}" for name in "qkvg"))
        self.o_proj = load_linear(model, f"{path}.o")
        self.g_norm_weight, self.g_norm_bias = (
            copy_parameter(model.weights[f"{path}.norm.{name}"]) for name in ("weight", "bias")
        )

    def rotate(self, x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
        """Return queries or keys (batch, tokens, HEADS, KEY_DIM) rotated by their positions."""
        sin, cos = sin[:, None, ::2], cos[:, None, ::2]
        first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
        rotated = (first * cos - second * sin, second * cos + first * sin)
        return torch.stack(rotated, dim=-1).flatten(-2)

    def forward(self, x: Tensor, rel_pos: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        sin, cos, mask = rel_pos
        q, k, v, g = self.qkvg_proj(x).split([HIDDEN, HIDDEN, VALUE, VALUE], dim=-1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)) for part in (q, k, v))
        q, k = self.rotate(q * KEY_DIM**-0.5, sin, cos), self.rotate(k, sin, cos)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * mask
        scores = scores / scores.detach().norm(p=1, dim=-1, keepdim=True).clamp(1, MAX_SUM)
        y = torch.einsum("bhqk,bkhd->bqhd", scores, v)
        y = F.layer_norm(y, (VALUE_DIM,), eps=EPS).flatten(2)
        y = torch.addcmul(self.g_norm_bias, y, self.g_norm_weight)
        return self.o_proj(y * F.silu(g))


class GLU(nn.Module):
    """The gated feed-forward."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"layers.{n}.mlp"
        self.fc1, self.gate, self.fc2 = (
            load_linear(model, f"{path}.{name}") for name in ("gate", "up", "down")
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.silu(self.fc1(x)) * self.gate(x))


class FusedGLU(nn.Module):
    """The same with one projection for both halves."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"layers.{n}.mlp"
        self.gate_up_proj = load_linear(model, f"{path}.gate", f"{path}.up")
        self.down_proj = load_linear(model, f"{path}.down")

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).split(FFN, dim=-1)
        return self.down_proj(gate * torch.sigmoid(gate) * up)


class DecoderLayer(nn.Module):
    """Retention and feed-forward, a norm before each."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        is_fused = model.variant == "fused"
        self.retention = (FusedRetention if is_fused else MultiScaleRetention)(model, n)
        self.retention_layer_norm = load_norm(model, f"layers.{n}.norm1")
        self.ffn = (FusedGLU if is_fused else GLU)(model, n)
        self.final_layer_norm = load_norm(model, f"layers.{n}.norm2")
        self.alpha = model.residual_scale

    def scale(self, x: Tensor) -> Tensor:
        """Return what a sublayer's result is added to."""
        return x * self.alpha if self.alpha != 1 else x

    def forward(self, x: Tensor, rel_pos: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x = self.scale(x) + self.retention(self.retention_layer_norm(x), rel_pos)
        return self.scale(x) + self.ffn(self.final_layer_norm(x))


class RetNetDecoder(nn.Module):
    """Logits (batch, SEQ, VOCAB) of tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.embed_tokens.weight = copy_parameter(model.weights["embedding.weight"])
        self.retnet_rel_pos = RetNetRelPos(model)
        self.layers = nn.ModuleList(DecoderLayer(model, n) for n in range(LAYERS))
        self.layer_norm = load_norm(model, "norm")
        self.embed_scale = EMBEDDING_SCALE
        self.gradient = model.embedding_gradient

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_scale * self.embed_tokens(tokens)
        if self.gradient != 1:
            x = scaled_gradient(x, self.gradient)
        rel_pos = self.retnet_rel_pos(tokens.size(1))
        for layer in self.layers:
            x = layer(x, rel_pos)
        return F.linear(self.layer_norm(x), self.embed_tokens.weight)


class RetNetForCausalLM(nn.Module):
    """Cross entropy of smoothed labels, the mean over tokens that are no padding."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.decoder = RetNetDecoder(model)
        self.are_sequences_averaged = model.loss_reduction == "sequences"
        self.are_others_smoothed = model.are_others_smoothed
        self.log_base = math.log(model.loss_base)
        self.is_weighted = model.variant == "fused"

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        logits = self.decoder(tokens)
        if self.are_others_smoothed or self.is_weighted:
            losses = self.compute_losses(logits, labels.clamp(min=0))
            mask = (labels != IGNORED).float()
            return (losses * mask).sum() / mask.sum()
        if self.are_sequences_averaged:
            losses = F.cross_entropy(
                logits.transpose(1, 2), labels, reduction="none", label_smoothing=SMOOTHING
            )
            return (losses.sum(dim=1) / (labels != IGNORED).sum(dim=1)).mean()
        loss = F.cross_entropy(
            logits.view(-1, VOCAB),
            labels.view(-1),
            ignore_index=IGNORED,
            label_smoothing=SMOOTHING,
        )
        return loss / self.log_base if self.log_base != 1 else loss

    def compute_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the losses (batch, SEQ) of all tokens."""
        logs = F.log_softmax(logits, dim=-1)
        of_labels = -logs.gather(dim=-1, index=labels.unsqueeze(-1)).squeeze(-1)
        if self.are_others_smoothed:
            share = SMOOTHING / (VOCAB - 1)
            return (1 - SMOOTHING - share) * of_labels - share * logs.sum(dim=-1)
        return (1 - SMOOTHING) * of_labels - SMOOTHING * logs.mean(dim=-1)
