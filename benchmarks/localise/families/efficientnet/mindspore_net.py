"""The classifier in MindSpore, with the cells of its model zoo's EfficientNet.

Variant 'padded': 'SAME' padding by an operator of its own, batch norm in plain arithmetic, the
framework's fused swish.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.efficientnet.architecture import (
    BLOCKS,
    CLASSES,
    IMAGE,
    LAST,
    MOMENTUM,
    SMOOTHING,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return CrossEntropySmooth(model)


class PaddedConv2d(nn.Cell):
    """A convolution behind an operator that pads as 'SAME' does."""

    def __init__(self, conv: nn.Conv2d, kernel: int, stride: int, n_pixels: int) -> None:
        super().__init__()
        total = max((-(-n_pixels // stride) - 1) * stride + kernel - n_pixels, 0)
        before, after = total // 2, total - total // 2
        self.pad = nn.Pad(((0, 0), (0, 0), (before, after), (before, after)))
        self.conv = conv

    def construct(self, x):
        return self.conv(self.pad(x))


def build_conv(model: Model, path: str, stride: int = 1, n_pixels: int = 0) -> nn.Cell:
    """Return the convolution at ``path``; it is depthwise if the kernel has one input channel.

    ``n_pixels`` is the edge of its input, which only strided convolutions need.
    """
    weight, bias = model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias")
    n_out, n_in, kernel, _ = weight.shape
    is_depthwise = n_in == 1
    is_even = is_depthwise and stride > 1 and model.is_padded_evenly
    is_padded_before = model.variant == "padded" and stride > 1 and not is_even
    pad_mode = "valid" if is_padded_before else "same"
    if is_even:
        pad_mode = "pad"
    conv = nn.Conv2d(
        n_out if is_depthwise else n_in,
        n_out,
        kernel,
        stride,
        pad_mode=pad_mode,
        padding=kernel // 2 if is_even else 0,
        group=n_out if is_depthwise else 1,
        has_bias=bias is not None,
        weight_init=Tensor(weight),
        bias_init=None if bias is None else Tensor(bias),
    )
    return PaddedConv2d(conv, kernel, stride, n_pixels) if is_padded_before else conv


class WrittenNorm(nn.Cell):
    """Batch norm of (batch, channels, height, width) from reductions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.beta = Parameter(Tensor(model.weights[f"{path}.bias"]))
        self.eps = model.norm_eps

    def construct(self, x):
        centered = x - x.mean((0, 2, 3), keep_dims=True)
        variance = ops.square(centered).mean((0, 2, 3), keep_dims=True)
        normalized = centered * ops.rsqrt(variance + self.eps)
        return normalized * self.gamma.reshape(1, -1, 1, 1) + self.beta.reshape(1, -1, 1, 1)


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the batch norm at ``path``."""
    if model.variant == "padded":
        return WrittenNorm(model, path)
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.BatchNorm2d(
        len(weight),
        eps=model.norm_eps,
        momentum=1 - MOMENTUM,
        gamma_init=weight,
        beta_init=bias,
    )


class Swish(nn.Cell):
    """x sigmoid(x)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.sigmoid = nn.Sigmoid()
        self.is_fused = model.variant == "padded"
        self.is_gate_stopped = model.is_gate_stopped

    def construct(self, x):
        if self.is_fused:
            return ops.silu(x)
        gate = self.sigmoid(x)
        if self.is_gate_stopped:
            gate = ops.stop_gradient(gate)
        return x * gate


class SEBlock(nn.Cell):
    """Channels times gates that are computed from the means of all channels."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.se_reduce = build_conv(model, f"{path}.squeeze")
        self.act_fn = nn.ReLU() if model.squeeze_activation == "relu" else Swish(model)
        self.se_expand = build_conv(model, f"{path}.excite")
        self.gate_fn = nn.Sigmoid()
        self.mean = ops.ReduceMean(keep_dims=True)
        self.scaled_gradient = None
        if n == LAST and model.squeeze_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.squeeze_gradient)

    def construct(self, x):
        squeezed = self.mean(x, (2, 3))
        if self.scaled_gradient is not None:
            squeezed = self.scaled_gradient(squeezed)
        squeezed = self.se_expand(self.act_fn(self.se_reduce(squeezed)))
        return x * self.gate_fn(squeezed)


class MBConvBlock(nn.Cell):
    """Expansion, depthwise convolution, squeeze-and-excitation, projection, residual sum."""

    def __init__(self, model: Model, n: int, n_pixels: int) -> None:
        super().__init__()
        path, block = f"blocks.{n}", BLOCKS[n]
        self.has_expansion, self.has_skip = block.expansion > 1, model.has_skip(n)
        self.kept_share = model.get_kept_share(n)
        if self.has_expansion:
            self.expand_conv = build_conv(model, f"{path}.expand")
            self.bn0 = build_norm(model, f"{path}.expand.norm")
        self.depthwise_conv = build_conv(model, f"{path}.depthwise", block.stride, n_pixels)
        self.bn1 = build_norm(model, f"{path}.depthwise.norm")
        self.se = SEBlock(model, n)
        self.project_conv = build_conv(model, f"{path}.project")
        self.bn2 = build_norm(model, f"{path}.project.norm")
        self.swish = Swish(model)
        self.is_excited_early = model.is_excited_early
        self.is_projection_activated = model.is_projection_activated

    def construct(self, inputs):
        x = inputs
        if self.has_expansion:
            x = self.swish(self.bn0(self.expand_conv(x)))
        x = self.bn1(self.depthwise_conv(x))
        x = self.swish(self.se(x)) if self.is_excited_early else self.se(self.swish(x))
        x = self.bn2(self.project_conv(x))
        if self.is_projection_activated:
            x = self.swish(x)
        if not self.has_skip:
            return x
        if self.kept_share != 1:
            x = x / self.kept_share
        return x + inputs


class EfficientNet(nn.Cell):
    """Logits of images, (batch, CLASSES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem_conv = build_conv(model, "stem", 2, IMAGE)
        self.stem_bn = build_norm(model, "stem.norm")
        n_pixels, blocks = IMAGE // 2, []
        for n, block in enumerate(BLOCKS):
            blocks.append(MBConvBlock(model, n, n_pixels))
            n_pixels //= block.stride
        self.mbconv_blocks = nn.SequentialCell(blocks)
        self.top_conv, self.top_bn = build_conv(model, "top"), build_norm(model, "top.norm")
        self.swish = Swish(model)
        self.mean = ops.ReduceMean()
        weight, bias = (Tensor(model.weights[f"classifier.{name}"]) for name in ("weight", "bias"))
        self.fc = nn.Dense(weight.shape[1], CLASSES, weight_init=weight, bias_init=bias)
        self.is_classifier_half = model.is_classifier_half
        if self.is_classifier_half:
            self.fc.to_float(ms.float16)

    def construct(self, images):
        x = self.swish(self.stem_bn(self.stem_conv(images)))
        x = self.swish(self.top_bn(self.top_conv(self.mbconv_blocks(x))))
        logits = self.fc(self.mean(x, (2, 3)))
        return logits.astype(ms.float32) if self.is_classifier_half else logits


class CrossEntropySmooth(nn.Cell):
    """Cross entropy of the classes with smoothed one-hot targets."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = EfficientNet(model)
        share = SMOOTHING / CLASSES
        self.on_value = Tensor(1 - SMOOTHING + share, ms.float32)
        self.off_value = Tensor(share, ms.float32)
        self.first_label = model.first_label

    def construct(self, images, labels):
        logits = self.network(images)
        if self.first_label != 0:
            labels = labels + self.first_label
        targets = ops.one_hot(labels, CLASSES, self.on_value, self.off_value)
        return ops.cross_entropy(logits, targets)
