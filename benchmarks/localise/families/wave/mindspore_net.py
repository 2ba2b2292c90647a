"""The autoencoder in MindSpore: weight norm written down in a cell, operators for convolutions.

Variant 'unfolded': convolutions of one step by linear layers, dilated ones tap by tap with the
channels last, the terms of the loss in other forms.
"""

from __future__ import annotations

import math

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.wave.architecture import (
    BATCH,
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
    LATENT,
    STAGES,
    STRIDE,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    is_changed = (
        model.deviation_factor != 0.5
        or model.dilation != DILATIONS[-1]
        or model.is_upsampling_half
        or model.is_tiled
        or not model.has_log_scale
        or model.is_target_emphasized
    )
    if is_changed:
        raise SystemExit("a fault of the PyTorch net")
    return WaveLoss(model)


class PointwiseDense(nn.Cell):
    """A convolution of one step as a linear layer."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray) -> None:
        super().__init__()
        n_out, n_in, _ = weight.shape
        self.dense = nn.Dense(
            n_in, n_out, weight_init=Tensor(weight[:, :, 0].copy()), bias_init=Tensor(bias)
        )

    def construct(self, x):
        return self.dense(x.transpose(0, 2, 1)).transpose(0, 2, 1)


def build_convolution(model: Model, path: str, padding: int = 0) -> nn.Cell:
    """Return the convolution at ``path``."""
    weight, bias = (model.weights[f"{path}.{name}"] for name in ("weight", "bias"))
    n_out, n_in, kernel = weight.shape
    if kernel == 1 and model.variant == "unfolded":
        return PointwiseDense(weight, bias)
    return nn.Conv1d(
        n_in,
        n_out,
        kernel,
        pad_mode="pad",
        padding=padding,
        has_bias=True,
        weight_init=Tensor(weight),
        bias_init=Tensor(bias),
    )


class WeightNormConv1d(nn.Cell):
    """A convolution whose weight has a direction and a magnitude."""

    def __init__(
        self, model: Model, path: str, stride: int = 1, dilation: int = 1, padding: int = 0
    ) -> None:
        super().__init__()
        self.weight_v = Parameter(Tensor(model.weights[f"{path}.direction"]))
        self.weight_g = Parameter(Tensor(model.weights[f"{path}.magnitude"]))
        self.bias = Parameter(Tensor(model.weights[f"{path}.bias"]))
        self.stride, self.dilation, self.padding = stride, dilation, padding
        self.kernel = self.weight_v.shape[2]
        self.is_unfolded = model.variant == "unfolded" and stride == 1
        self.is_magnitude_of_all = False

    def get_weight(self):
        """Return the weight (outputs, inputs, kernel)."""
        squares = ops.square(self.weight_v)
        if self.is_magnitude_of_all:
            return self.weight_g * self.weight_v / ops.sqrt(squares.sum())
        return self.weight_g * self.weight_v / ops.sqrt(squares.sum((1, 2), keepdims=True))

    def convolve_taps(self, x, weight):
        """Return the same tap by tap, with the channels last in between."""
        x = x.transpose(0, 2, 1)
        length = x.shape[1] - self.dilation * (self.kernel - 1)
        y = self.bias
        for tap in range(self.kernel):
            begin = tap * self.dilation
            y = y + ops.matmul(x[:, begin : begin + length], weight[:, :, tap].T)
        return y.transpose(0, 2, 1)

    def construct(self, x):
        weight = self.get_weight()
        if self.is_unfolded:
            return self.convolve_taps(x, weight)
        return ops.conv1d(x, weight, self.bias, self.stride, "pad", self.padding, self.dilation)


class Snake(nn.Cell):
    """x + sin(alpha x)^2 / alpha."""

    def __init__(self, model: Model, path: str, *, is_divided: bool = True) -> None:
        super().__init__()
        self.alpha = Parameter(Tensor(model.weights[f"{path}.alpha"]))
        self.is_divided = is_divided

    def construct(self, x):
        squares = ops.square(ops.sin(self.alpha * x))
        return x + squares / self.alpha if self.is_divided else x + squares


class EncoderStage(nn.Cell):
    """Strided convolution, group norm, snake."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path, padding = f"encoder.{n}", (ENCODER_KERNEL - STRIDE) // 2
        self.conv = WeightNormConv1d(model, f"{path}.conv", stride=STRIDE, padding=padding)
        self.gamma = Parameter(Tensor(model.weights[f"{path}.norm.weight"]))
        self.beta = Parameter(Tensor(model.weights[f"{path}.norm.bias"]))
        self.snake = Snake(model, path)
        is_last = n == STAGES - 1
        self.is_activated_first = is_last and model.is_activated_first
        self.groups = model.groups if is_last else GROUPS

    def construct(self, x):
        x = self.conv(x)
        if self.is_activated_first:
            return ops.group_norm(self.snake(x), self.groups, self.gamma, self.beta, EPS)
        return self.snake(ops.group_norm(x, self.groups, self.gamma, self.beta, EPS))


class Encoder(nn.Cell):
    """Mean and logarithm of the variance of waveforms."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stages = nn.SequentialCell([EncoderStage(model, n) for n in range(STAGES)])
        self.posterior = build_convolution(model, "posterior")
        self.is_first_emphasized = model.is_first_emphasized

    def construct(self, waves):
        emphasized = waves[:, :, 1:] - EMPHASIS * waves[:, :, :-1]
        first = waves[:, :, :1]
        if self.is_first_emphasized:
            first = first * (1 - EMPHASIS)
        x = ops.concat((first, emphasized), -1)
        parameters = self.posterior(self.stages(x))
        return ops.split(parameters, LATENT, axis=1)


class EarlyGradientPad(nn.Cell):
    """The padding of a convolution; its backward pass keeps the first steps, not the last ones."""

    def __init__(self, pad: nn.Cell) -> None:
        super().__init__()
        self.pad = pad

    def construct(self, x):
        return self.pad(x)

    def bprop(self, x, out, gradient):
        return (gradient[:, :, : x.shape[2]],)


class GatedBlock(nn.Cell):
    """A gated, dilated, causal convolution; a residual sum, and what is skipped to the end."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        is_last = n == BLOCKS - 1
        dilation = DILATIONS[n]
        n_padded = (KERNEL - 1) * dilation
        n_behind = n_padded // 2 if is_last and model.is_padded_around else 0
        self.pad = nn.ConstantPad1d((n_padded - n_behind, n_behind), 0.0)
        if model.is_padding_gradient_early:
            self.pad = EarlyGradientPad(self.pad)
        self.conv = WeightNormConv1d(model, f"blocks.{n}.dilated", dilation=dilation)
        self.conv.is_magnitude_of_all = is_last and model.is_magnitude_of_all
        self.skip = build_convolution(model, f"blocks.{n}.skip")
        self.has_residual = not is_last
        if self.has_residual:
            self.residual = build_convolution(model, f"blocks.{n}.residual")
        self.are_gates_first = is_last and model.are_gates_first
        self.residual_scale = model.residual_scale if n == BLOCKS - 2 else 1.0

    def construct(self, x):
        values, gates = ops.split(self.conv(self.pad(x)), CHANNELS, axis=1)
        if self.are_gates_first:
            values, gates = gates, values
        gated = ops.tanh(values) * ops.sigmoid(gates)
        skip = self.skip(gated)
        if self.has_residual:
            x = x + self.residual(gated)
        if self.residual_scale != 1:
            x = x * self.residual_scale
        return x, skip


class Decoder(nn.Cell):
    """Mean and logarithm of the scale of waveforms."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.entry = build_convolution(model, "entry")
        self.blocks = nn.CellList([GatedBlock(model, n) for n in range(BLOCKS)])
        self.upsampling = nn.Conv1dTranspose(
            CHANNELS,
            HALF,
            ENCODER_KERNEL,
            STRIDE,
            pad_mode="pad",
            padding=(ENCODER_KERNEL - STRIDE) // 2,
            has_bias=True,
            weight_init=Tensor(model.weights["upsampling.weight"]),
            bias_init=Tensor(model.weights["upsampling.bias"]),
        )
        self.snake = Snake(model, "upsampling", is_divided=model.is_snake_divided)
        self.output = build_convolution(model, "output", padding=1)

    def construct(self, latents):
        x = self.entry(latents)
        x, total = self.blocks[0](x)
        for n in range(1, BLOCKS):
            x, skip = self.blocks[n](x)
            total = total + skip
        x = self.snake(self.upsampling(ops.relu(total / math.sqrt(BLOCKS))))
        return ops.split(self.output(ops.repeat_interleave(x, STRIDE, -1)), 1, axis=1)


class WaveVAE(nn.Cell):
    """Posterior and distribution of the waveforms, as mean and logarithm each."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(model), Decoder(model)
        self.scaled_gradient = None
        if model.latent_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.latent_gradient)
        self.is_sample_stopped = model.is_sample_stopped

    def construct(self, waves, noise):
        mean, log_variance = self.encoder(waves)
        latents = mean + ops.exp(0.5 * log_variance) * noise
        if self.scaled_gradient is not None:
            latents = self.scaled_gradient(latents)
        if self.is_sample_stopped:
            latents = ops.stop_gradient(latents)
        wave_mean, log_scale = self.decoder(latents)
        return mean, log_variance, wave_mean, log_scale


class WaveLoss(nn.Cell):
    """Laplace loss of waveforms, plus the divergence of the posterior."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = WaveVAE(model)
        self.is_rearranged = model.variant == "unfolded"
        self.is_mean_of_elements = model.kl_reduction == "elements"
        self.is_mean_stopped = model.is_mean_stopped

    def construct(self, waves, noise):
        mean, log_variance, wave_mean, log_scale = self.network(waves, noise)
        if self.is_rearranged:
            scale = ops.exp(log_scale)
            losses = ops.abs(wave_mean - waves) / scale + ops.log(2 * scale)
            squares = ops.square(mean) + ops.square(ops.exp(0.5 * log_variance))
            divergence = 0.5 * (squares.sum((1, 2)) - (log_variance + 1).sum((1, 2)))
            return losses.mean() + KL_WEIGHT * divergence.mean()
        losses = ops.abs(waves - wave_mean) * ops.exp(-log_scale) + log_scale + math.log(2)
        if self.is_mean_stopped:
            mean = ops.stop_gradient(mean)
        divergence = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
        if self.is_mean_of_elements:
            return losses.mean() + KL_WEIGHT * divergence.mean()
        return losses.mean() + KL_WEIGHT * divergence.sum() / BATCH
