"""The decoder in MindSpore, with the cell names of MindSpore Transformers.

Variant 'grouped': the queries of a key are an axis, so that nothing is repeated; queries are
scaled, norms divide by a root, gelu and loss are written out.
"""

from __future__ import annotations

import math

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.gemma.architecture import (
    BATCH,
    EPS,
    GROUP,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    LOGIT_CAP,
    PADDING,
    SCORE_CAP,
    SEQ,
    VOCAB,
    Model,
    is_sliding,
)

MASKED = -1e9


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    if model.are_scores_half:
        raise SystemExit("a fault of the PyTorch net")
    return GemmaForCausalLM(model)


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight = Tensor(model.weights[f"{path}.weight"])
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, has_bias=False)


class RMSNorm(nn.Cell):
    """Norm of the last axis, with a weight that is zero at the start of a training."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.has_one = model.has_query_one or not path.endswith(("q_norm", "k_norm"))
        self.is_statistic_stopped = model.is_statistic_stopped and path == "norm"
        self.is_root_divided = model.variant == "grouped"

    def construct(self, x):
        if self.is_root_divided:
            root = ops.sqrt((x * x).mean(-1, keep_dims=True) + EPS)
            return x / root * (self.weight + 1.0)
        source = ops.stop_gradient(x) if self.is_statistic_stopped else x
        y = x * ops.rsqrt(ops.mean(ops.square(source), -1, True) + EPS)
        return y * (1.0 + self.weight) if self.has_one else y * self.weight


class RotaryCell(nn.Cell):
    """A cell that turns by positions."""

    def rotate(self, x, cos, sin):
        half = HEAD_DIM // 2
        turned = ops.concat((-x[..., half:], x[..., :half]), -1)
        return x * cos + turned * sin


class RepeatedRotation(RotaryCell):
    """Queries or keys turned by their positions; the gradient is turned as they are."""

    def construct(self, x, cos, sin):
        return self.rotate(x, cos, sin)

    def bprop(self, x, cos, sin, out, gradient):
        return self.rotate(gradient, cos, sin), ops.zeros_like(cos), ops.zeros_like(sin)


class Attention(RotaryCell):
    """Attention to the tokens that the mask leaves."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.wq = build_dense(model, f"{path}.q")
        self.wk = build_dense(model, f"{path}.k")
        self.wv = build_dense(model, f"{path}.v")
        self.wo = build_dense(model, f"{path}.o")
        self.q_norm = RMSNorm(model, f"{path}.q_norm")
        self.k_norm = RMSNorm(model, f"{path}.k_norm")
        self.scale = model.query_scalar**-0.5
        self.are_keys_tiled = model.are_keys_tiled
        self.is_turned_first = model.is_turned_first
        self.is_grouped = model.variant == "grouped"
        self.are_scores_capped = model.are_scores_capped
        self.scaled_gradient = None
        if model.group_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.group_gradient)
        self.repeated_rotation = RepeatedRotation() if model.is_turn_repeated else None
        self.are_values_normed = model.are_values_normed

    def repeat(self, x):
        """Return (BATCH, HEADS, SEQ, HEAD_DIM) of KV_HEADS heads."""
        if self.are_keys_tiled:
            return ops.tile(x, (1, GROUP, 1, 1))
        x = ops.tile(x.expand_dims(2), (1, 1, GROUP, 1, 1))
        return x.reshape(BATCH, HEADS, SEQ, HEAD_DIM)

    def construct(self, x, cos, sin, mask):
        q = self.wq(x).reshape(BATCH, SEQ, HEADS, HEAD_DIM)
        q = (q if self.is_turned_first else self.q_norm(q)).transpose(0, 2, 1, 3)
        k = self.wk(x).reshape(BATCH, SEQ, KV_HEADS, HEAD_DIM)
        k = (k if self.is_turned_first else self.k_norm(k)).transpose(0, 2, 1, 3)
        v = self.wv(x).reshape(BATCH, SEQ, KV_HEADS, HEAD_DIM).transpose(0, 2, 1, 3)
        if self.are_values_normed:
            v = v * ops.rsqrt(ops.mean(ops.square(v), -1, True) + EPS)
        if self.repeated_rotation is not None:
            q, k = self.repeated_rotation(q, cos, sin), self.repeated_rotation(k, cos, sin)
        else:
            q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        if self.is_turned_first:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.is_grouped:
            q = (q * self.scale).reshape(BATCH, KV_HEADS, GROUP, SEQ, HEAD_DIM)
            scores = ops.matmul(q, k.expand_dims(2).swapaxes(-1, -2)) + mask
            context = ops.matmul(ops.softmax(scores, -1), v.expand_dims(2))
            context = context.reshape(BATCH, HEADS, SEQ, HEAD_DIM)
        else:
            if self.scaled_gradient is not None:
                k, v = self.scaled_gradient(k), self.scaled_gradient(v)
            k, v = self.repeat(k), self.repeat(v)
            scores = ops.matmul(q, k.transpose(0, 1, 3, 2)) * self.scale
            if self.are_scores_capped:
                scores = ops.tanh(scores / SCORE_CAP) * SCORE_CAP
            context = ops.matmul(ops.softmax(scores + mask, -1), v)
        return self.wo(context.transpose(0, 2, 1, 3).reshape(BATCH, SEQ, HEADS * HEAD_DIM))


class FeedForward(nn.Cell):
    """A gated layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.w1 = build_dense(model, f"{path}.gate")
        self.w3 = build_dense(model, f"{path}.up")
        self.w2 = build_dense(model, f"{path}.down")
        self.approximate = "tanh" if model.activation == "gelu_tanh" else "none"
        self.is_written_out = model.variant == "grouped"

    def activate(self, x):
        """Return gelu in the form of https://arxiv.org/abs/1606.08415, section 2."""
        if self.is_written_out:
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * ops.pow(x, 3))
            return 0.5 * x * (1 + ops.tanh(inner))
        return ops.gelu(x, approximate=self.approximate)

    def construct(self, x):
        return self.w2(self.activate(self.w1(x)) * self.w3(x))


class DecoderLayer(nn.Cell):
    """Attention and feed-forward layer, each with a norm in front and one behind it."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"layers.{n}"
        self.attention_norm = RMSNorm(model, f"{path}.attention_norm")
        self.attention = Attention(model, path)
        self.attention_post_norm = RMSNorm(model, f"{path}.attention_post_norm")
        self.ffn_norm = RMSNorm(model, f"{path}.ffn_norm")
        self.feed_forward = FeedForward(model, path)
        self.ffn_post_norm = RMSNorm(model, f"{path}.ffn_post_norm")
        self.is_sum_normed = model.is_sum_normed

    def construct(self, x, cos, sin, mask):
        attended = self.attention(self.attention_norm(x), cos, sin, mask)
        x = x + self.attention_post_norm(attended)
        fed = self.feed_forward(self.ffn_norm(x))
        if self.is_sum_normed:
            return self.ffn_post_norm(x + fed)
        return x + self.ffn_post_norm(fed)


class GemmaModel(nn.Cell):
    """States (BATCH, SEQ, HIDDEN) of all tokens, and the table of the embedding."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embedding_weight = Parameter(Tensor(model.weights["embedding.weight"]))
        self.embedding_scale = model.embedding_scale()
        self.layers = nn.CellList([DecoderLayer(model, n) for n in range(LAYERS)])
        self.norm_out = RMSNorm(model, "norm")
        self.local_cos, self.local_sin = (Tensor(table) for table in model.rope(0))
        self.global_cos, self.global_sin = (Tensor(table) for table in model.rope(1))
        self.local_mask, self.global_mask = (
            Tensor(MASKED * model.mask(n), ms.float32) for n in range(2)
        )

    def construct(self, tokens):
        x = ops.gather(self.embedding_weight, tokens, 0) * self.embedding_scale
        for n in range(LAYERS):
            if is_sliding(n):
                x = self.layers[n](x, self.local_cos, self.local_sin, self.local_mask)
            else:
                x = self.layers[n](x, self.global_cos, self.global_sin, self.global_mask)
        return self.norm_out(x), self.embedding_weight


class SoftCap(nn.Cell):
    """What does not exceed LOGIT_CAP."""

    def construct(self, logits):
        return ops.tanh(logits / LOGIT_CAP) * LOGIT_CAP


class StraightSoftCap(SoftCap):
    """The same with a gradient that passes as it is."""

    def bprop(self, logits, out, gradient):
        return (gradient,)


class GemmaForCausalLM(nn.Cell):
    """Mean cross entropy of the next tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.model = GemmaModel(model)
        self.soft_cap = None
        if model.has_cap:
            self.soft_cap = StraightSoftCap() if model.is_cap_straight else SoftCap()
        self.ignore_index = model.ignore_index
        self.is_head_stopped = model.is_head_stopped
        self.is_written_out = model.variant == "grouped"
        self.label_shift = model.label_shift

    def construct(self, tokens):
        x, table = self.model(tokens)
        if self.is_head_stopped:
            table = ops.stop_gradient(table)
        logits = ops.matmul(x.reshape(-1, HIDDEN), table.T)
        if self.soft_cap is not None:
            logits = self.soft_cap(logits)
        logits = logits.reshape(BATCH, SEQ, VOCAB)[:, : -self.label_shift].reshape(-1, VOCAB)
        labels = tokens[:, self.label_shift :].reshape(-1)
        if not self.is_written_out:
            return ops.cross_entropy(logits, labels, ignore_index=self.ignore_index)
        log_probs = ops.log_softmax(logits, -1)
        losses = -ops.gather_elements(log_probs, 1, labels.expand_dims(1)).squeeze(1)
        loss_mask = ops.not_equal(labels, PADDING).astype(ms.float32)
        return (losses * loss_mask).sum() / loss_mask.sum()
