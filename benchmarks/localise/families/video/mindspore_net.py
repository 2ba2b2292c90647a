"""The video classifier in MindSpore for graph mode.

Variant 'written': tubelets by reshaping and a linear layer, norms and losses written out, one
projection for q, k and v, operators of mint, and the head as a sum of two products.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.video.architecture import (
    BATCH,
    BLOCKS,
    CHANNELS,
    CLASSES,
    COLUMNS,
    EPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    ORDER_WEIGHT,
    PATCHES,
    ROWS,
    SMOOTHING,
    TIMES,
    TUBELET,
    Model,
)

EARLIER, LATER = np.triu_indices(TIMES, 1)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return NetWithMixupLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(model.weights[name])


def build_dense(model: Model, *paths: str) -> nn.Dense:
    """Return the linear layer at ``paths``, the rows of one behind those of the other."""
    weight = np.concatenate([model.weights[f"{path}.weight"] for path in paths])
    n_out, n_in = weight.shape
    if f"{paths[0]}.bias" not in model.weights:
        return nn.Dense(n_in, n_out, weight_init=Tensor(weight), has_bias=False)
    bias = np.concatenate([model.weights[f"{path}.bias"] for path in paths])
    return nn.Dense(n_in, n_out, weight_init=Tensor(weight), bias_init=Tensor(bias))


class WrittenLayerNorm(nn.Cell):
    """Layer norm from reductions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gain = Parameter(read(model, f"{path}.weight"))
        self.shift = Parameter(read(model, f"{path}.bias"))

    def construct(self, x):
        centered = x - mint.mean(x, dim=-1, keepdim=True)
        variance = mint.mean(mint.square(centered), dim=-1, keepdim=True)
        return centered / mint.sqrt(variance + EPS) * self.gain + self.shift


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the layer norm at ``path``."""
    if model.variant == "written":
        return WrittenLayerNorm(model, path)
    weight, bias = (read(model, f"{path}.{name}") for name in ("weight", "bias"))
    return nn.LayerNorm((HIDDEN,), gamma_init=weight, beta_init=bias, epsilon=EPS)


class TubeletEmbedding(nn.Cell):
    """Features of tubelets, (batch, times, patches, HIDDEN), by a convolution."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.proj = nn.Conv3d(
            CHANNELS,
            HIDDEN,
            TUBELET,
            TUBELET,
            pad_mode="valid",
            has_bias=True,
            weight_init=read(model, "tubelet.weight"),
            bias_init=read(model, "tubelet.bias"),
        )

    def construct(self, clips):
        x = self.proj(clips).reshape(BATCH, HIDDEN, TIMES, PATCHES)
        return x.transpose(0, 2, 3, 1)


class UnfoldedTubelets(nn.Cell):
    """The same by a linear layer."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        weight = model.weights["tubelet.weight"].reshape(HIDDEN, -1)
        bias = read(model, "tubelet.bias")
        self.linear = nn.Dense(weight.shape[1], HIDDEN, weight_init=Tensor(weight), bias_init=bias)

    def construct(self, clips):
        frames, height, width = TUBELET
        x = mint.reshape(clips, (BATCH, CHANNELS, TIMES, frames, ROWS, height, COLUMNS, width))
        x = mint.permute(x, (0, 2, 4, 6, 1, 3, 5, 7))
        return self.linear(mint.reshape(x, (BATCH, TIMES, PATCHES, -1)))


class MultiHeadAttention(nn.Cell):
    """Attention of all tokens of a row to each other."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.query = build_dense(model, f"{path}.q")
        self.key = build_dense(model, f"{path}.k")
        self.value = build_dense(model, f"{path}.v")
        self.out = build_dense(model, f"{path}.o")
        self.scale = HEAD_DIM**-0.5
        self.batch_matmul = ops.BatchMatMul()
        self.batch_matmul_transposed = ops.BatchMatMul(transpose_b=True)
        self.softmax = nn.Softmax(axis=-1)
        self.scaled_gradient = None
        if model.query_gradient != 1 and path.endswith(".time"):
            self.scaled_gradient = ScaledGradient(model.query_gradient)

    def split_heads(self, x):
        return x.reshape(x.shape[0], x.shape[1], HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def construct(self, x):
        q = self.split_heads(self.query(x)) * self.scale
        if self.scaled_gradient is not None:
            q = self.scaled_gradient(q)
        k, v = self.split_heads(self.key(x)), self.split_heads(self.value(x))
        probabilities = self.softmax(self.batch_matmul_transposed(q, k))
        context = self.batch_matmul(probabilities, v).transpose(0, 2, 1, 3)
        return self.out(context.reshape(x.shape))


class JointAttention(nn.Cell):
    """The same with one projection for q, k and v."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.in_proj = build_dense(model, *(f"{path}.{name}" for name in "qkv"))
        self.out_proj = build_dense(model, f"{path}.o")

    def construct(self, x):
        rows, tokens = x.shape[:2]
        q, k, v = mint.chunk(self.in_proj(x), 3, dim=-1)
        q = mint.transpose(mint.reshape(q, (rows, tokens, HEADS, HEAD_DIM)), 1, 2)
        k = mint.reshape(k, (rows, tokens, HEADS, HEAD_DIM))
        v = mint.transpose(mint.reshape(v, (rows, tokens, HEADS, HEAD_DIM)), 1, 2)
        scores = mint.matmul(q, mint.permute(k, (0, 2, 3, 1))) / HEAD_DIM**0.5
        context = mint.matmul(mint.nn.functional.softmax(scores, dim=-1), v)
        context = mint.transpose(context, 1, 2)
        return self.out_proj(mint.reshape(context, (rows, tokens, HIDDEN)))


class FeedForward(nn.Cell):
    """Two linear layers around gelu."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.dense1 = build_dense(model, f"{path}.up")
        self.activation = nn.GELU(approximate=False)
        self.dense2 = build_dense(model, f"{path}.down")

    def construct(self, x):
        return self.dense2(self.activation(self.dense1(x)))


class CopyToFrames(nn.Cell):
    """A copy of the class token (batch, 1, HIDDEN) for each time."""

    def construct(self, token):
        return ops.broadcast_to(token, (BATCH, TIMES, HIDDEN))


class AveragedCopyToFrames(nn.Cell):
    """The same with a backward pass of its own: the mean of the copies' gradients."""

    def construct(self, token):
        return ops.broadcast_to(token, (BATCH, TIMES, HIDDEN))

    def bprop(self, token, out, gradient):
        return (gradient.mean(1, keep_dims=True),)


class DividedAttentionBlock(nn.Cell):
    """Attention over time, attention over space, and feed-forward, each after a norm."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        attention = JointAttention if model.variant == "written" else MultiHeadAttention
        self.time_norm = build_norm(model, f"{path}.time_norm")
        self.time_attention = attention(model, f"{path}.time")
        self.time_dense = build_dense(model, f"{path}.time_fc")
        self.space_norm = build_norm(model, f"{path}.space_norm")
        self.space_attention = attention(model, f"{path}.space")
        self.ffn_norm = build_norm(model, f"{path}.mlp_norm")
        self.ffn = FeedForward(model, f"{path}.mlp")
        self.copy = AveragedCopyToFrames() if model.is_copy_gradient_mean else CopyToFrames()
        self.is_skip_early = model.is_skip_early

    def attend_time(self, patches):
        """Return what each patch gets from the same patch at all times."""
        series = patches.reshape(BATCH * PATCHES, TIMES, HIDDEN)
        series = self.time_attention(self.time_norm(series))
        return self.time_dense(series.reshape(BATCH, PATCHES * TIMES, HIDDEN))

    def attend_space(self, token, patches):
        """Return what all tokens get from the patches of their time and the class token."""
        copies = self.copy(token).reshape(BATCH * TIMES, 1, HIDDEN)
        frames = patches.reshape(BATCH, PATCHES, TIMES, HIDDEN).transpose(0, 2, 1, 3)
        frames = ops.concat((copies, frames.reshape(BATCH * TIMES, PATCHES, HIDDEN)), 1)
        frames = self.space_attention(self.space_norm(frames))
        of_token = frames[:, 0].reshape(BATCH, TIMES, HIDDEN).mean(1, keep_dims=True)
        of_patches = frames[:, 1:].reshape(BATCH, TIMES, PATCHES, HIDDEN).transpose(0, 2, 1, 3)
        return ops.concat((of_token, of_patches.reshape(BATCH, PATCHES * TIMES, HIDDEN)), 1)

    def construct(self, x):
        token, patches = x[:, :1], x[:, 1:]
        patches = patches + self.attend_time(patches)
        spatial = self.attend_space(token, patches)
        if not self.is_skip_early:
            x = ops.concat((token, patches), 1)
        x = x + spatial
        return x + self.ffn(self.ffn_norm(x))


class TemporalPooling(nn.Cell):
    """A mean over time, weighted by attention with a learned query."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.keys = build_dense(model, "pool.keys")
        self.query = build_dense(model, "pool.query")
        self.softmax = nn.Softmax(axis=model.pooling_axis)

    def construct(self, frames):
        weights = self.softmax(self.query(ops.tanh(self.keys(frames))))
        return (weights * frames).sum(1)


class ProductPooling(nn.Cell):
    """The same with matrix products."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.keys = build_dense(model, "pool.keys")
        self.query = Parameter(read(model, "pool.query.weight"), name="query")

    def construct(self, frames):
        scores = mint.matmul(self.query, mint.transpose(mint.tanh(self.keys(frames)), 1, 2))
        weights = mint.nn.functional.softmax(scores, dim=-1)
        return mint.squeeze(mint.matmul(weights, frames), 1)


class ClipHead(nn.Cell):
    """Logits of a class token and a feature of the clip."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.reduce = build_dense(model, "head.reduce")
        self.classify = build_dense(model, "head.classes")

    def construct(self, token, pooled):
        return self.classify(self.reduce(ops.concat((token, pooled), 1)))


class SummedHead(nn.Cell):
    """The same with a matrix for each input."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        weight = model.weights["head.reduce.weight"].T.copy()
        self.of_token = Parameter(Tensor(weight[:HIDDEN].copy()), name="of_token")
        self.of_clip = Parameter(Tensor(weight[HIDDEN:].copy()), name="of_clip")
        self.bias = Parameter(read(model, "head.reduce.bias"), name="bias")
        self.classify = build_dense(model, "head.classes")

    def construct(self, token, pooled):
        reduced = mint.matmul(token, self.of_token) + mint.matmul(pooled, self.of_clip)
        return self.classify(reduced + self.bias)


class VideoTransformer(nn.Cell):
    """Logits (batch, CLASSES) of clips, and scores of the order of times (batch, TIMES, 1)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        is_written = model.variant == "written"
        self.embedding = UnfoldedTubelets(model) if is_written else TubeletEmbedding(model)
        self.cls_token = Parameter(read(model, "class_token.weight"), name="cls_token")
        self.space_position = Parameter(read(model, "space.weight"), name="space_position")
        self.time_position = Parameter(read(model, "time.weight"), name="time_position")
        self.layers = nn.CellList([DividedAttentionBlock(model, n) for n in range(BLOCKS)])
        self.norm = build_norm(model, "norm")
        self.pooling = ProductPooling(model) if is_written else TemporalPooling(model)
        self.head = SummedHead(model) if is_written else ClipHead(model)
        self.order = build_dense(model, "order")
        self.is_time_first = model.is_time_first
        self.is_order_detached = model.is_order_detached

    def embed(self, clips):
        """Return the tokens with their positions, the times of a patch next to each other."""
        x = self.embedding(clips)
        x = x + self.space_position[:, 1:].expand_dims(1) + self.time_position.expand_dims(2)
        if not self.is_time_first:
            x = x.transpose(0, 2, 1, 3)
        x = x.reshape(BATCH, PATCHES * TIMES, HIDDEN)
        token = self.cls_token + self.space_position[:, :1]
        return ops.concat((ops.tile(token, (BATCH, 1, 1)), x), 1)

    def construct(self, clips):
        x = self.embed(clips)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        frames = x[:, 1:].reshape(BATCH, PATCHES, TIMES, HIDDEN).mean(1)
        logits = self.head(x[:, 0], self.pooling(frames))
        if self.is_order_detached:
            frames = ops.stop_gradient(frames)
        return logits, self.order(frames)


class OrderLoss(nn.Cell):
    """Softplus of an earlier time's score minus a later one's, the mean over the pairs."""

    def __init__(self) -> None:
        super().__init__()
        mask = np.triu(np.ones((TIMES, TIMES), np.float32), 1)
        self.mask, self.count = Tensor(mask), BATCH * float(mask.sum())
        self.softplus = ops.Softplus()

    def construct(self, scores):
        losses = self.softplus(scores - scores.transpose(0, 2, 1))
        return (losses * self.mask).sum() / self.count


class PairOrderLoss(nn.Cell):
    """The same from gathered pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.earlier = Tensor(EARLIER.astype(np.int32))
        self.later = Tensor(LATER.astype(np.int32))

    def construct(self, scores):
        earlier, later = ops.gather(scores, self.earlier, 1), ops.gather(scores, self.later, 1)
        return mint.mean(mint.log(1 + mint.exp(earlier - later)))


class WrittenCrossEntropy(nn.Cell):
    """Cross entropy of soft targets that sum to 1, from the logarithm of the sum."""

    def construct(self, logits, targets):
        log_sums = ops.logsumexp(logits, -1)
        return mint.mean(log_sums - mint.sum(targets * logits, dim=-1))


class NetWithMixupLoss(nn.Cell):
    """The loss of mixed clips, and that of the order of times."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        is_written = model.variant == "written"
        self.network = VideoTransformer(model)
        self.on_value = Tensor(1.0 - SMOOTHING + SMOOTHING / CLASSES, ms.float32)
        self.off_value = Tensor(SMOOTHING / CLASSES, ms.float32)
        self.order_loss = PairOrderLoss() if is_written else OrderLoss()
        self.loss = (
            WrittenCrossEntropy()
            if is_written
            else nn.SoftmaxCrossEntropyWithLogits(sparse=False, reduction="mean")
        )

    def construct(self, clips, labels, lam):
        share = lam.reshape(BATCH, 1, 1, 1, 1)
        mixed = share * clips + (1.0 - share) * ops.flip(clips, (0,))
        logits, scores = self.network(mixed)
        targets = ops.one_hot(labels, CLASSES, self.on_value, self.off_value)
        share = lam.reshape(BATCH, 1)
        targets = share * targets + (1.0 - share) * ops.flip(targets, (0,))
        return self.loss(logits, targets) + ORDER_WEIGHT * self.order_loss(scores)
