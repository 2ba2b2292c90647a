"""The language model in MindSpore for graph mode, with cells named as in MindSpore's model zoo.

Variant 'written': q, k and v from a layer each, u and v times keys and positions apart, scores by
distance gathered, lookups by products with rows of zeros and a one, norms, activations and softmax
in plain arithmetic.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from families.transfoxl.architecture import (
    ALPHA,
    BASE,
    EPS,
    HEAD_DIM,
    HEAD_WORDS,
    HEADS,
    HIDDEN,
    LAYERS,
    MEMORY,
    PAD,
    SEGMENT,
    SEGMENTS,
    TAIL_DIM,
    TAIL_WORDS,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return LossCell(model)


def make_dense(weight: np.ndarray, bias: np.ndarray | None) -> nn.Dense:
    """Return a linear layer with these weights."""
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=Tensor(weight),
        bias_init=None if bias is None else Tensor(bias),
        has_bias=bias is not None,
    )


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``, with the bias if there is one."""
    return make_dense(model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias"))


def build_parameter(model: Model, name: str) -> Parameter:
    """Return a weight as a parameter."""
    return Parameter(Tensor(model.weights[name]), name=name.replace(".", "_"))


class WrittenNorm(nn.Cell):
    """Layer norm from means."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.gamma, self.beta = Parameter(weight, name="gamma"), Parameter(bias, name="beta")

    def construct(self, x):
        centered = x - x.mean(-1, keep_dims=True)
        variance = ops.square(centered).mean(-1, keep_dims=True)
        return centered / ops.sqrt(variance + EPS) * self.gamma + self.beta


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the layer norm at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    if model.variant == "written":
        return WrittenNorm(weight, bias)
    return nn.LayerNorm((HIDDEN,), gamma_init=weight, beta_init=bias, epsilon=EPS)


class WrittenGELU(nn.Cell):
    """GELU from the error function."""

    def construct(self, x):
        return 0.5 * x * (1 + ops.erf(x * math.sqrt(0.5)))


class AdaptiveEmbedding(nn.Cell):
    """Vectors of tokens, those of the tail cluster behind a projection."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        head, tail = (Tensor(model.weights[f"{name}.weight"]) for name in ("head", "tail"))
        self.head_emb = nn.Embedding(HEAD_WORDS, HIDDEN, embedding_table=head)
        self.tail_emb = nn.Embedding(TAIL_WORDS, TAIL_DIM, embedding_table=tail)
        self.tail_proj = make_dense(model.weights["projection.weight"], None)
        self.emb_scale = HIDDEN**0.5

    def construct(self, tokens):
        is_tail = ops.expand_dims(tokens >= HEAD_WORDS, -1)
        head = self.head_emb(ops.minimum(tokens, HEAD_WORDS - 1))
        tail = self.tail_proj(self.tail_emb(ops.maximum(tokens - HEAD_WORDS, 0)))
        return ops.where(is_tail, tail, head) * self.emb_scale


class WrittenEmbedding(AdaptiveEmbedding):
    """The same by products; tokens of the other cluster have a row of zeros."""

    def construct(self, tokens):
        on, off = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)
        one_hot = ops.one_hot(tokens, HEAD_WORDS + TAIL_WORDS, on, off)
        head = ops.matmul(one_hot[:, :, :HEAD_WORDS], self.head_emb.embedding_table)
        tail = ops.matmul(one_hot[:, :, HEAD_WORDS:], self.tail_emb.embedding_table)
        return (head + self.tail_proj(tail)) * self.emb_scale


class PositionalEmbedding(nn.Cell):
    """Sinusoids (n_keys, HIDDEN) of the distances n_keys - 1, ..., 0."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.inv_freq = Tensor((BASE ** -(np.arange(0, HIDDEN, 2) / HIDDEN)).astype(np.float32))
        self.are_interleaved = model.are_sinusoids_interleaved

    def construct(self, n_keys):
        distances = ops.arange(n_keys - 1, -1, -1).astype(ms.float32)
        angles = ops.expand_dims(distances, 1) * self.inv_freq
        if self.are_interleaved:
            return ops.stack((ops.sin(angles), ops.cos(angles)), -1).reshape(n_keys, HIDDEN)
        return ops.concat((ops.sin(angles), ops.cos(angles)), -1)


class RelShift(nn.Cell):
    """Scores (batch, heads, queries, keys) by distance, moved to their keys."""

    def construct(self, x):
        batch, heads, queries, keys = x.shape
        zeros = ops.zeros((batch, heads, queries, 1), x.dtype)
        padded = ops.concat((zeros, x), -1).reshape(batch, heads, keys + 1, queries)
        return padded[:, :, 1:].reshape(batch, heads, queries, keys)


class StraightRelShift(RelShift):
    """The same; the gradient is not moved back."""

    def bprop(self, x, out, gradient):
        return (gradient,)


class GatheredRelShift(nn.Cell):
    """The same by the index of each key's distance; keys behind the query have the smallest."""

    def construct(self, x):
        _, _, queries, keys = x.shape
        rows, columns = ops.arange(queries).expand_dims(1), ops.arange(keys)
        index = ops.minimum(columns + (queries - 1) - rows, keys - 1).astype(ms.int32)
        return ops.gather_elements(x, 3, ops.broadcast_to(index, x.shape))


class FusedProjection(nn.Cell):
    """Queries, keys and values from one layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.qkv_net = build_dense(model, path)

    def construct(self, x):
        return ops.split(self.qkv_net(x), HEADS * HEAD_DIM, axis=-1)


class SeparateProjections(nn.Cell):
    """Queries, keys and values from a layer each."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        parts = np.split(model.weights[f"{path}.weight"], 3)
        self.q_net, self.k_net, self.v_net = (
            make_dense(np.ascontiguousarray(part), None) for part in parts
        )

    def construct(self, x):
        return self.q_net(x), self.k_net(x), self.v_net(x)


def split_heads(x):
    """Return (batch, heads, steps, HEAD_DIM) of (batch, steps, heads * HEAD_DIM)."""
    return x.reshape(x.shape[0], x.shape[1], HEADS, HEAD_DIM).transpose(0, 2, 1, 3)


class RelPartialLearnableMultiHeadAttn(nn.Cell):
    """Attention by contents and distances to this segment and the memory."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_written = model.variant == "written"
        projection = SeparateProjections if self.is_written else FusedProjection
        self.projection = projection(model, f"{path}.qkv")
        self.r_net = build_dense(model, f"{path}.position")
        self.o_net = build_dense(model, f"{path}.o")
        self.layer_norm = build_norm(model, f"{path}.norm")
        if self.is_written:
            self.rel_shift = GatheredRelShift()
        elif model.is_shift_gradient_straight:
            self.rel_shift = StraightRelShift()
        else:
            self.rel_shift = RelShift()
        self.scale = HEAD_DIM**-0.5
        self.is_memory_normed = model.is_memory_normed

    def join(self, w, mems):
        """Return the norm of the memory and the segment."""
        if mems is None:
            return self.layer_norm(w)
        if self.is_memory_normed:
            return self.layer_norm(ops.concat((mems, w), 1))
        return ops.concat((mems, self.layer_norm(w)), 1)

    def compute_scores(self, q, k, r, r_w_bias, r_r_bias):
        """Return scores before their scaling and mask."""
        u, v = r_w_bias.expand_dims(1), r_r_bias.expand_dims(1)
        keys, distances = k.swapaxes(2, 3), r.swapaxes(2, 3)
        if self.is_written:
            contents = ops.matmul(q, keys) + ops.matmul(u, keys)
            return contents + self.rel_shift(ops.matmul(q, distances) + ops.matmul(v, distances))
        return ops.matmul(q + u, keys) + self.rel_shift(ops.matmul(q + v, distances))

    def normalize(self, scores, mask):
        """Return the weights of keys that are not masked."""
        if self.is_written:
            powers = ops.exp(scores - ops.stop_gradient(scores.max(-1, keepdims=True)))
            powers = powers * (1 - mask.astype(ms.float32))
            return powers / powers.sum(-1, keepdims=True)
        return ops.softmax(ops.masked_fill(scores, mask, -1e9), -1)

    def construct(self, w, r, r_w_bias, r_r_bias, mask, mems):
        batch, queries, _ = w.shape
        q, k, v = self.projection(self.join(w, mems))
        q, k, v = split_heads(q[:, -queries:]), split_heads(k), split_heads(v)
        r = split_heads(self.r_net(r).expand_dims(0))
        scores = self.compute_scores(q, k, r, r_w_bias, r_r_bias) * self.scale
        vectors = ops.matmul(self.normalize(scores, mask), v)
        vectors = vectors.transpose(0, 2, 1, 3).reshape(batch, queries, HEADS * HEAD_DIM)
        return w + self.o_net(vectors)


class PositionwiseFF(nn.Cell):
    """Two linear layers around a GELU."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.layer_norm = build_norm(model, f"{path}.norm")
        self.up, self.down = (build_dense(model, f"{path}.{name}") for name in ("up", "down"))
        self.act = WrittenGELU() if model.variant == "written" else nn.GELU(approximate=False)

    def construct(self, x):
        return x + self.down(self.act(self.up(self.layer_norm(x))))


class RelPartialLearnableDecoderLayer(nn.Cell):
    """Attention and feed-forward layer."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.attn = RelPartialLearnableMultiHeadAttn(model, f"layers.{n}.attention")
        self.pos_ff = PositionwiseFF(model, f"layers.{n}.mlp")

    def construct(self, w, r, r_w_bias, r_r_bias, mask, mems):
        return self.pos_ff(self.attn(w, r, r_w_bias, r_r_bias, mask, mems))


class ProjectedAdaptiveLogSoftmaxLoss(nn.Cell):
    """Negative log probabilities (batch, steps) of targets, from the weights of the embedding."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.head_bias = build_parameter(model, "head.bias")
        self.tail_bias = build_parameter(model, "tail.bias")
        self.cluster_weight = build_parameter(model, "cluster.weight")
        self.cluster_bias = build_parameter(model, "cluster.bias")
        self.is_written = model.variant == "written"

    def normalize(self, logits):
        """Return log probabilities."""
        if self.is_written:
            return logits - ops.logsumexp(logits, -1, keepdim=True)
        return ops.log_softmax(logits, -1)

    def pick(self, log_probs, index):
        """Return the log probability at each step's index."""
        if self.is_written:
            on, off = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)
            return (ops.one_hot(index, log_probs.shape[-1], on, off) * log_probs).sum(-1)
        return ops.gather_elements(log_probs, 2, index.expand_dims(-1)).squeeze(-1)

    def construct(self, hidden, target, tables, proj_weight):
        head_weight, tail_weight = tables
        weight = ops.concat((head_weight, self.cluster_weight), 0)
        bias = ops.concat((self.head_bias, self.cluster_bias), 0)
        head_logprob = self.normalize(ops.matmul(hidden, weight.T) + bias)
        projected = ops.matmul(hidden, proj_weight)
        tail_logprob = self.normalize(ops.matmul(projected, tail_weight.T) + self.tail_bias)
        in_tail = (target >= HEAD_WORDS).astype(ms.float32)
        of_head = self.pick(head_logprob, ops.minimum(target, HEAD_WORDS))
        of_tail = self.pick(tail_logprob, ops.maximum(target - HEAD_WORDS, 0))
        return -(of_head + in_tail * of_tail)


def hide_later_keys(ones, mlen):
    """Return ones (queries, keys) where a key is hidden, else zeros."""
    return ops.triu(ones, 1 + mlen)


def hide_later_and_far_keys(ones, mlen):
    """Return the same with as many keys hidden for each query."""
    return ops.triu(ones, 1 + mlen) + ops.tril(ones, mlen - MEMORY)


class MemTransformerLM(nn.Cell):
    """Losses (batch, SEGMENT) and last hidden states of a segment, and the next memories."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        embedding = WrittenEmbedding if model.variant == "written" else AdaptiveEmbedding
        self.word_emb = embedding(model)
        self.pos_emb = PositionalEmbedding(model)
        self.r_w_bias = build_parameter(model, "content.bias")
        self.r_r_bias = build_parameter(model, "position.bias")
        self.layers = nn.CellList(
            [RelPartialLearnableDecoderLayer(model, n) for n in range(LAYERS)]
        )
        self.crit = ProjectedAdaptiveLogSoftmaxLoss(model)
        self.is_memory_stopped = model.is_memory_stopped
        self.hide = hide_later_and_far_keys if model.is_length_same else hide_later_keys

    def update_mems(self, core_out):
        """Return what the next segment remembers of a layer's input."""
        mems = core_out[:, -MEMORY:]
        return ops.stop_gradient(mems) if self.is_memory_stopped else mems

    def construct(self, tokens, target, mems):
        queries = tokens.shape[1]
        mlen = 0 if mems is None else MEMORY
        ones = ops.ones((queries, mlen + queries), ms.float32)
        mask = self.hide(ones, mlen).astype(ms.bool_)
        r = self.pos_emb(mlen + queries)
        core_out, new_mems = self.word_emb(tokens), ()
        for n, layer in enumerate(self.layers):
            new_mems += (self.update_mems(core_out),)
            layer_mems = None if mems is None else mems[n]
            core_out = layer(core_out, r, self.r_w_bias, self.r_r_bias, mask, layer_mems)
        tables = (self.word_emb.head_emb.embedding_table, self.word_emb.tail_emb.embedding_table)
        nll = self.crit(core_out, target, tables, self.word_emb.tail_proj.weight)
        return nll, core_out, new_mems


class LossCell(nn.Cell):
    """The mean loss of the next tokens of all segments, and that of the size of hidden states."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = MemTransformerLM(model)
        self.are_segments_averaged = model.are_segments_averaged

    def reduce(self, nll, hidden, target):
        """Return the loss of the steps that are not padding."""
        keep = (target != PAD).astype(ms.float32)
        loss = (nll * keep).sum() / keep.sum()
        return loss + ALPHA * (ops.square(hidden).mean(-1) * keep).sum() / keep.sum()

    def construct(self, tokens, targets):
        mems, nlls, states, segment_losses = None, (), (), ()
        for n in range(SEGMENTS):
            begin, end = n * SEGMENT, (n + 1) * SEGMENT
            target = targets[:, begin:end]
            nll, hidden, mems = self.network(tokens[:, begin:end], target, mems)
            nlls, states = (*nlls, nll), (*states, hidden)
            if self.are_segments_averaged:
                segment_losses += (self.reduce(nll, hidden, target),)
        if self.are_segments_averaged:
            return ops.stack(segment_losses).mean()
        return self.reduce(ops.concat(nlls, 1), ops.concat(states, 1), targets)
