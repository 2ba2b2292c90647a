"""The quantized classifier with PyTorch's operators for fake quantization."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.qat.architecture import BLOCKS, Model, Quantizer


class StraightThrough(torch.autograd.Function):
    """Round, clip and scale back."""

    @staticmethod
    def forward(context, x, scale, quantizer):
        steps = x / scale
        steps = torch.floor(steps) if quantizer.rounding == "floor" else torch.round(steps)
        shifted = steps + quantizer.zero_point
        clipped = torch.clamp(shifted, quantizer.low, quantizer.high)
        is_passing = (clipped == shifted) | quantizer.passes_clipped
        context.save_for_backward(is_passing & quantizer.passes_gradient)
        return (clipped - quantizer.zero_point) * scale

    @staticmethod
    def backward(context, gradient):
        (is_passing,) = context.saved_tensors
        return gradient * is_passing, None, None


class FakeQuantize(nn.Module):
    """One quantizer, of a weight or of an activation."""

    def __init__(self, model: Model, quantizer: Quantizer) -> None:
        super().__init__()
        self.quantizer = quantizer
        self.register_buffer("scale", torch.from_numpy(np.array(quantizer.scale)))
        points = torch.full(self.scale.shape, quantizer.zero_point, dtype=torch.int32)
        self.register_buffer("zero_point", points)
        is_plain = (
            quantizer.rounding == "nearest"
            and quantizer.passes_gradient
            and not quantizer.passes_clipped
        )
        self.is_function = model.variant == "function" or not is_plain
        self.is_detached = model.variant == "detached" and is_plain

    def forward(self, x: Tensor) -> Tensor:
        quantizer = self.quantizer
        limits = (quantizer.low, quantizer.high)
        if self.is_detached:
            return self.round_detached(x)
        if self.is_function:
            scale = self.scale
            if scale.ndim and quantizer.axis == 0:
                scale = scale[:, None]
            return StraightThrough.apply(x, scale, quantizer)
        if self.scale.ndim:
            return torch.fake_quantize_per_channel_affine(
                x, self.scale, self.zero_point, quantizer.axis, *limits
            )
        return torch.fake_quantize_per_tensor_affine(x, self.scale, self.zero_point, *limits)

    def round_detached(self, x: Tensor) -> Tensor:
        """Clip the input, then add what rounding changes, without a gradient."""
        quantizer, scale = self.quantizer, self.scale
        if scale.ndim and quantizer.axis == 0:
            scale = scale[:, None]
        # half a step beyond the limits still rounds to them
        lowest = (quantizer.low - quantizer.zero_point - 0.5) * scale
        highest = (quantizer.high - quantizer.zero_point + 0.5) * scale
        clipped = torch.minimum(torch.maximum(x, lowest), highest)
        steps = torch.round(x / scale) + quantizer.zero_point
        steps = torch.clamp(steps, quantizer.low, quantizer.high)
        rounded = (steps - quantizer.zero_point) * scale
        return clipped + (rounded - clipped).detach()


class QuantizedLinear(nn.Linear):
    def __init__(self, model: Model, name: str) -> None:
        weight, bias = model.weights[f"{name}.weight"], model.weights[f"{name}.bias"]
        knobs = model.layer(name)
        super().__init__(weight.shape[1], weight.shape[0], bias=knobs.has_bias)
        self.weight.data.copy_(torch.from_numpy(np.array(weight)))
        if knobs.has_bias:
            self.bias.data.copy_(torch.from_numpy(np.array(bias)))
        self.weight_fake_quant = FakeQuantize(model, model.weight_quantizer(name))
        self.is_bias_doubled = knobs.is_bias_doubled
        self.is_activation_quantized = knobs.is_activation_quantized
        if self.is_activation_quantized:
            self.activation_fake_quant = FakeQuantize(model, model.input_quantizer(name))

    def forward(self, x: Tensor) -> Tensor:
        if self.is_activation_quantized:
            x = self.activation_fake_quant(x)
        y = F.linear(x, self.weight_fake_quant(self.weight), self.bias)
        return y + self.bias if self.is_bias_doubled else y


class Block(nn.Module):
    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.up = QuantizedLinear(model, f"blocks.{n}.up")
        self.down = QuantizedLinear(model, f"blocks.{n}.down")
        self.has_skip = model.has_skip or n < BLOCKS - 1
        self.branch_scale = model.branch_scale if n == BLOCKS - 1 else 1.0
        self.is_skip_quantized = model.is_skip_quantized and n == BLOCKS - 1
        self.is_sum_rectified = model.is_sum_rectified and n == BLOCKS - 1

    def forward(self, x: Tensor) -> Tensor:
        if self.is_skip_quantized:
            x = self.up.activation_fake_quant(x)
        y = self.down(F.relu(self.up(x)))
        if self.branch_scale != 1:
            y = y * self.branch_scale
        if self.is_sum_rectified:
            return F.relu(x + y)
        return x + y if self.has_skip else y


class Classifier(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed = QuantizedLinear(model, "embed")
        self.blocks = nn.ModuleList(Block(model, n) for n in range(BLOCKS))
        weight, bias = model.weights["head.weight"], model.weights["head.bias"]
        self.head = nn.Linear(weight.shape[1], weight.shape[0])
        self.head.weight.data.copy_(torch.from_numpy(np.array(weight)))
        self.head.bias.data.copy_(torch.from_numpy(np.array(bias)))
        self.label_smoothing, self.reduction = model.label_smoothing, model.loss_reduction

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(features)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(
            self.head(x), labels, reduction=self.reduction, label_smoothing=self.label_smoothing
        )


def build_loss(model: Model) -> nn.Module:
    """Return the loss with the weights and knobs of the model."""
    if model.activation != "relu" or model.weight_gradient != 1 or model.is_head_half:
        raise SystemExit("a fault of the MindSpore net")
    return Classifier(model)
