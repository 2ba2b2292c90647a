"""The codec in PyTorch, with the modules of EnCodec.

Variant 'functional': other names, weight norm, snake, ELU and losses written out, the LSTM cell by
cell, distances from differences, spectra by a strided convolution.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from families.codec.architecture import (
    CODEBOOKS,
    COMMITMENT_WEIGHT,
    DILATIONS,
    HIDDEN,
    POWER_EPS,
    SPECTRAL_WEIGHT,
    STAGES,
    STRIDES,
    WINDOWS,
    Model,
    get_fourier_matrix,
    get_padding,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return AudioCoder(model) if model.variant == "functional" else CodecLoss(model)


def make_parameter(model: Model, name: str) -> nn.Parameter:
    """Return a parameter with a copy of the weight."""
    return nn.Parameter(torch.from_numpy(np.array(model.weights[name])))


class SConv1d(nn.Module):
    """A causal convolution, padded by reflection; with weight norm if the weights say so."""

    def __init__(self, model: Model, path: str, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        has_norm = f"{path}.direction" in model.weights
        name = f"{path}.direction" if has_norm else f"{path}.weight"
        n_out, n_in, kernel = model.weights[name].shape
        conv = nn.Conv1d(n_in, n_out, kernel, stride=stride, dilation=dilation)
        conv.weight = make_parameter(model, name)
        conv.bias = make_parameter(model, f"{path}.bias")
        if has_norm:
            conv = weight_norm(conv)
            magnitude = make_parameter(model, f"{path}.magnitude")
            conv.parametrizations.weight.original0 = magnitude
            conv.parametrizations.weight.original1 = make_parameter(model, name)
        self.conv = conv
        self.padding = get_padding(kernel, 1 if model.is_stride_ignored else stride, dilation)

    def forward(self, x: Tensor) -> Tensor:
        if self.padding:
            x = F.pad(x, (self.padding, 0), mode="reflect")
        return self.conv(x)


class SConvTranspose1d(nn.Module):
    """A transposed convolution that is trimmed on the right."""

    def __init__(self, model: Model, path: str, stride: int) -> None:
        super().__init__()
        n_in, n_out, kernel = model.weights[f"{path}.weight"].shape
        self.convtr = nn.ConvTranspose1d(n_in, n_out, kernel, stride)
        self.convtr.weight = make_parameter(model, f"{path}.weight")
        self.convtr.bias = make_parameter(model, f"{path}.bias")
        self.trim_right = kernel - stride

    def forward(self, x: Tensor) -> Tensor:
        return self.convtr(x)[..., : -self.trim_right]


class Snake1d(nn.Module):
    """x + sin(alpha x)^2 / alpha."""

    def __init__(self, model: Model, name: str) -> None:
        super().__init__()
        self.alpha = make_parameter(model, name)
        self.is_logarithm = model.is_alpha_logarithm

    def forward(self, x: Tensor) -> Tensor:
        alpha = torch.exp(self.alpha) if self.is_logarithm else self.alpha
        return x + alpha.reciprocal() * torch.sin(alpha * x).pow(2)


class SEANetResnetBlock(nn.Module):
    """A dilated convolution and one of a single step, each behind its activation, and a skip."""

    def __init__(
        self, model: Model, path: str, dilation: int, activations: list[nn.Module]
    ) -> None:
        super().__init__()
        self.block = nn.Sequential(
            activations[0],
            SConv1d(model, f"{path}.conv1", dilation=dilation),
            activations[1],
            SConv1d(model, f"{path}.conv2"),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class SLSTM(nn.Module):
    """An LSTM over the steps of (batch, channels, steps), with a skip."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.lstm = nn.LSTM(HIDDEN, HIDDEN)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            values = torch.from_numpy(np.array(model.weights[f"lstm.{name}"]))
            getattr(self.lstm, f"{name}_l0").data.copy_(values)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(2, 0, 1)
        y, _ = self.lstm(x)
        return (y + x).permute(1, 2, 0)


def build_encoder(model: Model) -> nn.Sequential:
    """Return the encoder: waves to (batch, EMBED, STEPS)."""
    layers: list[nn.Module] = [SConv1d(model, "encoder.in")]
    for n, stride in enumerate(STRIDES):
        path = f"encoder.{n}"
        layers += [
            SEANetResnetBlock(model, f"{path}.unit", DILATIONS[n], [nn.ELU(), nn.ELU()]),
            nn.ELU(),
            SConv1d(model, f"{path}.down", stride=stride),
        ]
    return nn.Sequential(*layers, SLSTM(model), nn.ELU(), SConv1d(model, "encoder.out"))


def build_decoder(model: Model) -> nn.Sequential:
    """Return the decoder: (batch, EMBED, STEPS) to waves."""
    layers: list[nn.Module] = [SConv1d(model, "decoder.in")]
    for n, stride in enumerate(reversed(STRIDES)):
        path = f"decoder.{n}"
        activations = [Snake1d(model, f"{path}.unit.alpha{k}") for k in (1, 2)]
        layers += [
            Snake1d(model, f"{path}.alpha"),
            SConvTranspose1d(model, f"{path}.up", stride),
            SEANetResnetBlock(model, f"{path}.unit", DILATIONS[-1 - n], activations),
        ]
    return nn.Sequential(*layers, Snake1d(model, "decoder.alpha"), SConv1d(model, "decoder.out"))


class EuclideanCodebook(nn.Module):
    """The nearest codes of (batch, steps, EMBED)."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.embed = make_parameter(model, f"codebooks.{n}.weight")

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        embed = self.embed.t()
        dist = -(
            flat.pow(2).sum(1, keepdim=True) - 2 * flat @ embed + embed.pow(2).sum(0, keepdim=True)
        )
        indices = dist.max(dim=-1).indices
        return F.embedding(indices, self.embed).view_as(x)


class ResidualVectorQuantization(nn.Module):
    """Sums of codes, and the losses of codebooks and commitment."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EuclideanCodebook(model, n) for n in range(CODEBOOKS))
        self.is_restarted = model.is_residual_restarted
        self.is_residual_detached = model.is_residual_detached

    def subtract(self, residual: Tensor, quantized: Tensor) -> Tensor:
        """Return what a codebook leaves over."""
        if self.is_residual_detached:
            residual = residual.detach()
        return residual - quantized.detach()

    def forward(self, z: Tensor, n_quantizers: Tensor) -> tuple[Tensor, Tensor]:
        z = z.transpose(1, 2)
        residual, total, loss = z, torch.zeros_like(z), z.new_zeros(())
        for n, layer in enumerate(self.layers):
            quantized = layer(residual)
            mask = (n < n_quantizers).to(z.dtype)
            total = total + quantized * mask[:, None, None]
            commitment = F.mse_loss(residual, quantized.detach(), reduction="none").mean([1, 2])
            codebook = F.mse_loss(quantized, residual.detach(), reduction="none").mean([1, 2])
            loss = loss + COMMITMENT_WEIGHT * (commitment * mask).mean() + (codebook * mask).mean()
            residual = self.subtract(z if self.is_restarted else residual, quantized)
        total = z + (total - z).detach()
        return total.transpose(1, 2), loss


class SpectralLoss(nn.Module):
    """Absolute error of the logarithms of magnitudes."""

    def __init__(self, model: Model, window: int, hop: int) -> None:
        super().__init__()
        self.window, self.hop = window, hop
        self.register_buffer("dft", torch.from_numpy(get_fourier_matrix(window)))
        self.log_base = model.log_base

    def get_log_magnitude(self, waves: Tensor) -> Tensor:
        frames = waves.squeeze(1).unfold(-1, self.window, self.hop)
        real, imag = torch.matmul(frames, self.dft).chunk(2, dim=-1)
        magnitude = torch.sqrt(real**2 + imag**2 + POWER_EPS)
        return torch.log(magnitude) if self.log_base == math.e else torch.log10(magnitude)

    def forward(self, decoded: Tensor, waves: Tensor) -> Tensor:
        return F.l1_loss(self.get_log_magnitude(decoded), self.get_log_magnitude(waves))


class CodecLoss(nn.Module):
    """The codec and the sum of its losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder = build_encoder(model)
        self.quantizer = ResidualVectorQuantization(model)
        self.decoder = build_decoder(model)
        self.spectral = nn.ModuleList(SpectralLoss(model, *sizes) for sizes in WINDOWS)

    def forward(self, waves: Tensor, n_quantizers: Tensor) -> Tensor:
        quantized, loss = self.quantizer(self.encoder(waves), n_quantizers)
        decoded = self.decoder(quantized)
        loss = loss + F.l1_loss(decoded, waves)
        for spectral in self.spectral:
            loss = loss + SPECTRAL_WEIGHT * spectral(decoded, waves)
        return loss


class CausalConv(nn.Module):
    """The same convolution with its weight norm in plain arithmetic."""

    def __init__(self, model: Model, path: str, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.has_norm = f"{path}.direction" in model.weights
        if self.has_norm:
            self.v = make_parameter(model, f"{path}.direction")
            self.g = make_parameter(model, f"{path}.magnitude")
        else:
            self.kernel = make_parameter(model, f"{path}.weight")
        self.offset = make_parameter(model, f"{path}.bias")
        self.stride, self.dilation = stride, dilation

    def forward(self, x: Tensor) -> Tensor:
        if self.has_norm:
            kernel = self.v * (self.g * self.v.square().sum((1, 2), keepdim=True).rsqrt())
        else:
            kernel = self.kernel
        padding = get_padding(kernel.shape[-1], self.stride, self.dilation)
        if padding:
            x = torch.cat((x[..., 1 : padding + 1].flip(-1), x), dim=-1)
        return F.conv1d(x, kernel, self.offset, self.stride, dilation=self.dilation)


def elu(x: Tensor) -> Tensor:
    """Return ELU."""
    return torch.where(x > 0, x, torch.expm1(x.clamp(max=0)))


class CosineSnake(nn.Module):
    """Snake, with the sine's square by a cosine."""

    def __init__(self, model: Model, name: str) -> None:
        super().__init__()
        self.frequency = make_parameter(model, name)

    def forward(self, x: Tensor) -> Tensor:
        return x + (1 - torch.cos(2 * self.frequency * x)) / (2 * self.frequency)


class EncoderStage(nn.Module):
    """A residual unit and a strided convolution."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"encoder.{n}"
        self.dilated = CausalConv(model, f"{path}.unit.conv1", dilation=DILATIONS[n])
        self.pointwise = CausalConv(model, f"{path}.unit.conv2")
        self.downsample = CausalConv(model, f"{path}.down", stride=STRIDES[n])

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.pointwise(elu(self.dilated(elu(x))))
        return self.downsample(elu(x))


class DecoderStage(nn.Module):
    """A transposed convolution and a residual unit."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"decoder.{n}"
        self.snakes = nn.ModuleList(
            CosineSnake(model, f"{path}.{name}") for name in ("alpha", "unit.alpha1", "unit.alpha2")
        )
        self.kernel = make_parameter(model, f"{path}.up.weight")
        self.offset = make_parameter(model, f"{path}.up.bias")
        self.dilated = CausalConv(model, f"{path}.unit.conv1", dilation=DILATIONS[-1 - n])
        self.pointwise = CausalConv(model, f"{path}.unit.conv2")
        self.stride = STRIDES[-1 - n]

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-1] * self.stride
        x = F.conv_transpose1d(self.snakes[0](x), self.kernel, stride=self.stride)
        x = x.narrow(-1, 0, length) + self.offset[:, None]
        return x + self.pointwise(self.snakes[2](self.dilated(self.snakes[1](x))))


class AudioCoder(nn.Module):
    """The codec and its losses in one module."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem, self.to_codes = CausalConv(model, "encoder.in"), CausalConv(model, "encoder.out")
        self.down = nn.ModuleList(EncoderStage(model, n) for n in range(STAGES))
        self.memory = nn.LSTMCell(HIDDEN, HIDDEN)
        for name, parameter in self.memory.named_parameters():
            parameter.data.copy_(torch.from_numpy(np.array(model.weights[f"lstm.{name}"])))
        self.tables = nn.ParameterList(
            make_parameter(model, f"codebooks.{n}.weight") for n in range(CODEBOOKS)
        )
        self.from_codes = CausalConv(model, "decoder.in")
        self.up = nn.ModuleList(DecoderStage(model, n) for n in range(STAGES))
        self.last_snake = CosineSnake(model, "decoder.alpha")
        self.head = CausalConv(model, "decoder.out")
        for n, (window, _) in enumerate(WINDOWS):
            kernel = torch.from_numpy(get_fourier_matrix(window)).t().unsqueeze(1).contiguous()
            self.register_buffer(f"fourier{n}", kernel)

    def encode(self, x: Tensor) -> Tensor:
        """Return (batch, STEPS, EMBED)."""
        x = self.stem(x)
        for stage in self.down:
            x = stage(x)
        state = (x.new_zeros(len(x), HIDDEN), x.new_zeros(len(x), HIDDEN))
        outputs = []
        for step in x.unbind(-1):
            state = self.memory(step, state)
            outputs.append(step + state[0])
        return self.to_codes(elu(torch.stack(outputs, dim=-1))).mT

    def quantize(self, z: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return sums of codes, and the losses of the codebooks."""
        residual, parts, losses = z, [], []
        keep = (torch.arange(CODEBOOKS)[:, None] < counts).to(z.dtype)
        for table, kept in zip(self.tables, keep, strict=True):
            distances = (residual.unsqueeze(-2) - table).square().sum(-1)
            codes = table[distances.argmin(-1)]
            parts.append(codes * kept.view(-1, 1, 1))
            moved = (codes - residual.detach()).square().mean((1, 2))
            committed = (codes.detach() - residual).square().mean((1, 2))
            losses.append(((moved + COMMITMENT_WEIGHT * committed) * kept).mean())
            residual = residual - codes.detach()
        total = torch.stack(parts).sum(0)
        return z + (total - z).detach(), torch.stack(losses).sum()

    def decode(self, x: Tensor) -> Tensor:
        """Return waves of (batch, STEPS, EMBED)."""
        x = self.from_codes(x.mT)
        for stage in self.up:
            x = stage(x)
        return self.head(self.last_snake(x))

    def compare_spectra(self, decoded: Tensor, waves: Tensor, n: int) -> Tensor:
        """Return the absolute error of logarithms, of both in one batch."""
        both = torch.cat((decoded, waves))
        spectra = F.conv1d(both, getattr(self, f"fourier{n}"), stride=WINDOWS[n][1])
        power = spectra.unflatten(1, (2, -1)).square().sum(1)
        first, second = (0.5 * torch.log(power + POWER_EPS)).chunk(2)
        return (first - second).abs().mean()

    def forward(self, waves: Tensor, counts: Tensor) -> Tensor:
        codes, loss = self.quantize(self.encode(waves), counts)
        decoded = self.decode(codes)
        loss = loss + (decoded - waves).abs().mean()
        spectral = [self.compare_spectra(decoded, waves, n) for n in range(len(WINDOWS))]
        return loss + SPECTRAL_WEIGHT * sum(spectral)
