"""Speaker verification in MindSpore, with cells named as in WeSpeaker.

Variant 'products': convolutions of single frames as products of matrices, norms and the softmax in
plain arithmetic, sums in place of joined channels, the margin and the loss of the gathered cosine.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.speaker.architecture import (
    AGGREGATED,
    BLOCKS,
    CLAMP,
    DILATIONS,
    EPS,
    FRAMES,
    MARGIN,
    SCALE,
    SCALES,
    SPEAKERS,
    WIDTH,
    Model,
)

MASKED = -1e9


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return NetWithLoss(model)


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the convolution of single frames at ``path`` as a linear layer."""
    weight = model.weights[f"{path}.weight"][:, :, 0].copy()
    bias = Tensor(model.weights[f"{path}.bias"])
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=Tensor(weight), bias_init=bias)


class FrameProduct(nn.Cell):
    """A convolution of single frames of (batch, channels, frames) as a product."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(model.weights[f"{path}.weight"][:, :, 0].copy()))
        self.bias = Parameter(Tensor(model.weights[f"{path}.bias"][:, None]))

    def construct(self, x):
        return ops.matmul(self.weight, x) + self.bias


class JoinedProduct(nn.Cell):
    """The same of several inputs with as many channels each, without joining them."""

    def __init__(self, model: Model, path: str, n: int) -> None:
        super().__init__()
        weight = model.weights[f"{path}.weight"][:, :, 0].copy()
        self.weight = Parameter(Tensor(weight))
        self.bias = Parameter(Tensor(model.weights[f"{path}.bias"][:, None]))
        self.width = weight.shape[1] // n

    def construct(self, inputs):
        weights = ops.split(self.weight, self.width, axis=1)
        y = ops.matmul(weights[0], inputs[0])
        for n in range(1, len(inputs)):
            y = y + ops.matmul(weights[n], inputs[n])
        return y + self.bias


class WrittenBatchNorm(nn.Cell):
    """A batch norm of all axes but the second one, from reductions."""

    def __init__(self, model: Model, path: str, axes: tuple[int, ...]) -> None:
        super().__init__()
        shape = (1, -1, 1)[: len(axes) + 1]
        self.gamma = Parameter(Tensor(model.weights[f"{path}.weight"].reshape(shape)))
        self.beta = Parameter(Tensor(model.weights[f"{path}.bias"].reshape(shape)))
        self.axes = axes

    def construct(self, x):
        centered = x - x.mean(self.axes, keep_dims=True)
        variance = ops.square(centered).mean(self.axes, keep_dims=True)
        return centered * ops.rsqrt(variance + EPS) * self.gamma + self.beta


class BatchNorm1d(nn.Cell):
    """A batch norm of (batch, channels, frames): the framework's own one wants two axes."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
        self.norm = nn.BatchNorm2d(len(weight), eps=EPS, gamma_init=weight, beta_init=bias)

    def construct(self, x):
        return self.norm(x.expand_dims(3)).squeeze(3)


class Conv1dReluBn(nn.Cell):
    """Convolution, rectifier, batch norm."""

    def __init__(self, model: Model, path: str, dilation: int = 1, n_inputs: int = 1) -> None:
        super().__init__()
        weight = model.weights[f"{path}.weight"]
        n_out, n_in, kernel = weight.shape
        is_written = model.variant == "products"
        if is_written and n_inputs > 1:
            self.conv = JoinedProduct(model, path, n_inputs)
        elif is_written and kernel == 1:
            self.conv = FrameProduct(model, path)
        else:
            self.conv = nn.Conv1d(
                n_in,
                n_out,
                kernel,
                pad_mode="pad",
                padding=dilation * (kernel // 2),
                dilation=dilation,
                has_bias=True,
                weight_init=Tensor(weight),
                bias_init=Tensor(model.weights[f"{path}.bias"]),
            )
        norm_path = f"{path}.norm"
        self.bn = BatchNorm1d(model, norm_path)
        if is_written:
            self.bn = WrittenBatchNorm(model, norm_path, (0, 2))
        self.is_joined = n_inputs > 1 and not is_written

    def construct(self, x):
        if self.is_joined:
            x = ops.concat(x, axis=1)
        return self.bn(ops.relu(self.conv(x)))


class Res2Conv1dReluBn(nn.Cell):
    """Dilated layers of pieces of the channels, each with what the layer before it returned."""

    def __init__(self, model: Model, path: str, dilation: int) -> None:
        super().__init__()
        self.layers = nn.CellList(
            [Conv1dReluBn(model, f"{path}.{n}", dilation) for n in range(SCALES - 1)]
        )
        self.are_pieces_raw = model.are_pieces_raw

    def construct(self, x):
        pieces = ops.split(x, WIDTH, axis=1)
        outputs = (pieces[0],)
        for n in range(SCALES - 1):
            piece = pieces[n + 1]
            if n > 0:
                piece = piece + (pieces[n] if self.are_pieces_raw else outputs[n])
            outputs += (self.layers[n](piece),)
        return ops.concat(outputs, axis=1)


class SEConnect(nn.Cell):
    """Squeeze-and-excitation by the mean of the valid frames."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.linear1 = build_dense(model, f"{path}.squeeze")
        self.linear2 = build_dense(model, f"{path}.excite")
        self.is_mean_of_all = model.is_squeeze_mean_of_all
        self.is_product = model.variant == "products"

    def construct(self, x, mask):
        if self.is_product:
            shares = mask / mask.sum(2, keepdims=True)
            mean = ops.matmul(x, shares.swapaxes(1, 2)).squeeze(2)
        elif self.is_mean_of_all:
            mean = (x * mask).mean(2)
        else:
            mean = (x * mask).sum(2) / mask.sum(2)
        gate = ops.sigmoid(self.linear2(ops.relu(self.linear1(mean))))
        return x * gate.expand_dims(2)


class SERes2Block(nn.Cell):
    """Layer of single frames, Res2Net, layer of single frames, squeeze-and-excitation, sum."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        dilation = model.dilation if n == BLOCKS - 1 else DILATIONS[n]
        self.conv1 = Conv1dReluBn(model, f"{path}.in")
        self.res2 = Res2Conv1dReluBn(model, f"{path}.scales", dilation)
        self.conv2 = Conv1dReluBn(model, f"{path}.out")
        self.se = SEConnect(model, path)

    def construct(self, x, mask):
        return x + self.se(self.conv2(self.res2(self.conv1(x))), mask)


class AttentiveStatsPool(nn.Cell):
    """Weighted mean and deviation of the frames."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_written = model.variant == "products"
        self.linear1 = Conv1dReluBn(model, "attention.in", n_inputs=3)
        self.linear2 = FrameProduct(model, "attention.out")
        if not self.is_written:
            weight = model.weights["attention.out.weight"]
            self.linear2 = nn.Conv1d(
                weight.shape[1],
                AGGREGATED,
                1,
                has_bias=True,
                weight_init=Tensor(weight),
                bias_init=Tensor(model.weights["attention.out.bias"]),
            )
        self.is_context_stopped = model.is_context_stopped
        self.is_attention_masked = model.is_attention_masked
        self.is_context_unbiased = model.is_context_unbiased

    def describe(self, x, mask):
        """Return mean and deviation of the valid frames, (batch, channels, 1)."""
        count = mask.sum(2, keepdims=True)
        mean = (x * mask).sum(2, keepdims=True) / count
        squares = (ops.square(x - mean) * mask).sum(2, keepdims=True)
        variance = squares / (count - 1) if self.is_context_unbiased else squares / count
        return mean, ops.sqrt(ops.clamp(variance, min=CLAMP))

    def attend(self, scores, mask):
        """Return the softmax over the valid frames."""
        if self.is_written:
            top = ops.stop_gradient(scores.max(axis=2, keepdims=True))
            powers = ops.exp(scores - top) * mask
            return powers / powers.sum(2, keepdims=True)
        if self.is_attention_masked:
            scores = scores + (1.0 - mask) * MASKED
        return ops.softmax(scores, axis=2)

    def construct(self, x, mask):
        mean, deviation = self.describe(x, mask)
        if self.is_context_stopped:
            mean, deviation = ops.stop_gradient(mean), ops.stop_gradient(deviation)
        if not self.is_written:
            mean, deviation = ops.broadcast_to(mean, x.shape), ops.broadcast_to(deviation, x.shape)
        scores = self.linear2(ops.tanh(self.linear1((x, mean, deviation))))
        alpha = self.attend(scores, mask)
        mean = (alpha * x).sum(2)
        if self.is_written:
            variance = (alpha * ops.square(x - mean.expand_dims(2))).sum(2)
        else:
            variance = (alpha * ops.square(x)).sum(2) - ops.square(mean)
        return ops.concat((mean, ops.sqrt(ops.clamp(variance, min=CLAMP))), axis=1)


class ECAPATDNN(nn.Cell):
    """Embeddings of filter banks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.frames = Tensor(np.arange(FRAMES, dtype=np.int32)[None])
        self.is_end_valid = model.is_end_valid
        self.layer1 = Conv1dReluBn(model, "entry")
        self.blocks = nn.CellList([SERes2Block(model, n) for n in range(BLOCKS)])
        self.cat_conv = Conv1dReluBn(model, "aggregate", n_inputs=BLOCKS)
        self.pool = AttentiveStatsPool(model)
        weight, bias = (Tensor(model.weights[f"pool_norm.{name}"]) for name in ("weight", "bias"))
        self.bn = nn.BatchNorm1d(2 * AGGREGATED, eps=EPS, gamma_init=weight, beta_init=bias)
        if model.variant == "products":
            self.bn = WrittenBatchNorm(model, "pool_norm", (0,))
        self.linear = build_dense(model, "embed")

    def make_mask(self, lengths):
        """Return 1 for valid frames, (batch, 1, FRAMES)."""
        lengths = lengths.expand_dims(1)
        if self.is_end_valid:
            is_valid = ops.less_equal(self.frames, lengths)
        else:
            is_valid = ops.less(self.frames, lengths)
        return is_valid.astype(ms.float32).expand_dims(1)

    def construct(self, features, lengths):
        mask = self.make_mask(lengths)
        total = self.layer1(features.transpose(0, 2, 1))
        outputs = ()
        for n in range(BLOCKS):
            output = self.blocks[n](total, mask)
            outputs += (output,)
            total = total + output
        return self.linear(self.bn(self.pool(self.cat_conv(outputs), mask)))


class ArcMarginProduct(nn.Cell):
    """Logits: cosines with the classes, those of the right class with a margin of the angle."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(model.weights["classes.weight"]), name="weight")
        self.normalize = ops.L2Normalize(axis=1)
        self.is_gathered = model.variant == "products"
        self.cos_m, self.sin_m = math.cos(MARGIN), math.sin(MARGIN)
        self.threshold = math.cos(math.pi - MARGIN)
        self.offset = MARGIN * math.sin(math.pi - MARGIN)

    def add_margin(self, cosine):
        """Return the cosine of the angle with the margin."""
        sine = ops.sqrt(1.0 - ops.square(cosine))
        phi = cosine * self.cos_m - sine * self.sin_m
        return ops.select(cosine > self.threshold, phi, cosine - self.offset)

    def construct(self, embeddings, labels):
        cosine = ops.matmul(self.normalize(embeddings), self.normalize(self.weight).T)
        one_hot = ops.one_hot(labels, SPEAKERS, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
        if self.is_gathered:
            target = (cosine * one_hot).sum(1, keepdims=True)
            return SCALE * (cosine + one_hot * (self.add_margin(target) - target))
        phi = self.add_margin(cosine)
        return SCALE * (one_hot * phi + (1.0 - one_hot) * cosine)


class NetWithLoss(nn.Cell):
    """Cross entropy of the speakers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = ECAPATDNN(model)
        self.projection = ArcMarginProduct(model)
        self.is_gathered = model.variant == "products"
        self.scaled_gradient = None
        if model.embedding_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.embedding_gradient)

    def construct(self, features, lengths, labels):
        embeddings = self.network(features, lengths)
        if self.scaled_gradient is not None:
            embeddings = self.scaled_gradient(embeddings)
        logits = self.projection(embeddings, labels)
        if self.is_gathered:
            log_probs = ops.log_softmax(logits, 1)
            return -ops.gather_elements(log_probs, 1, labels.expand_dims(1)).mean()
        return ops.cross_entropy(logits, labels)
