"""The image classifier in MindSpore, with cells as those of MindCV's ConvNeXt.

Variant 'unfolded': patches by reshaping and a linear layer, norms over the second axis, gelu and
loss in plain arithmetic.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.convnext.architecture import (
    CHANNELS,
    CLASSES,
    DEPTHS,
    EPS,
    KERNEL,
    LAST_STAGE,
    PATCH,
    SMOOTHING,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return NetWithLoss(model)


def build_linear(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, bias_init=bias)


class Patches(nn.Cell):
    """A convolution whose stride is its kernel: patches by reshaping, and a linear layer."""

    def __init__(self, model: Model, path: str, size: int) -> None:
        super().__init__()
        weight = model.weights[f"{path}.weight"]
        self.size, self.n_out = size, len(weight)
        self.proj = nn.Dense(
            weight[0].size,
            len(weight),
            weight_init=Tensor(weight.reshape(len(weight), -1)),
            bias_init=Tensor(model.weights[f"{path}.bias"]),
        )

    def construct(self, x):
        batch, channels, height, width = x.shape
        rows, columns = height // self.size, width // self.size
        x = x.reshape(batch, channels, rows, self.size, columns, self.size)
        x = x.transpose(0, 2, 4, 1, 3, 5).reshape(batch * rows * columns, -1)
        return self.proj(x).reshape(batch, rows, columns, self.n_out).transpose(0, 3, 1, 2)


def build_patches(model: Model, path: str, size: int) -> nn.Cell:
    """Return the convolution at ``path``, whose stride is its kernel."""
    if model.variant == "unfolded":
        return Patches(model, path, size)
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.Conv2d(
        weight.shape[1],
        weight.shape[0],
        size,
        size,
        pad_mode="valid",
        has_bias=True,
        weight_init=weight,
        bias_init=bias,
    )


class ConvNextLayerNorm(nn.LayerNorm):
    """Layer norm of the channels, which are the second axis or the last one."""

    def __init__(self, model: Model, path: str, norm_axis: int) -> None:
        weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
        super().__init__(weight.shape, gamma_init=weight, beta_init=bias, epsilon=EPS)
        self.norm_axis = norm_axis

    def construct(self, x):
        if self.norm_axis == 1:
            return super().construct(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        return super().construct(x)


class WrittenNorm(nn.Cell):
    """Layer norm of the second axis in plain arithmetic."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.beta = Parameter(Tensor(model.weights[f"{path}.bias"]))

    def construct(self, x):
        centered = x - x.mean(1, keep_dims=True)
        variance = ops.square(centered).mean(1, keep_dims=True)
        x = centered / ops.sqrt(variance + EPS)
        return x * self.gamma.reshape(1, -1, 1, 1) + self.beta.reshape(1, -1, 1, 1)


def build_norm(model: Model, path: str, norm_axis: int = -1) -> nn.Cell:
    """Return the layer norm at ``path``."""
    if path == f"down.{LAST_STAGE}.norm" and model.is_last_down_grouped:
        weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
        return nn.GroupNorm(1, len(weight), eps=EPS, gamma_init=weight, beta_init=bias)
    if norm_axis == 1 and model.variant == "unfolded":
        return WrittenNorm(model, path)
    return ConvNextLayerNorm(model, path, norm_axis)


class Block(nn.Cell):
    """Depthwise convolution, norm, inverted bottleneck, layer scale, residual sum."""

    def __init__(self, model: Model, stage: int, n: int) -> None:
        super().__init__()
        model, path, channels = model.block(stage, n), f"stages.{stage}.{n}", CHANNELS[stage]
        weights, has_bias = model.weights, model.has_depthwise_bias
        self.dwconv = nn.Conv2d(
            channels,
            channels,
            KERNEL,
            pad_mode="pad",
            padding=KERNEL // 2,
            group=channels,
            has_bias=has_bias,
            weight_init=Tensor(weights[f"{path}.depthwise.weight"]),
            bias_init=Tensor(weights[f"{path}.depthwise.bias"]) if has_bias else None,
        )
        self.norm = build_norm(model, f"{path}.norm")
        self.pwconv1 = build_linear(model, f"{path}.up")
        self.act = nn.GELU(approximate=model.gelu == "tanh")
        self.pwconv2 = build_linear(model, f"{path}.down")
        scale = weights[f"{path}.scale"]
        if model.is_scale_spatial:
            scale = scale.reshape(-1, 1, 1)
        self.gamma_ = Parameter(Tensor(scale), name="gamma_")
        self.is_scale_spatial = model.is_scale_spatial
        self.are_pixels_exchanged = model.are_pixels_exchanged
        self.is_gelu_written = model.variant == "unfolded"
        self.is_residual_filtered = model.is_residual_filtered
        self.path_scale = model.path_scale
        self.is_mlp_half = model.mlp_dtype == "float16"
        if self.is_mlp_half:
            self.pwconv1.to_float(ms.float16)
            self.pwconv2.to_float(ms.float16)
        self.scaled_gradient = None
        if model.scale_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.scale_gradient)

    def activate(self, x):
        """Return the exact gelu."""
        if self.is_gelu_written:
            return 0.5 * x * (1 + ops.erf(x * 2**-0.5))
        return self.act(x)

    def scale(self, x):
        """Return (batch, height, width, channels) times the layer scale, channels second."""
        gamma = self.gamma_
        if self.scaled_gradient is not None:
            gamma = self.scaled_gradient(gamma)
        if self.is_scale_spatial:
            return gamma * x.transpose(0, 3, 1, 2)
        if self.are_pixels_exchanged:
            return (gamma * x).swapaxes(1, 3)
        return (gamma * x).transpose(0, 3, 1, 2)

    def construct(self, x):
        shortcut = x
        x = self.dwconv(x)
        if self.is_residual_filtered:
            shortcut = x
        x = self.norm(x.transpose(0, 2, 3, 1))
        x = self.pwconv2(self.activate(self.pwconv1(x)))
        if self.is_mlp_half:
            x = x.astype(ms.float32)
        x = self.scale(x)
        if self.path_scale != 1:
            x = x * self.path_scale
        return shortcut + x


class ConvNeXt(nn.Cell):
    """Logits of images, (batch, classes)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        # once for all images: (x - mean) / deviation
        mean, deviation = (
            np.array(values, dtype=np.float32).reshape(1, 3, 1, 1)
            for values in (model.pixel_mean, model.pixel_deviation)
        )
        self.image_mean, self.image_std = Tensor(mean), Tensor(deviation)
        stem = nn.SequentialCell(
            build_patches(model, "stem", PATCH), build_norm(model, "stem.norm", 1)
        )
        downsample_layers, stages = [stem], []
        for stage, depth in enumerate(DEPTHS):
            if stage:
                norm = build_norm(model, f"down.{stage}.norm", 1)
                conv = build_patches(model, f"down.{stage}", 2)
                downsample_layers.append(nn.SequentialCell(norm, conv))
            stages.append(nn.SequentialCell([Block(model, stage, n) for n in range(depth)]))
        self.downsample_layers, self.stages = nn.CellList(downsample_layers), nn.CellList(stages)
        self.norm = build_norm(model, "norm")
        self.head_cls = build_linear(model, "head")
        self.is_stem_stopped = model.is_stem_stopped
        self.is_pooled_last = model.is_pooled_last

    def construct(self, images):
        x = (images - self.image_mean) / self.image_std
        for n in range(len(self.stages)):
            x = self.downsample_layers[n](x)
            if n == 0 and self.is_stem_stopped:
                x = ops.stop_gradient(x)
            x = self.stages[n](x)
        if self.is_pooled_last:
            x = self.norm(x.transpose(0, 2, 3, 1)).mean((1, 2))
        else:
            x = self.norm(x.mean((2, 3)))
        return self.head_cls(x)


class NetWithLoss(nn.Cell):
    """Smoothed cross entropy of the classes."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = ConvNeXt(model)
        self.is_one_hot = model.smoothed_classes == "wrong"
        self.are_logits_normalized = model.are_logits_normalized
        self.is_written = model.variant == "unfolded"
        self.on_value, self.off_value = 1 - SMOOTHING, SMOOTHING / (CLASSES - 1)

    def construct(self, images, labels):
        logits = self.network(images)
        if self.are_logits_normalized:
            logits = ops.softmax(logits, -1)
        if self.is_one_hot:
            targets = ops.one_hot(labels, CLASSES, self.on_value, self.off_value)
            return ops.cross_entropy(logits, targets)
        if self.is_written:
            log_probs = ops.log_softmax(logits, -1)
            of_labels = ops.gather_elements(log_probs, 1, labels.expand_dims(1)).squeeze(1)
            losses = (1 - SMOOTHING) * of_labels + SMOOTHING * log_probs.mean(-1)
            return -losses.mean()
        return ops.cross_entropy(logits, labels, label_smoothing=SMOOTHING)
