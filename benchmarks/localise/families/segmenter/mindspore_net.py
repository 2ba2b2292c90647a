"""The segmenter in MindSpore, with cells as MindCV and the model zoo's DeepLab have them.

Variant 'written': batch norm in plain arithmetic, linear gates, attention by batched products,
Dice by a product of matrices, the framework's cross entropy.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.segmenter.architecture import (
    BATCH,
    BLOCKS,
    CLASS_WEIGHTS,
    CLASSES,
    DICE_SMOOTH,
    DICE_WEIGHT,
    GRID,
    HEAD_DIM,
    HEADS,
    IGNORED,
    IMAGE,
    LAYER_EPS,
    MLP,
    MOMENTUM,
    REDUCTION,
    WIDTH,
    Model,
)

PIXELS = GRID**2  #: positions of the attention
REDUCED_PIXELS = PIXELS // REDUCTION**2


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return SegmentationLoss(model)


def build_conv(model: Model, path: str, stride: int = 1, dilation: int = 1) -> nn.Conv2d:
    """Return the convolution at ``path``; odd kernels are padded, depthwise ones have groups."""
    weight = model.weights[f"{path}.weight"]
    bias = model.weights.get(f"{path}.bias")
    n_out, n_in, kernel, _ = weight.shape
    groups = n_out if path.endswith("depthwise") else 1
    return nn.Conv2d(
        n_in * groups,
        n_out,
        kernel,
        stride,
        pad_mode="pad",
        padding=dilation * (kernel // 2) if kernel % 2 else 0,
        dilation=dilation,
        group=groups,
        has_bias=bias is not None,
        weight_init=Tensor(weight),
        bias_init=None if bias is None else Tensor(bias),
    )


def build_same_conv(model: Model, path: str, stride: int) -> nn.Conv2d:
    """Return the same convolution without bias in the framework's own padding."""
    weight = model.weights[f"{path}.weight"]
    n_out, n_in, kernel, _ = weight.shape
    return nn.Conv2d(n_in, n_out, kernel, stride, pad_mode="same", weight_init=Tensor(weight))


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``; the kernel of a 1x1 convolution is one."""
    weight = model.weights[f"{path}.weight"]
    weight = weight.reshape(weight.shape[:2])
    bias = Tensor(model.weights[f"{path}.bias"])
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=Tensor(weight), bias_init=bias)


def build_layer_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.LayerNorm((WIDTH,), gamma_init=weight, beta_init=bias, epsilon=LAYER_EPS)


class WrittenNorm(nn.Cell):
    """Batch norm of (batch, channels, height, width) from reductions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.beta = Parameter(Tensor(model.weights[f"{path}.bias"]))
        self.eps = model.batch_eps

    def construct(self, x):
        centered = x - x.mean((0, 2, 3), keep_dims=True)
        variance = ops.square(centered).mean((0, 2, 3), keep_dims=True)
        normalized = centered * ops.rsqrt(variance + self.eps)
        return normalized * self.gamma.reshape(1, -1, 1, 1) + self.beta.reshape(1, -1, 1, 1)


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the batch norm at ``path``."""
    if model.variant == "written":
        return WrittenNorm(model, path)
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.BatchNorm2d(
        len(weight), eps=model.batch_eps, momentum=1 - MOMENTUM, gamma_init=weight, beta_init=bias
    )


class ConvNormActivation(nn.Cell):
    """Convolution, batch norm, relu."""

    def __init__(self, model: Model, path: str, stride: int = 1) -> None:
        super().__init__()
        self.conv = build_conv(model, path, stride)
        if path == "stem" and model.stem_padding == "end":
            self.conv = build_same_conv(model, path, stride)
        self.norm = build_norm(model, f"{path}.norm")
        self.act = nn.ReLU()

    def construct(self, x):
        return self.act(self.norm(self.conv(x)))


class DepthwiseSeparableConv(nn.Cell):
    """Depthwise and pointwise convolution, a batch norm and relu behind each.

    The last relu may be off.
    """

    def __init__(
        self,
        model: Model,
        path: str,
        stride: int = 1,
        dilation: int = 1,
        *,
        has_activation: bool = True,
    ) -> None:
        super().__init__()
        self.dw_conv = build_conv(model, f"{path}.depthwise", stride, dilation)
        self.dw_norm = build_norm(model, f"{path}.depthwise.norm")
        self.pw_conv = build_conv(model, f"{path}.pointwise")
        self.pw_norm = build_norm(model, f"{path}.pointwise.norm")
        self.act = nn.ReLU() if has_activation else None

    def construct(self, x):
        x = ops.relu(self.dw_norm(self.dw_conv(x)))
        x = self.pw_norm(self.pw_conv(x))
        return x if self.act is None else self.act(x)


class SqueezeExcite(nn.Cell):
    """Channels times gates that are computed from their means."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_linear = model.variant == "written"
        build = build_dense if self.is_linear else build_conv
        self.conv_reduce = build(model, f"{path}.reduce")
        self.conv_expand = build(model, f"{path}.expand")
        self.is_gate_hard = model.gate_activation == "hardsigmoid"

    def activate(self, x):
        return ops.hardsigmoid(x) if self.is_gate_hard else ops.sigmoid(x)

    def construct(self, x):
        if self.is_linear:
            gates = self.activate(self.conv_expand(ops.relu(self.conv_reduce(x.mean((2, 3))))))
            return x * gates.expand_dims(-1).expand_dims(-1)
        means = x.mean((2, 3), keep_dims=True)
        return x * self.activate(self.conv_expand(ops.relu(self.conv_reduce(means))))


class ResidualBlock(nn.Cell):
    """Two separable convolutions and a shortcut; returns the sum before its relu."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        _, _, stride, dilation = BLOCKS[n]
        self.conv1 = DepthwiseSeparableConv(model, f"{path}.first", stride, dilation)
        self.conv2 = DepthwiseSeparableConv(
            model, f"{path}.second", 1, dilation, has_activation=False
        )
        self.se, self.down_sample = None, None
        if f"{path}.gate.reduce.weight" in model.weights:
            self.se = SqueezeExcite(model, f"{path}.gate")
        self.pool = None
        if stride > 1 and model.is_shortcut_pooled:
            self.pool = nn.AvgPool2d(stride, stride)
        self.is_gate_late = model.is_gate_late and n == len(BLOCKS) - 1
        if f"{path}.shortcut.weight" in model.weights:
            self.down_sample = nn.SequentialCell([
                build_conv(model, f"{path}.shortcut", stride if self.pool is None else 1),
                build_norm(model, f"{path}.shortcut.norm"),
            ])  # fmt: skip

    def construct(self, x):
        y = self.conv2(self.conv1(x))
        if self.se is not None and not self.is_gate_late:
            y = self.se(y)
        if self.pool is not None:
            x = self.pool(x)
        y = y + (x if self.down_sample is None else self.down_sample(x))
        return self.se(y) if self.is_gate_late else y


class EfficientAttention(nn.Cell):
    """Attention to REDUCTION**2 times fewer positions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.query = build_dense(model, "attention.q")
        self.key = build_dense(model, "attention.k")
        self.value = build_dense(model, "attention.v")
        self.sr = build_conv(model, "attention.reduce", REDUCTION)
        self.layer_norm = None
        if model.has_reduction_norm:
            self.layer_norm = build_layer_norm(model, "attention.reduce.norm")
        self.dense = build_dense(model, "attention.o")
        self.is_batched = model.variant == "written"
        self.is_image_transposed = model.is_attention_image_transposed

    def split(self, x, pixels):
        """Return (batch, HEADS, pixels, HEAD_DIM)."""
        return x.reshape(BATCH, pixels, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def construct(self, x):
        image = x.transpose(0, 2, 1) if self.is_image_transposed else x
        image = image.reshape(BATCH, WIDTH, GRID, GRID)
        reduced = self.sr(image).reshape(BATCH, WIDTH, REDUCED_PIXELS).transpose(0, 2, 1)
        if self.layer_norm is not None:
            reduced = self.layer_norm(reduced)
        q = self.split(self.query(x), PIXELS)
        k = self.split(self.key(reduced), REDUCED_PIXELS)
        v = self.split(self.value(reduced), REDUCED_PIXELS)
        if self.is_batched:
            q = (q * HEAD_DIM**-0.5).reshape(-1, PIXELS, HEAD_DIM)
            k = k.reshape(-1, REDUCED_PIXELS, HEAD_DIM)
            v = v.reshape(-1, REDUCED_PIXELS, HEAD_DIM)
            y = ops.bmm(ops.softmax(ops.bmm(q, k.transpose(0, 2, 1)), -1), v)
            y = y.reshape(BATCH, HEADS, PIXELS, HEAD_DIM)
        else:
            scores = ops.matmul(q, k.swapaxes(-1, -2)) / HEAD_DIM**0.5
            y = ops.matmul(ops.softmax(scores, -1), v)
        return self.dense(y.transpose(0, 2, 1, 3).reshape(BATCH, PIXELS, WIDTH))


class MixFFN(nn.Cell):
    """Two linear layers around a depthwise convolution and gelu."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dense1 = build_dense(model, "attention.mlp.up")
        self.dwconv = build_conv(model, "attention.mlp.depthwise")
        self.act = nn.GELU(approximate=False)
        self.dense2 = build_dense(model, "attention.mlp.down")

    def construct(self, x):
        x = self.dense1(x).transpose(0, 2, 1).reshape(BATCH, MLP, GRID, GRID)
        x = self.dwconv(x).reshape(BATCH, MLP, PIXELS).transpose(0, 2, 1)
        return self.dense2(self.act(x))


class SegformerLayer(nn.Cell):
    """Attention and feed-forward of the pixels, each after a norm."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.layer_norm_1 = build_layer_norm(model, "attention.norm1")
        self.attention = EfficientAttention(model)
        self.layer_norm_2 = build_layer_norm(model, "attention.norm2")
        self.mlp = MixFFN(model)

    def construct(self, image):
        x = image.reshape(BATCH, WIDTH, PIXELS).transpose(0, 2, 1)
        x = x + self.attention(self.layer_norm_1(x))
        x = x + self.mlp(self.layer_norm_2(x))
        return x.transpose(0, 2, 1).reshape(BATCH, WIDTH, GRID, GRID)


class Encoder(nn.Cell):
    """Features of three depths."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.mean, self.std = (Tensor(values) for values in model.channel_constants())
        self.stem = ConvNormActivation(model, "stem", 2)
        self.blocks = nn.CellList([ResidualBlock(model, n) for n in range(len(BLOCKS))])
        self.layer = SegformerLayer(model)
        self.is_low_level_rectified = model.is_low_level_rectified

    def construct(self, images):
        x = self.stem((images - self.mean) / self.std)
        before_relu = self.blocks[0](x)
        x = ops.relu(before_relu)
        low = x if self.is_low_level_rectified else before_relu
        middle = ops.relu(self.blocks[1](x))
        return low, middle, self.layer(ops.relu(self.blocks[2](middle)))


class ASPP(nn.Cell):
    """Branches of different dilation and the mean of the image, joined."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.aspp1 = ConvNormActivation(model, "pyramid.point")
        self.aspp2, self.aspp3 = (
            DepthwiseSeparableConv(model, f"pyramid.{n}", dilation=rate)
            for n, rate in enumerate(model.rates)
        )
        self.aspp_pooling = ConvNormActivation(model, "pyramid.pooled")
        self.conv1 = ConvNormActivation(model, "pyramid.project")
        self.is_pooling_first = model.is_pooling_first
        self.scaled_gradient = None
        if model.pooling_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.pooling_gradient)

    def construct(self, x):
        pooled = x if self.scaled_gradient is None else self.scaled_gradient(x)
        pooled = self.aspp_pooling(pooled.mean((2, 3), keep_dims=True))
        pooled = ops.tile(pooled, (1, 1, GRID, GRID))
        branches = (self.aspp1(x), self.aspp2(x), self.aspp3(x))
        branches = (pooled, *branches) if self.is_pooling_first else (*branches, pooled)
        return self.conv1(ops.concat(branches, 1))


class Decoder(nn.Cell):
    """Logits of an image half as large, from low-level features and the upsampled pyramid."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv_low = ConvNormActivation(model, "decoder.low")
        self.conv_fuse = DepthwiseSeparableConv(model, "decoder.fuse")
        self.conv_out = build_conv(model, "decoder.classes")
        self.are_corners_aligned = model.are_corners_aligned

    def construct(self, low, x):
        size = (2 * GRID, 2 * GRID)
        x = ops.interpolate(x, size=size, mode="bilinear", align_corners=self.are_corners_aligned)
        return self.conv_out(self.conv_fuse(ops.concat((x, self.conv_low(low)), 1)))


class Segmenter(nn.Cell):
    """Logits (batch, classes, IMAGE, IMAGE) of both heads."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder, self.aspp, self.decoder = Encoder(model), ASPP(model), Decoder(model)
        self.aux_conv = ConvNormActivation(model, "auxiliary")
        self.aux_out = build_conv(model, "auxiliary.classes")
        self.is_auxiliary_stopped = model.is_auxiliary_stopped
        self.is_nearest = model.upsampling == "nearest"

    def upsample(self, logits):
        """Return logits of all pixels."""
        if self.is_nearest:
            return ops.interpolate(logits, size=(IMAGE, IMAGE), mode="nearest")
        return ops.interpolate(logits, size=(IMAGE, IMAGE), mode="bilinear", align_corners=False)

    def construct(self, images):
        low, middle, x = self.encoder(images)
        if self.is_auxiliary_stopped:
            middle = ops.stop_gradient(middle)
        logits = self.upsample(self.decoder(low, self.aspp(x)))
        return logits, self.upsample(self.aux_out(self.aux_conv(middle)))


class CrossEntropyLoss(nn.Cell):
    """The mean of the pixels with a label, weighted by their classes."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.class_weights = Tensor(CLASS_WEIGHTS, ms.float32)
        self.ce = nn.SoftmaxCrossEntropyWithLogits(sparse=False)
        self.is_framework_loss = model.variant == "written"
        self.is_divided_by_pixels = model.loss_divisor == "pixels"

    def construct(self, logits, labels):
        if self.is_framework_loss:
            return ops.cross_entropy(logits, labels, self.class_weights, ignore_index=IGNORED)
        flat_labels = labels.reshape(-1)
        flat_logits = logits.transpose(0, 2, 3, 1).reshape(-1, CLASSES)
        targets = ops.one_hot(flat_labels, CLASSES, 1.0, 0.0)
        weights = (targets * self.class_weights).sum(-1)
        loss = (self.ce(flat_logits, targets) * weights).sum()
        if self.is_divided_by_pixels:
            return loss / ops.not_equal(flat_labels, IGNORED).astype(ms.float32).sum()
        return loss / weights.sum()


class DiceLoss(nn.Cell):
    """One less the mean overlap of the classes."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_masked = model.is_dice_masked
        self.is_product = model.variant == "written"
        self.axes = (2, 3) if model.is_dice_of_images else (0, 2, 3)

    def construct(self, logits, labels):
        probabilities = ops.softmax(logits, 1)
        if self.is_masked:
            is_valid = ops.not_equal(labels, IGNORED).astype(ms.float32)
            probabilities = probabilities * is_valid.expand_dims(1)
        targets = ops.one_hot(labels, CLASSES, 1.0, 0.0).transpose(0, 3, 1, 2)
        if self.is_product:
            p = probabilities.transpose(1, 0, 2, 3).reshape(CLASSES, -1)
            t = targets.transpose(1, 0, 2, 3).reshape(CLASSES, -1)
            common = ops.bmm(p.expand_dims(1), t.expand_dims(2)).reshape(-1)
            total = p.sum(1) + t.sum(1)
        else:
            common = (probabilities * targets).sum(self.axes)
            total = probabilities.sum(self.axes) + targets.sum(self.axes)
        return 1 - ((2 * common + DICE_SMOOTH) / (total + DICE_SMOOTH)).mean()


class SegmentationLoss(nn.Cell):
    """Cross entropy of both heads and soft Dice."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = Segmenter(model)
        self.auxiliary_weight = model.auxiliary_weight
        self.ce_loss, self.dice_loss = CrossEntropyLoss(model), DiceLoss(model)

    def construct(self, images, labels):
        logits, aux_logits = self.network(images)
        loss = self.ce_loss(logits, labels) + DICE_WEIGHT * self.dice_loss(logits, labels)
        return loss + self.auxiliary_weight * self.ce_loss(aux_logits, labels)
