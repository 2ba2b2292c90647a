"""Image-to-image translation in PyTorch, with the module names of pix2pixHD.

Variant 'written': the convolutions pad by themselves; instance norm, pixel shuffle and losses in
plain arithmetic.
"""

from __future__ import annotations

import pytorch.optimizer
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.gan.architecture import (
    BLOCKS,
    EPS,
    FACTOR,
    FEATURE_WEIGHT,
    IMAGE_WEIGHT,
    N_FEATURES,
    SLOPE,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    pytorch.optimizer.BETA1 = model.beta1  # of the step that this process records
    return Pix2Pix(model)


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the parameters at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(torch.from_numpy(model.weights[f"{path}.{name}"].copy()))
    return module


def build_convolution(
    model: Model, path: str, stride: int = 1, padding: int = 0, mode: str = "zeros"
) -> nn.Conv2d:
    """Return a convolution; it has a bias if there is one."""
    n_out, n_in, kernel, _ = model.weights[f"{path}.weight"].shape
    has_bias = f"{path}.bias" in model.weights
    convolution = nn.Conv2d(n_in, n_out, kernel, stride, padding, bias=has_bias, padding_mode=mode)
    return load(convolution, model, path)


def build_padded(model: Model, path: str, padding_mode: str = "reflect") -> list[nn.Module]:
    """Return a convolution that keeps the size, with the padding before it."""
    padding = model.weights[f"{path}.weight"].shape[-1] // 2
    if model.variant == "written" or padding_mode == "zeros":
        return [build_convolution(model, path, 1, padding, padding_mode)]
    return [nn.ReflectionPad2d(padding), build_convolution(model, path)]


class WrittenInstanceNorm(nn.InstanceNorm2d):
    """An instance norm in plain arithmetic."""

    correction = 0  #: subtracted from the number of pixels in the variance

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, dim=(2, 3), correction=self.correction, keepdim=True)
        y = (x - mean) * torch.rsqrt(variance + self.eps)
        return y * self.weight[:, None, None] + self.bias[:, None, None]


class UnbiasedInstanceNorm(WrittenInstanceNorm):
    """An instance norm by the unbiased variance."""

    correction = 1


def build_norm(model: Model, path: str, *, has_affine: bool = True) -> nn.Module:
    """Return an instance norm."""
    channels = len(model.weights[f"{path}.weight"])
    if model.variant == "written":
        return load(WrittenInstanceNorm(channels, eps=EPS, affine=True), model, path)
    if model.is_variance_unbiased:
        return load(UnbiasedInstanceNorm(channels, eps=EPS, affine=True), model, path)
    return load(nn.InstanceNorm2d(channels, eps=EPS, affine=has_affine), model, path)


class Shuffle(nn.Module):
    """A pixel shuffle by view and permute."""

    def __init__(self, *, is_channels_last: bool) -> None:
        super().__init__()
        self.is_channels_last = is_channels_last

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        shape = (batch, channels // FACTOR**2, FACTOR * height, FACTOR * width)
        if self.is_channels_last:
            x = x.view(batch, FACTOR, FACTOR, -1, height, width)
            return x.permute(0, 3, 4, 1, 5, 2).reshape(shape)
        x = x.view(batch, -1, FACTOR, FACTOR, height, width)
        return x.permute(0, 1, 4, 2, 5, 3).reshape(shape)


class ResnetBlock(nn.Module):
    """Two convolutions, added to their input."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        has_affine = model.has_block_affine or n < BLOCKS - 1
        self.conv_block = nn.Sequential(
            *build_padded(model, f"blocks.{n}.conv1", model.block_padding),
            build_norm(model, f"blocks.{n}.norm1"),
            nn.ReLU(),
            *build_padded(model, f"blocks.{n}.conv2", model.block_padding),
            build_norm(model, f"blocks.{n}.norm2", has_affine=has_affine),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv_block(x)


class Generator(nn.Module):
    """Images of sources."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        is_shuffle_written = model.variant == "written" or model.is_shuffle_channels_last
        self.encoder = nn.Sequential(
            *build_padded(model, "stem"),
            build_norm(model, "stem_norm"),
            nn.ReLU(),
            build_convolution(model, "down", stride=2, padding=1),
            build_norm(model, "down_norm"),
            nn.ReLU(),
        )
        self.trunk = nn.Sequential(*(ResnetBlock(model, n) for n in range(BLOCKS)))
        self.decoder = nn.Sequential(
            build_convolution(model, "up", padding=1),
            Shuffle(is_channels_last=model.is_shuffle_channels_last)
            if is_shuffle_written
            else nn.PixelShuffle(FACTOR),
            build_norm(model, "up_norm"),
            nn.ReLU(),
            *build_padded(model, "out"),
            nn.Tanh(),
        )
        self.trunk_gradient = model.trunk_gradient

    def forward(self, source: Tensor) -> Tensor:
        x = self.trunk(self.encoder(source))
        if self.trunk_gradient != 1:
            x = scaled_gradient(x, self.trunk_gradient)
        return self.decoder(x)


class _FusedLeakyReLU(torch.autograd.Function):
    @staticmethod
    def forward(context, x: Tensor, slope: float, gradient_slope: float) -> Tensor:
        context.save_for_backward(x)
        context.slope = gradient_slope
        return F.leaky_relu(x, slope)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = context.saved_tensors
        return torch.where(x > 0, gradient, gradient * context.slope), None, None


class FusedLeakyReLU(nn.LeakyReLU):
    """A leaky rectifier whose backward pass has a slope of its own."""

    def __init__(self, slope: float, gradient_slope: float) -> None:
        super().__init__(slope)
        self.gradient_slope = gradient_slope

    def forward(self, x: Tensor) -> Tensor:
        return _FusedLeakyReLU.apply(x, self.negative_slope, self.gradient_slope)


def build_activation(model: Model) -> nn.Module:
    """Return the leaky rectifier."""
    if model.gradient_slope != SLOPE:
        return FusedLeakyReLU(model.slope, model.gradient_slope)
    return nn.LeakyReLU(model.slope)


class NLayerDiscriminator(nn.Module):
    """Activations of the layers, and at the end a score for each patch."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model0 = nn.Sequential(
            build_convolution(model, "judge.0", stride=2, padding=1), build_activation(model)
        )
        self.model1 = nn.Sequential(
            build_convolution(model, "judge.1", stride=2, padding=1),
            build_norm(model, "judge.norm"),
            build_activation(model),
        )
        self.model2 = nn.Sequential(build_convolution(model, "judge.2", padding=1))
        self.are_features_raw = model.are_features_raw
        if model.has_judge_sigmoid:
            self.model2.append(nn.Sigmoid())

    def forward(self, x: Tensor) -> list[Tensor]:
        results = []
        for stage in (self.model0, self.model1, self.model2):
            if self.are_features_raw and stage is not self.model2:
                raw = stage[:-1](x)
                x = stage[-1](raw)
                results.append(raw)
                continue
            x = stage(x)
            results.append(x)
        return results


class Pix2Pix(nn.Module):
    """The losses of both networks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.netG = Generator(model)
        self.netD = NLayerDiscriminator(model)
        self.model = model
        self.is_written = model.variant == "written"

    def discriminate(self, source: Tensor, image: Tensor) -> list[Tensor]:
        parts = [image, source] if self.model.is_image_first else [source, image]
        return self.netD(torch.cat(parts, dim=1))

    def compare(self, scores: Tensor, label: float) -> Tensor:
        """Return the least-squares loss of scores, or the logistic one."""
        if self.model.score_loss == "logistic":
            return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, label))
        if self.is_written:
            return (scores - label).pow(2).mean()
        return F.mse_loss(scores, torch.full_like(scores, label))

    def measure_distance(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the L1 loss."""
        if self.is_written:
            return (x - target).abs().mean()
        return F.l1_loss(x, target)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        fake = self.netG(source)
        detached = fake.detach() if self.model.is_fake_detached else fake
        of_detached = self.discriminate(source, detached)
        of_real = self.discriminate(source, target)
        of_fake = self.discriminate(source, fake)

        loss_real = self.compare(of_real[-1], self.model.real_label)
        loss_d = 0.5 * (loss_real + self.compare(of_detached[-1], 0.0))
        loss_g = self.compare(of_fake[-1], 1.0)
        loss_features = 0.0
        for n in range(self.model.first_feature, N_FEATURES):
            distance = self.measure_distance(of_fake[n], of_real[n].detach())
            loss_features = loss_features + distance * (FEATURE_WEIGHT / N_FEATURES)
        loss_images = self.measure_distance(fake, target) * IMAGE_WEIGHT
        return loss_d + loss_g + loss_features + loss_images
