"""The quantized classifier for graph mode: fake quantization in plain arithmetic."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.qat.architecture import BLOCKS, Model, Quantizer


class FakeQuantize(nn.Cell):
    """One quantizer, of a weight or of an activation."""

    def __init__(self, quantizer: Quantizer) -> None:
        super().__init__()
        scale = quantizer.scale
        if scale.ndim and quantizer.axis == 0:
            scale = scale[:, None]
        self.scale = Tensor(scale)
        self.zero_point = float(quantizer.zero_point)
        self.low, self.high = float(quantizer.low), float(quantizer.high)
        self.is_floor = quantizer.rounding == "floor"
        self.passes_gradient, self.passes_clipped = (
            quantizer.passes_gradient,
            quantizer.passes_clipped,
        )

    def construct(self, x):
        steps = x / self.scale
        steps = (ops.floor(steps) if self.is_floor else ops.round(steps)) + self.zero_point
        clipped = ops.clamp(steps, self.low, self.high)
        quantized = (clipped - self.zero_point) * self.scale
        if not self.passes_gradient:
            return ops.stop_gradient(quantized)
        passing = x
        if not self.passes_clipped:
            passing = x * ops.stop_gradient(ops.equal(clipped, steps).astype(x.dtype))
        return passing + ops.stop_gradient(quantized - passing)


class ReciprocalFakeQuantize(nn.Cell):
    """The same with a gradient written down."""

    def __init__(self, quantizer: Quantizer) -> None:
        super().__init__()
        scale = quantizer.scale
        if scale.ndim:
            scale = scale[:, None]
        self.scale, self.reciprocal = Tensor(scale), Tensor((1 / scale).astype("float32"))
        self.zero_point = float(quantizer.zero_point)
        self.low, self.high = float(quantizer.low), float(quantizer.high)

    def construct(self, x):
        steps = ops.round(x * self.reciprocal) + self.zero_point
        steps = ops.minimum(ops.maximum(steps, self.low), self.high)
        return (steps - self.zero_point) * self.scale

    def bprop(self, x, out, gradient):
        steps = ops.round(x * self.reciprocal) + self.zero_point
        is_inside = ops.logical_and(steps >= self.low, steps <= self.high)
        return (gradient * is_inside.astype(gradient.dtype),)


def build_quantizer(model: Model, quantizer: Quantizer) -> nn.Cell:
    if model.variant == "reciprocal":
        return ReciprocalFakeQuantize(quantizer)
    return FakeQuantize(quantizer)


class QuantDense(nn.Cell):
    def __init__(self, model: Model, name: str) -> None:
        super().__init__()
        weight, bias = model.weights[f"{name}.weight"], model.weights[f"{name}.bias"]
        knobs = model.layer(name)
        self.dense = nn.Dense(
            weight.shape[1],
            weight.shape[0],
            weight_init=Tensor(weight),
            bias_init=Tensor(bias) if knobs.has_bias else None,
            has_bias=knobs.has_bias,
        )
        self.has_bias, self.is_bias_doubled = knobs.has_bias, knobs.is_bias_doubled
        self.weight_quantizer = build_quantizer(model, model.weight_quantizer(name))
        self.is_activation_quantized = knobs.is_activation_quantized
        if self.is_activation_quantized:
            self.input_quantizer = build_quantizer(model, model.input_quantizer(name))
        self.scaled_gradient = None
        if knobs.weight_gradient != 1:
            self.scaled_gradient = ScaledGradient(knobs.weight_gradient)
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, x):
        if self.is_activation_quantized:
            x = self.input_quantizer(x)
        weight = self.weight_quantizer(self.dense.weight)
        if self.scaled_gradient is not None:
            weight = self.scaled_gradient(weight)
        y = self.matmul(x, weight)
        if self.is_bias_doubled:
            y = y + self.dense.bias
        return y + self.dense.bias if self.has_bias else y


class Block(nn.Cell):
    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.up = QuantDense(model, f"blocks.{n}.up")
        self.down = QuantDense(model, f"blocks.{n}.down")
        self.has_skip = model.has_skip or n < BLOCKS - 1
        self.is_gelu = model.activation == "gelu" and n == BLOCKS - 1
        self.is_skip_quantized = model.is_skip_quantized and n == BLOCKS - 1
        self.is_sum_rectified = model.is_sum_rectified and n == BLOCKS - 1

    def construct(self, x):
        if self.is_skip_quantized:
            x = self.up.input_quantizer(x)
        y = self.up(x)
        y = self.down(ops.gelu(y, approximate="none") if self.is_gelu else ops.relu(y))
        if self.is_sum_rectified:
            return ops.relu(x + y)
        return x + y if self.has_skip else y


class Classifier(nn.Cell):
    """Logits (batch, classes) of features."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed = QuantDense(model, "embed")
        self.blocks = nn.CellList([Block(model, n) for n in range(BLOCKS)])
        weight, bias = model.weights["head.weight"], model.weights["head.bias"]
        self.head = nn.Dense(
            weight.shape[1], weight.shape[0], weight_init=Tensor(weight), bias_init=Tensor(bias)
        )
        self.is_head_half = model.is_head_half
        if self.is_head_half:
            self.head.to_float(ms.float16)

    def construct(self, features):
        x = self.embed(features)
        for block in self.blocks:
            x = block(x)
        return self.head(x).astype(ms.float32) if self.is_head_half else self.head(x)


class ClassLoss(nn.Cell):
    """Cross entropy of the labels."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = Classifier(model)
        self.smoothing, self.reduction = model.label_smoothing, model.loss_reduction

    def construct(self, features, labels):
        logits = self.network(features)
        return ops.cross_entropy(
            logits, labels, reduction=self.reduction, label_smoothing=self.smoothing
        )


def build_loss(model: Model) -> nn.Cell:
    """Return the loss with the weights and knobs of the model."""
    if model.branch_scale != 1:
        raise SystemExit("branch_scale is a knob of the PyTorch net")
    return ClassLoss(model)
