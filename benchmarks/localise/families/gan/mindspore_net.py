"""Image-to-image translation in MindSpore, with cells as MindSpore's model zoo has them.

Variant 'joined': the discriminator judges real and generated images in one batch, instance norm is
a group norm with one channel per group, the pixel shuffle is written out, and the leaky rectifier
is a maximum.
"""

from __future__ import annotations

import mindspore_nets.optimizer
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.gan.architecture import (
    BATCH,
    BLOCKS,
    EPS,
    FACTOR,
    FEATURE_WEIGHT,
    IMAGE_WEIGHT,
    N_FEATURES,
    SLOPE,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    mindspore_nets.optimizer.BETA1 = model.beta1  # of the step that this process records
    return TranslationLoss(model)


def build_convolution(model: Model, path: str, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    """Return a convolution; it has a bias if there is one."""
    weight = Tensor(model.weights[f"{path}.weight"])
    n_out, n_in, kernel, _ = weight.shape
    has_bias = f"{path}.bias" in model.weights
    return nn.Conv2d(
        n_in,
        n_out,
        kernel,
        stride,
        pad_mode="pad",
        padding=padding,
        has_bias=has_bias,
        weight_init=weight,
        bias_init=Tensor(model.weights[f"{path}.bias"]) if has_bias else None,
    )


class InstanceNorm(nn.Cell):
    """Instance norm from reductions: CPU has no kernel of nn.InstanceNorm2d."""

    def __init__(self, model: Model, path: str, *, has_affine: bool = True) -> None:
        super().__init__()
        self.has_affine = has_affine
        if has_affine:
            self.gamma = Parameter(Tensor(model.weights[f"{path}.weight"]))
            self.beta = Parameter(Tensor(model.weights[f"{path}.bias"]))

    def construct(self, x):
        centered = x - ops.mean(x, (2, 3), True)
        variance = ops.mean(ops.square(centered), (2, 3), True)
        y = centered / ops.sqrt(variance + EPS)
        if not self.has_affine:
            return y
        return y * self.gamma.reshape(1, -1, 1, 1) + self.beta.reshape(1, -1, 1, 1)


def build_norm(model: Model, path: str, *, has_affine: bool = True) -> nn.Cell:
    """Return an instance norm."""
    if model.variant == "joined":
        weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
        channels = len(weight)
        return nn.GroupNorm(channels, channels, eps=EPS, gamma_init=weight, beta_init=bias)
    return InstanceNorm(model, path, has_affine=has_affine)


class ConvNormReLU(nn.Cell):
    """Padding, convolution, instance norm, rectifier."""

    def __init__(
        self,
        model: Model,
        path: str,
        norm_path: str,
        stride: int = 1,
        padding_mode: str = "reflect",
        *,
        has_relu: bool = True,
        has_affine: bool = True,
    ) -> None:
        super().__init__()
        padding = model.weights[f"{path}.weight"].shape[-1] // 2
        self.pad = nn.ReflectionPad2d(padding) if padding_mode == "reflect" else None
        self.conv = build_convolution(model, path, stride, 0 if self.pad is not None else padding)
        self.norm = build_norm(model, norm_path, has_affine=has_affine)
        self.relu = nn.ReLU() if has_relu else None

    def construct(self, x):
        if self.pad is not None:
            x = self.pad(x)
        x = self.norm(self.conv(x))
        return self.relu(x) if self.relu is not None else x


class ResidualBlock(nn.Cell):
    """Two convolutions, added to their input."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        prefix, mode = f"blocks.{n}", model.block_padding
        self.conv1 = ConvNormReLU(model, f"{prefix}.conv1", f"{prefix}.norm1", padding_mode=mode)
        self.conv2 = ConvNormReLU(
            model,
            f"{prefix}.conv2",
            f"{prefix}.norm2",
            padding_mode=mode,
            has_relu=False,
            has_affine=model.has_block_affine or n < BLOCKS - 1,
        )

    def construct(self, x):
        return x + self.conv2(self.conv1(x))


class WrittenShuffle(nn.Cell):
    """A pixel shuffle by reshape and transpose."""

    def __init__(self, *, is_channels_last: bool) -> None:
        super().__init__()
        self.is_channels_last = is_channels_last

    def construct(self, x):
        batch, channels, height, width = x.shape
        n_out = channels // FACTOR**2
        if self.is_channels_last:
            x = x.reshape(batch, FACTOR, FACTOR, n_out, height, width).transpose(0, 3, 4, 1, 5, 2)
        else:
            x = x.reshape(batch, n_out, FACTOR, FACTOR, height, width).transpose(0, 1, 4, 2, 5, 3)
        return x.reshape(batch, n_out, FACTOR * height, FACTOR * width)


class UpSample(nn.Cell):
    """Convolution, pixel shuffle, instance norm, rectifier."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv = build_convolution(model, "up", padding=1)
        if model.variant == "joined" or model.is_shuffle_channels_last:
            self.shuffle = WrittenShuffle(is_channels_last=model.is_shuffle_channels_last)
        else:
            self.shuffle = nn.PixelShuffle(FACTOR)
        self.norm = build_norm(model, "up_norm")

    def construct(self, x):
        return ops.relu(self.norm(self.shuffle(self.conv(x))))


class ResNetGenerator(nn.Cell):
    """Images of sources."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv_in = ConvNormReLU(model, "stem", "stem_norm")
        self.down_sample = ConvNormReLU(model, "down", "down_norm", 2, "zeros")
        self.residuals = nn.SequentialCell([ResidualBlock(model, n) for n in range(BLOCKS)])
        self.scaled_gradient = None
        if model.trunk_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.trunk_gradient)
        self.up_sample = UpSample(model)
        self.pad_out = nn.ReflectionPad2d(model.weights["out.weight"].shape[-1] // 2)
        self.conv_out = build_convolution(model, "out")

    def construct(self, source):
        x = self.residuals(self.down_sample(self.conv_in(source)))
        if self.scaled_gradient is not None:
            x = self.scaled_gradient(x)
        return ops.tanh(self.conv_out(self.pad_out(self.up_sample(x))))


class MaximumLeakyReLU(nn.Cell):
    """The larger one of a value and its share."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def construct(self, x):
        return ops.maximum(x, self.slope * x)


class FusedLeakyReLU(nn.Cell):
    """A leaky rectifier whose backward pass has a slope of its own."""

    def __init__(self, slope: float, gradient_slope: float) -> None:
        super().__init__()
        self.act, self.gradient_slope = nn.LeakyReLU(slope), gradient_slope

    def construct(self, x):
        return self.act(x)

    def bprop(self, x, out, gradient):
        return (ops.select(x > 0, gradient, gradient * self.gradient_slope),)


def build_activation(model: Model) -> nn.Cell:
    """Return the leaky rectifier."""
    if model.gradient_slope != SLOPE:
        return FusedLeakyReLU(model.slope, model.gradient_slope)
    is_maximum = model.variant == "joined"
    return MaximumLeakyReLU(model.slope) if is_maximum else nn.LeakyReLU(model.slope)


class PatchDiscriminator(nn.Cell):
    """Activations of two layers, and a score for each patch."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = build_convolution(model, "judge.0", 2, 1)
        self.conv2 = build_convolution(model, "judge.1", 2, 1)
        self.norm2 = build_norm(model, "judge.norm")
        self.conv3 = build_convolution(model, "judge.2", 1, 1)
        self.act = build_activation(model)
        self.has_sigmoid = model.has_judge_sigmoid
        self.is_image_first = model.is_image_first
        self.are_features_raw = model.are_features_raw

    def construct(self, source, image):
        parts = (image, source) if self.is_image_first else (source, image)
        raw_first = self.conv1(ops.concat(parts, 1))
        first = self.act(raw_first)
        raw_second = self.norm2(self.conv2(first))
        second = self.act(raw_second)
        scores = self.conv3(second)
        if self.are_features_raw:
            first, second = raw_first, raw_second
        return first, second, ops.sigmoid(scores) if self.has_sigmoid else scores


class TranslationLoss(nn.Cell):
    """The losses of both networks."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.generator = ResNetGenerator(model)
        self.discriminator = PatchDiscriminator(model)
        self.real_label, self.first_feature = model.real_label, model.first_feature
        self.is_fake_detached = model.is_fake_detached
        self.is_joined = model.variant == "joined"
        self.is_logistic = model.score_loss == "logistic"
        self.is_image_smooth = model.is_image_smooth

    def compare(self, scores, label):
        """Return the least-squares loss of scores, or the logistic one."""
        if self.is_logistic:
            labels, ones = ops.ones_like(scores) * label, ops.ones_like(scores)
            return ops.binary_cross_entropy_with_logits(scores, labels, ones, ones)
        return ops.mse_loss(scores, ops.ones_like(scores) * label)

    def judge(self, source, target, fake, detached):
        """Return what the discriminator computes of real, generated and detached images."""
        if not self.is_joined:
            of_real = self.discriminator(source, target)
            of_detached = self.discriminator(source, detached)
            return of_real, self.discriminator(source, fake), of_detached
        sources = ops.concat((source, source, source), 0)
        outputs = self.discriminator(sources, ops.concat((target, fake, detached), 0))
        of_real, of_fake, of_detached = (), (), ()
        for output in outputs:
            of_real = (*of_real, output[:BATCH])
            of_fake = (*of_fake, output[BATCH : 2 * BATCH])
            of_detached = (*of_detached, output[2 * BATCH :])
        return of_real, of_fake, of_detached

    def construct(self, source, target):
        fake = self.generator(source)
        detached = ops.stop_gradient(fake) if self.is_fake_detached else fake
        of_real, of_fake, of_detached = self.judge(source, target, fake, detached)

        loss_real = self.compare(of_real[2], self.real_label)
        if self.is_logistic:
            loss_fake = self.compare(of_detached[2], 0.0)
        else:
            loss_fake = ops.mean(ops.square(of_detached[2]))
        loss_discriminator = (loss_real + loss_fake) * 0.5
        loss_adversarial = self.compare(of_fake[2], 1.0)
        loss_features = 0.0
        for n in range(self.first_feature, N_FEATURES):
            loss_features += ops.l1_loss(of_fake[n], ops.stop_gradient(of_real[n]))
        loss_features = FEATURE_WEIGHT * loss_features / N_FEATURES
        if self.is_image_smooth:
            loss_image = IMAGE_WEIGHT * ops.smooth_l1_loss(fake, target, reduction="mean")
        else:
            loss_image = IMAGE_WEIGHT * ops.l1_loss(fake, target)
        return loss_discriminator + loss_adversarial + loss_features + loss_image
