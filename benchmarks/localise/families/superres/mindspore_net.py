"""Super-resolution in MindSpore for graph mode.

Bicubic interpolation is a matrix for each axis: the CPU's operator has another coefficient. Variant
'products': 1x1 convolutions as matrix products, the gate with dense layers, Sobel derivatives of
the error, and the pixel shuffle by reshape and transpose.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.superres.architecture import (
    COLORS,
    EDGE_WEIGHT,
    FACTOR,
    FEATURE_MEAN,
    FEATURE_STD,
    FEATURE_WEIGHT,
    GROUPS,
    HEIGHT,
    JUDGE_CHANNELS,
    RESIDUAL_SCALE,
    SOBEL,
    WIDTH,
    Model,
    build_bicubic,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return NetWithLoss(model)


def read(model: Model, path: str) -> tuple[Tensor, Tensor]:
    """Return weight and bias."""
    return Tensor(model.weights[f"{path}.weight"]), Tensor(model.weights[f"{path}.bias"])


class PointwiseProduct(nn.Cell):
    """A 1x1 convolution as the product of a matrix and all pixels."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weight, bias = read(model, path)
        self.weight = Parameter(weight.reshape(weight.shape[:2]), name="weight")
        self.bias = Parameter(bias, name="bias")

    def construct(self, x):
        batch, _, height, width = x.shape
        pixels = x.reshape(batch, -1, height * width)
        y = mint.matmul(self.weight, pixels) + self.bias.reshape(-1, 1)
        return y.reshape(batch, -1, height, width)


def build_convolution(model: Model, path: str, stride: int = 1, dilation: int = 1) -> nn.Cell:
    """Return a convolution that keeps the size, or divides it by the stride."""
    weight, bias = read(model, path)
    n_out, n_in, kernel, _ = weight.shape
    if kernel == 1 and model.variant == "products":
        return PointwiseProduct(model, path)
    group = n_out if n_in == 1 else 1
    return nn.Conv2d(
        n_in * group,
        n_out,
        kernel,
        stride,
        pad_mode="pad",
        padding=dilation * (kernel // 2),
        dilation=dilation,
        group=group,
        has_bias=True,
        weight_init=weight,
        bias_init=bias,
    )


class ChannelAttention(nn.Cell):
    """Each channel times a gate from its mean."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.squeeze = build_convolution(model, f"{path}.squeeze")
        self.excite = build_convolution(model, f"{path}.excite")
        self.relu, self.sigmoid = nn.ReLU(), nn.Sigmoid()

    def construct(self, x):
        pooled = mint.mean(x, (2, 3), True)
        return x * self.sigmoid(self.excite(self.relu(self.squeeze(pooled))))


class DenseChannelAttention(nn.Cell):
    """The same with dense layers."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        layers = []
        for name, activation in (("squeeze", "relu"), ("excite", "sigmoid")):
            weight, bias = read(model, f"{path}.{name}")
            n_out, n_in = weight.shape[:2]
            weight = weight.reshape(n_out, n_in)
            layers.append(nn.Dense(n_in, n_out, weight, bias, activation=activation))
        self.gate = nn.SequentialCell(layers)

    def construct(self, x):
        batch, channels, height, width = x.shape
        pooled = x.reshape(batch, channels, height * width).mean(axis=-1)
        return self.gate(pooled).reshape(batch, channels, 1, 1) * x


class ChannelBlock(nn.Cell):
    """Two convolutions and channel attention, a share of which is added to the input."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv1 = build_convolution(model, f"{path}.conv1")
        self.conv2 = build_convolution(model, f"{path}.conv2")
        attention = DenseChannelAttention if model.variant == "products" else ChannelAttention
        self.attention = attention(model, path)

    def construct(self, x):
        y = self.conv2(ops.relu(self.conv1(x)))
        return x + RESIDUAL_SCALE * self.attention(y)


class LargeKernelBlock(nn.Cell):
    """Large-kernel attention between two projections, a share of which is added to the input."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.proj1 = build_convolution(model, f"{path}.proj1")
        self.gelu = nn.GELU(approximate=False)
        self.dw_conv = build_convolution(model, f"{path}.depthwise")
        self.dw_d_conv = build_convolution(model, f"{path}.dilated", dilation=model.dilation)
        self.pw_conv = build_convolution(model, f"{path}.pointwise")
        self.proj2 = build_convolution(model, f"{path}.proj2")
        self.is_input_gated = model.is_input_gated

    def construct(self, x):
        u = self.gelu(self.proj1(x))
        attention = self.pw_conv(self.dw_d_conv(self.dw_conv(u)))
        y = self.proj2((x if self.is_input_gated else u) * attention)
        return x + RESIDUAL_SCALE * y


class ResidualGroup(nn.Cell):
    """Two blocks and a convolution, added to their input."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.channel_block = ChannelBlock(model, f"{path}.channel")
        self.large_kernel_block = LargeKernelBlock(model, f"{path}.large")
        self.conv = build_convolution(model, f"{path}.conv")

    def construct(self, x):
        return x + self.conv(self.large_kernel_block(self.channel_block(x)))


class WrittenPixelShuffle(nn.Cell):
    """A pixel shuffle by reshape and transpose."""

    def construct(self, x):
        batch, channels, height, width = x.shape
        n_out = channels // FACTOR**2
        x = x.reshape(batch, n_out, FACTOR, FACTOR, height, width).transpose(0, 1, 4, 2, 5, 3)
        return x.reshape(batch, n_out, FACTOR * height, FACTOR * width)


class SuperResolutionNet(nn.Cell):
    """Larger images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.mean = Tensor(np.array(model.mean, np.float32).reshape(1, COLORS, 1, 1))
        self.head = build_convolution(model, "head")
        self.groups = nn.CellList([ResidualGroup(model, f"groups.{n}") for n in range(GROUPS)])
        self.fuse = build_convolution(model, "fuse")
        self.up_conv = build_convolution(model, "up")
        is_written = model.variant == "products"
        self.shuffle = WrittenPixelShuffle() if is_written else nn.PixelShuffle(FACTOR)
        self.tail = build_convolution(model, "tail")
        self.rows = Tensor(build_bicubic(HEIGHT))
        self.columns = Tensor(build_bicubic(WIDTH).T.copy())
        self.is_skip_last = model.is_skip_last

    def resize(self, x):
        """Return the images resized by bicubic interpolation."""
        return mint.matmul(mint.matmul(self.rows, x), self.columns)

    def construct(self, images):
        centered = images - self.mean
        x = self.head(centered)
        shallow = x
        for group in self.groups:
            x = group(x)
        x = self.fuse(x) + (x if self.is_skip_last else shallow)
        x = self.tail(self.shuffle(self.up_conv(x)))
        return x + self.resize(centered) + self.mean


class EdgeLoss(nn.Cell):
    """L1 between Sobel derivatives."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        kernels = np.tile(np.stack((SOBEL, SOBEL.T))[:, None], (COLORS, 1, 1, 1))
        self.kernels = Tensor(kernels, ms.float32)
        self.pad = nn.ReplicationPad2d(1)
        self.is_of_error = model.variant == "products"

    def differentiate(self, x):
        """Return both derivatives of each color."""
        return ops.conv2d(self.pad(x), self.kernels, groups=COLORS)

    def construct(self, outputs, targets):
        if self.is_of_error:
            return self.differentiate(outputs - targets).abs().mean()
        return ops.l1_loss(self.differentiate(outputs), self.differentiate(targets))


class PassingCut(nn.Cell):
    """A cut to 0..1 that passes the gradient on."""

    def construct(self, x):
        return ops.clamp(x, 0.0, 1.0)

    def bprop(self, x, out, gradient):
        return (gradient,)


class FeatureNet(nn.Cell):
    """Activations of all layers; not trained."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        mean, deviation = (np.array(values, np.float32) for values in (FEATURE_MEAN, FEATURE_STD))
        self.mean = Tensor(mean.reshape(1, COLORS, 1, 1))
        self.deviation = Tensor(deviation.reshape(1, COLORS, 1, 1))
        self.convs = nn.CellList(
            [build_convolution(model, f"judge.{n}", n + 1) for n in range(len(JUDGE_CHANNELS))]
        )
        self.are_features_normed = model.are_features_normed
        self.are_features_raw = model.are_features_raw
        for parameter in self.get_parameters():
            parameter.requires_grad = False

    def construct(self, images):
        x = images
        if self.are_features_normed:
            x = (x - self.mean) / self.deviation
        features = ()
        for conv in self.convs:
            y = conv(x)
            x = ops.relu(y)
            features = (*features, y if self.are_features_raw else x)
        return features


class FeatureLoss(nn.Cell):
    """L1 between activations of images and targets."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.net = FeatureNet(model)
        self.cut = PassingCut() if model.is_cut_passed else None
        self.are_features_constant = model.are_features_constant

    def construct(self, outputs, targets):
        cut = ops.clamp(outputs, 0.0, 1.0) if self.cut is None else self.cut(outputs)
        features = self.net(cut)
        wanted = self.net(ops.clamp(targets, 0.0, 1.0))
        loss = 0.0
        for n in range(len(JUDGE_CHANNELS)):
            feature = features[n]
            if self.are_features_constant:
                feature = ops.stop_gradient(feature)
            loss += ops.l1_loss(feature, ops.stop_gradient(wanted[n]))
        return loss


class NetWithLoss(nn.Cell):
    """The sum of the three losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = SuperResolutionNet(model)
        self.edge_loss = EdgeLoss(model)
        self.feature_loss = FeatureLoss(model)
        self.epsilon = model.epsilon

    def construct(self, images, targets):
        outputs = self.network(images)
        loss = mint.mean(mint.sqrt(mint.square(outputs - targets) + self.epsilon))
        loss += EDGE_WEIGHT * self.edge_loss(outputs, targets)
        return loss + FEATURE_WEIGHT * self.feature_loss(outputs, targets)
