"""The autoencoder in PyTorch, with the modules of audio codecs and PyTorch's weight norm.

Variant 'distributions': posterior and loss from ``torch.distributions``, repetition by
interpolation. Variant 'written': weight norm, group norm and dilated convolutions in plain
arithmetic, snake by cosines.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn
from torch.distributions import Laplace, Normal, kl_divergence
from torch.nn.utils.parametrizations import weight_norm

from families.wave.architecture import (
    BLOCKS,
    CHANNELS,
    DILATIONS,
    EMPHASIS,
    ENCODER_KERNEL,
    EPS,
    GROUPS,
    HALF,
    KERNEL,
    KL_WEIGHT,
    STAGES,
    STRIDE,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    is_changed = (
        model.is_activated_first
        or model.is_magnitude_of_all
        or model.are_gates_first
        or not model.is_snake_divided
        or model.kl_reduction != "sequences"
        or model.is_mean_stopped
        or model.is_padding_gradient_early
    )
    if is_changed:
        raise SystemExit("a fault of the MindSpore net")
    return WaveVAE(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, _ in list(module.named_parameters()):
        setattr(module, name, copy_parameter(model.weights[f"{path}.{name}"]))
    return module


def load_pointwise(model: Model, path: str) -> nn.Module:
    """Return the convolution of one step at ``path``."""
    n_out, n_in, _ = model.weights[f"{path}.weight"].shape
    return load(nn.Conv1d(n_in, n_out, 1), model, path)


class WrittenConv(nn.Module):
    """A convolution with weight norm, tap by tap; it is padded on the left if it is causal."""

    def __init__(self, model: Model, path: str, stride: int, dilation: int, padding: int) -> None:
        super().__init__()
        self.weight_v = copy_parameter(model.weights[f"{path}.direction"])
        self.weight_g = copy_parameter(model.weights[f"{path}.magnitude"])
        self.bias = copy_parameter(model.weights[f"{path}.bias"])
        self.stride, self.dilation = stride, dilation
        self.padding = (padding, padding) if stride > 1 else ((KERNEL - 1) * dilation, 0)

    def forward(self, x: Tensor) -> Tensor:
        norm = self.weight_v.pow(2).sum(dim=(1, 2), keepdim=True).sqrt()
        weight = self.weight_v * (self.weight_g / norm)
        x = F.pad(x, self.padding)
        kernel = weight.shape[-1]
        length = (x.shape[-1] - self.dilation * (kernel - 1) - 1) // self.stride + 1
        y = self.bias[:, None]
        for tap in range(kernel):
            begin = tap * self.dilation
            end = begin + self.stride * (length - 1) + 1
            y = y + weight[:, :, tap] @ x[..., begin : end : self.stride]
        return y


def load_normed(
    model: Model, path: str, stride: int = 1, dilation: int = 1, padding: int = 0
) -> nn.Module:
    """Return the convolution with weight norm at ``path``."""
    if model.variant == "written":
        return WrittenConv(model, path, stride, dilation, padding)
    direction = model.weights[f"{path}.direction"]
    n_out, n_in, kernel = direction.shape
    conv = nn.Conv1d(n_in, n_out, kernel, stride=stride, dilation=dilation, padding=padding)
    conv.bias = copy_parameter(model.weights[f"{path}.bias"])
    conv = weight_norm(conv)
    conv.parametrizations.weight.original0 = copy_parameter(model.weights[f"{path}.magnitude"])
    conv.parametrizations.weight.original1 = copy_parameter(direction)
    return conv


class Snake(nn.Module):
    """x + sin(alpha x)^2 / alpha."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.alpha = copy_parameter(model.weights[f"{path}.alpha"])
        self.is_cosine = model.variant == "written"

    def forward(self, x: Tensor) -> Tensor:
        if self.is_cosine:
            return x + (1 - torch.cos(2 * self.alpha * x)) / (2 * self.alpha)
        return x + self.alpha.reciprocal() * torch.sin(self.alpha * x).pow(2)


class GroupNorm(nn.GroupNorm):
    """Group norm, also in plain arithmetic."""

    def __init__(self, model: Model, path: str, groups: int) -> None:
        super().__init__(groups, CHANNELS, eps=EPS)
        load(self, model, path)
        self.is_written_out = model.variant == "written"

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_written_out:
            return super().forward(x)
        groups = x.reshape(len(x), self.num_groups, -1)
        variance, mean = torch.var_mean(groups, dim=-1, correction=0, keepdim=True)
        normed = ((groups - mean) / torch.sqrt(variance + self.eps)).view_as(x)
        return normed * self.weight[:, None] + self.bias[:, None]


class Encoder(nn.Module):
    """Mean and logarithm of the variance, (batch, LATENT, STEPS) each, of waveforms."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for n in range(STAGES):
            padding = (ENCODER_KERNEL - STRIDE) // 2
            stages += [
                load_normed(model, f"encoder.{n}.conv", stride=STRIDE, padding=padding),
                GroupNorm(model, f"encoder.{n}.norm", model.groups if n == STAGES - 1 else GROUPS),
                Snake(model, f"encoder.{n}"),
            ]
        self.block = nn.Sequential(*stages)
        self.to_posterior = load_pointwise(model, "posterior")
        self.is_first_emphasized = model.is_first_emphasized

    def emphasize(self, waves: Tensor) -> Tensor:
        """Return waveforms after pre-emphasis."""
        emphasized = waves[..., 1:] - EMPHASIS * waves[..., :-1]
        first = waves[..., :1]
        if self.is_first_emphasized:
            first = first * (1 - EMPHASIS)
        return torch.cat([first, emphasized], dim=-1)

    def forward(self, waves: Tensor) -> tuple[Tensor, Tensor]:
        x = self.emphasize(waves)
        mean, log_variance = self.to_posterior(self.block(x)).chunk(2, dim=1)
        return mean, log_variance


class ResidualBlock(nn.Module):
    """A gated, dilated, causal convolution; a residual sum, and what is skipped to the end."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        is_last = n == BLOCKS - 1
        self.dilation = model.dilation if is_last else DILATIONS[n]
        self.conv = load_normed(model, f"blocks.{n}.dilated", dilation=self.dilation)
        self.conv1x1_skip = load_pointwise(model, f"blocks.{n}.skip")
        self.conv1x1_out = None if is_last else load_pointwise(model, f"blocks.{n}.residual")
        self.residual_scale = model.residual_scale if n == BLOCKS - 2 else 1.0
        self.is_padded_inside = model.variant == "written"
        n_padded = (KERNEL - 1) * self.dilation
        n_behind = n_padded // 2 if is_last and model.is_padded_around else 0
        self.padding = (n_padded - n_behind, n_behind)
        if self.is_padded_inside:
            self.conv.padding = self.padding

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        padded = x if self.is_padded_inside else F.pad(x, self.padding)
        values, gates = self.conv(padded).chunk(2, dim=1)
        gated = torch.tanh(values) * torch.sigmoid(gates)
        skip = self.conv1x1_skip(gated)
        if self.conv1x1_out is not None:
            x = x + self.conv1x1_out(gated)
        return (x if self.residual_scale == 1 else x * self.residual_scale), skip


class Decoder(nn.Module):
    """Mean and logarithm of the scale, (batch, 1, SAMPLES) each, of waveforms."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.first_conv = load_pointwise(model, "entry")
        self.blocks = nn.ModuleList(ResidualBlock(model, n) for n in range(BLOCKS))
        padding = (ENCODER_KERNEL - STRIDE) // 2
        upsample = nn.ConvTranspose1d(CHANNELS, HALF, ENCODER_KERNEL, STRIDE, padding=padding)
        self.upsample = load(upsample, model, "upsampling")
        self.snake = Snake(model, "upsampling")
        self.last_conv = load(nn.Conv1d(HALF, 2, 3, padding=1), model, "output")

    def repeat(self, x: Tensor) -> Tensor:
        """Return (batch, channels, steps) with each step twice."""
        if self.model.is_tiled:
            return x.repeat(1, 1, STRIDE)
        if self.model.variant == "distributions":
            return F.interpolate(x, scale_factor=STRIDE, mode="nearest")
        return x.repeat_interleave(STRIDE, dim=-1)

    def forward(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first_conv(latents)
        skips = 0
        for block in self.blocks:
            x, skip = block(x)
            skips = skips + skip
        x = F.relu(skips * math.sqrt(1 / BLOCKS))
        if self.model.is_upsampling_half:
            conv = self.upsample
            half = (values.bfloat16() for values in (x, conv.weight, conv.bias))
            x = F.conv_transpose1d(*half, conv.stride, conv.padding).float()
        else:
            x = self.upsample(x)
        mean, log_scale = self.last_conv(self.repeat(self.snake(x))).chunk(2, dim=1)
        return mean, log_scale


class WaveVAE(nn.Module):
    """Laplace loss of waveforms, plus the divergence of the posterior."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.encoder, self.decoder = Encoder(model), Decoder(model)

    def forward(self, waves: Tensor, noise: Tensor) -> Tensor:
        mean, log_variance = self.encoder(waves)
        deviation = torch.exp(self.model.deviation_factor * log_variance)
        latents = mean + deviation * noise
        if self.model.latent_gradient != 1:
            latents = scaled_gradient(latents, self.model.latent_gradient)
        if self.model.is_sample_stopped:
            latents = latents.detach()
        wave_mean, log_scale = self.decoder(latents)
        if self.model.variant == "distributions":
            loss = -Laplace(wave_mean, log_scale.exp()).log_prob(waves).mean()
            divergence = kl_divergence(Normal(mean, deviation), Normal(0.0, 1.0))
            return loss + KL_WEIGHT * divergence.sum(dim=(1, 2)).mean()
        if self.model.is_target_emphasized:
            waves = self.encoder.emphasize(waves)
        losses = torch.abs(waves - wave_mean) * torch.exp(-log_scale) + math.log(2)
        if self.model.has_log_scale:
            losses = losses + log_scale
        divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        return losses.mean() + KL_WEIGHT * divergence / len(waves)
