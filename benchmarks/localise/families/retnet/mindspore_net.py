"""The language model of retention in MindSpore, with cells named as in MindSpore Transformers.

Variant 'written': norms, swish and losses in plain arithmetic, decays from positions, pairs of a
rotation exchanged by a product.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.retnet.architecture import (
    BATCH,
    EMBEDDING_SCALE,
    EPS,
    HEADS,
    HIDDEN,
    IGNORED,
    KEY_DIM,
    LAYERS,
    MAX_SUM,
    SEQ,
    SMOOTHING,
    VALUE,
    VALUE_DIM,
    VOCAB,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return SmoothedLoss(model)


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight = Tensor(model.weights[f"{path}.weight"])
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, has_bias=False)


class RMSNorm(nn.Cell):
    """Norm of the last axis by its mean square."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.is_written = model.variant == "written"

    def construct(self, x):
        if self.is_written:
            root = ops.sqrt((x * x).mean(-1, keep_dims=True) + EPS)
            return x / root * self.weight
        factor = ops.rsqrt(ops.mean(ops.square(x), -1, True) + EPS)
        return x * factor * self.weight


class GroupNorm(nn.Cell):
    """A norm of each head with the framework's cell, which wants images."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
        self.norm = nn.GroupNorm(
            model.norm_groups, VALUE, eps=EPS, gamma_init=weight, beta_init=bias
        )

    def construct(self, x):
        return self.norm(x.reshape(-1, VALUE, 1, 1)).reshape(x.shape)


class HeadRMSNorm(nn.Cell):
    """An RMS norm of each head."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.beta = Parameter(Tensor(model.weights[f"{path}.bias"]))

    def construct(self, x):
        heads = x.reshape(BATCH, SEQ, HEADS, VALUE_DIM)
        normed = heads * ops.rsqrt(ops.mean(ops.square(heads), -1, True) + EPS)
        return normed.reshape(x.shape) * self.gamma + self.beta


class WrittenGroupNorm(nn.Cell):
    """The same from reductions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.beta = Parameter(Tensor(model.weights[f"{path}.bias"]))

    def construct(self, x):
        heads = x.reshape(BATCH, SEQ, HEADS, VALUE_DIM)
        centered = heads - heads.mean(-1, keep_dims=True)
        variance = ops.square(centered).mean(-1, keep_dims=True)
        normed = (centered / ops.sqrt(variance + EPS)).reshape(x.shape)
        return normed * self.gamma + self.beta


class Swish(nn.Cell):
    """Swish of a gate."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_written = model.variant == "written"
        self.silu = FusedSwish() if model.is_swish_gate_constant else nn.SiLU()

    def construct(self, x):
        return x * ops.sigmoid(x) if self.is_written else self.silu(x)


class FusedSwish(nn.Cell):
    """A swish whose gradient is multiplied by the sigmoid alone."""

    def construct(self, x):
        return ops.silu(x)

    def bprop(self, x, out, gradient):
        return (gradient * ops.sigmoid(x),)


class RetentionTables(nn.Cell):
    """Sines and cosines of the positions, and the decay between each two positions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        positions = np.arange(SEQ, dtype=np.float32)
        angles = np.outer(positions, np.repeat(model.frequencies(), 2))
        self.sin, self.cos = Tensor(np.sin(angles)), Tensor(np.cos(angles))
        distances = positions[:, None] - positions[None, :]
        log_decays = model.log_decays()[:, None, None]
        decays = np.exp(np.maximum(distances, 0) * log_decays) * (distances >= 0)
        decays = decays / np.sqrt(decays.sum(-1, keepdims=True))
        self.decay_mask = Tensor(decays.astype(np.float32))
        self.is_written = model.variant == "written"
        self.log_decays = Tensor(log_decays)
        self.distances = Tensor(np.maximum(distances, 0))
        self.is_seen = Tensor((distances >= 0).astype(np.float32))

    def construct(self):
        if self.is_written:
            decays = ops.exp(self.distances * self.log_decays) * self.is_seen
            return self.sin, self.cos, decays * ops.rsqrt(decays.sum(-1, keepdims=True))
        return self.sin, self.cos, self.decay_mask


class RotaryEmbedding(nn.Cell):
    """Queries or keys rotated by their positions, pair by pair."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_written = model.variant == "written"
        exchange = np.zeros((KEY_DIM, KEY_DIM), np.float32)
        for even in range(0, KEY_DIM, 2):
            exchange[even + 1, even], exchange[even, even + 1] = -1, 1
        self.exchange = Tensor(exchange)

    def rotate_pairs(self, x):
        """Return pairs (a, b) as (-b, a)."""
        if self.is_written:
            return ops.matmul(x, self.exchange)
        even, odd = x[:, :, :, ::2], x[:, :, :, 1::2]
        return ops.stack((ops.neg(odd), even), -1).reshape(x.shape)

    def construct(self, x, sin, cos):
        return x * cos + self.rotate_pairs(x) * sin


class MultiScaleRetention(nn.Cell):
    """Retention with a decay for each head, its norm and its gate."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"layers.{n}.retention"
        self.wq = build_dense(model, f"{path}.q")
        self.wk = build_dense(model, f"{path}.k")
        self.wv = build_dense(model, f"{path}.v")
        self.wg = build_dense(model, f"{path}.g")
        self.wo = build_dense(model, f"{path}.o")
        self.rotary = RotaryEmbedding(model)
        norm_class = WrittenGroupNorm if model.variant == "written" else GroupNorm
        if model.is_head_norm_rms:
            norm_class = HeadRMSNorm
        self.head_norm = norm_class(model, f"{path}.norm")
        self.swish = Swish(model)
        self.scale = KEY_DIM**-0.5
        self.is_gate_early = model.is_gate_early
        self.are_scores_stopped = model.are_scores_stopped
        self.is_half = model.are_products_half and n == LAYERS - 1

    def multiply(self, a, b):
        if self.is_half:
            return ops.matmul(a.astype(ms.float16), b.astype(ms.float16)).astype(ms.float32)
        return ops.matmul(a, b)

    def split_heads(self, x, size):
        """Return (batch, HEADS, SEQ, size)."""
        return x.reshape(BATCH, SEQ, HEADS, size).transpose(0, 2, 1, 3)

    def construct(self, x, sin, cos, decay_mask):
        q = self.rotary(self.split_heads(self.wq(x), KEY_DIM), sin, cos)
        k = self.rotary(self.split_heads(self.wk(x) * self.scale, KEY_DIM), sin, cos)
        v = self.split_heads(self.wv(x), VALUE_DIM)
        scores = self.multiply(q, k.swapaxes(-1, -2)) * decay_mask
        total = ops.stop_gradient(ops.abs(scores).sum(-1, keepdims=True))
        scores = scores / ops.clamp(total, 1.0, MAX_SUM)
        if self.are_scores_stopped:
            scores = ops.stop_gradient(scores)
        y = self.multiply(scores, v)
        y = y.transpose(0, 2, 1, 3).reshape(BATCH, SEQ, VALUE)
        gate = self.swish(self.wg(x))
        y = self.head_norm(y * gate) if self.is_gate_early else self.head_norm(y) * gate
        return self.wo(y)


class FeedForward(nn.Cell):
    """The gated feed-forward."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"layers.{n}.mlp"
        self.w1 = build_dense(model, f"{path}.gate")
        self.w2 = build_dense(model, f"{path}.down")
        self.w3 = build_dense(model, f"{path}.up")
        self.swish = Swish(model)

    def construct(self, x):
        return self.w2(self.swish(self.w1(x)) * self.w3(x))


class RetNetBlock(nn.Cell):
    """Retention and feed-forward, a norm before each."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.retention_norm = RMSNorm(model, f"layers.{n}.norm1")
        self.retention = MultiScaleRetention(model, n)
        self.ffn_norm = RMSNorm(model, f"layers.{n}.norm2")
        self.feed_forward = FeedForward(model, n)
        self.residual_scale = model.residual_scale

    def scale(self, x):
        """Return what a sublayer's result is added to."""
        return x * self.residual_scale if self.residual_scale != 1 else x

    def construct(self, x, sin, cos, decay_mask):
        x = self.scale(x) + self.retention(self.retention_norm(x), sin, cos, decay_mask)
        return self.scale(x) + self.feed_forward(self.ffn_norm(x))


class RetNet(nn.Cell):
    """Logits (batch * SEQ, VOCAB) of tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embedding_weight = Parameter(Tensor(model.weights["embedding.weight"]))
        self.tables = RetentionTables(model)
        self.layers = nn.CellList([RetNetBlock(model, n) for n in range(LAYERS)])
        self.norm_out = RMSNorm(model, "norm")
        self.head = ops.MatMul(transpose_b=True)
        self.scaled_gradient = None
        if model.embedding_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.embedding_gradient)

    def construct(self, tokens):
        x = ops.gather(self.embedding_weight, tokens, 0) * EMBEDDING_SCALE
        if self.scaled_gradient is not None:
            x = self.scaled_gradient(x)
        sin, cos, decay_mask = self.tables()
        for layer in self.layers:
            x = layer(x, sin, cos, decay_mask)
        return self.head(self.norm_out(x).reshape(-1, HIDDEN), self.embedding_weight)


class SmoothedLoss(nn.Cell):
    """Cross entropy of smoothed labels, the mean over tokens that are no padding."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = RetNet(model)
        self.are_sequences_averaged = model.loss_reduction == "sequences"
        self.are_others_smoothed = model.are_others_smoothed
        self.log_base = math.log(model.loss_base)
        self.is_written = model.variant == "written"
        share = SMOOTHING / (VOCAB - 1) if model.are_others_smoothed else SMOOTHING / VOCAB
        label_share = 1 - SMOOTHING
        self.one_hot = nn.OneHot(
            depth=VOCAB,
            on_value=label_share if model.are_others_smoothed else label_share + share,
            off_value=share,
        )

    def compute_losses(self, logits, labels):
        """Return the losses (batch * SEQ,) of all tokens."""
        if self.is_written:
            sums = ops.logsumexp(logits, -1)
            return sums - (logits * self.one_hot(labels)).sum(-1)
        if self.are_others_smoothed:
            return -(ops.log_softmax(logits, -1) * self.one_hot(labels)).sum(-1)
        return ops.cross_entropy(logits, labels, reduction="none", label_smoothing=SMOOTHING)

    def construct(self, tokens, labels):
        mask = ops.not_equal(labels, IGNORED).astype(ms.float32)
        losses = self.compute_losses(self.network(tokens), ops.maximum(labels, 0).reshape(-1))
        losses = losses.reshape(BATCH, SEQ) * mask
        if self.are_sequences_averaged:
            return (losses.sum(-1) / mask.sum(-1)).mean()
        loss = losses.sum() / mask.sum()
        return loss / self.log_base if self.log_base != 1 else loss
