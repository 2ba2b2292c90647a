"""The flow in MindSpore: blocks of flows, each of which returns what its log-determinant adds.

Variant 'written': 1x1 convolutions by matrix products, sigmoid in plain arithmetic, log-likelihoods
of normalized values.
"""

from __future__ import annotations

import math

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.flow.architecture import (
    BINS,
    BITS,
    DIMENSIONS,
    LEVELS,
    LOG_WIDTH,
    LOGS_FACTOR,
    STEPS,
    Model,
    count_channels,
)

LOG_TWO_PI = math.log(2 * math.pi)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return BitsPerDimension(model)


def load_vector(model: Model, path: str) -> Parameter:
    """Return the vector at ``path`` as (1, channels, 1, 1)."""
    return Parameter(Tensor(model.weights[path].reshape(1, -1, 1, 1)))


def build_conv(model: Model, path: str, *, has_bias: bool) -> nn.Conv2d:
    """Return the convolution at ``path``, which keeps height and width."""
    weight = model.weights[f"{path}.weight"]
    n_out, n_in, kernel, _ = weight.shape
    return nn.Conv2d(
        n_in,
        n_out,
        kernel,
        has_bias=has_bias,
        weight_init=Tensor(weight),
        bias_init=Tensor(model.weights[f"{path}.bias"]) if has_bias else None,
    )


def split_pairs(x):
    """Return the even and the odd channels; CPU has no gradient of slices with a step."""
    batch, channels, height, width = x.shape
    pairs = x.reshape(batch, channels // 2, 2, height, width)
    return pairs[:, :, 0], pairs[:, :, 1]


class ActNorm(nn.Cell):
    """An offset and a scale by channel."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.loc = load_vector(model, f"{path}.bias")
        self.log_scale = load_vector(model, f"{path}.logs")
        self.is_counted_once = model.is_norm_counted_once

    def construct(self, x):
        _, _, height, width = x.shape
        pixels = 1 if self.is_counted_once else height * width
        log_det = pixels * self.log_scale.sum()
        return ops.exp(self.log_scale) * (x + self.loc), log_det


class ScaledLogActNorm(ActNorm):
    """The same; the gradient of the logarithms of the scales is multiplied."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__(model, path)
        self.scaled_gradient = ScaledGradient(model.log_gradient)

    def construct(self, x):
        _, _, height, width = x.shape
        log_scale = self.scaled_gradient(self.log_scale)
        return ops.exp(log_scale) * (x + self.loc), height * width * log_scale.sum()


class NormedConv2d(nn.Cell):
    """A convolution without bias, followed by an offset and a scale."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv = build_conv(model, path, has_bias=False)
        self.loc = load_vector(model, f"{path}.bias")
        self.log_scale = load_vector(model, f"{path}.logs")

    def construct(self, x):
        return ops.exp(self.log_scale) * (self.conv(x) + self.loc)


class ZeroConv2d(nn.Cell):
    """A convolution that is zero at the start of a training, times learned scales."""

    def __init__(self, model: Model, path: str, *, is_half: bool = False) -> None:
        super().__init__()
        self.conv = build_conv(model, path, has_bias=True)
        self.scale = load_vector(model, f"{path}.logs")
        self.is_half = is_half
        if is_half:
            self.conv.to_float(ms.float16)

    def construct(self, x):
        out = self.conv(x)
        if self.is_half:
            out = out.astype(ms.float32)
        return out * ops.exp(self.scale * LOGS_FACTOR)


class InvConv2dLU(nn.Cell):
    """A 1x1 convolution whose matrix is a product of triangular ones."""

    def __init__(self, model: Model, path: str, level: int) -> None:
        super().__init__()
        mask = model.mix_mask(level)
        self.w_p = Tensor(model.weights[f"{path}.order"])
        self.s_sign = Tensor(model.weights[f"{path}.signs"])
        self.l_mask, self.u_mask = Tensor(mask), Tensor(mask.T.copy())
        self.l_eye = ops.eye(count_channels(level), count_channels(level), ms.float32)
        self.w_l = Parameter(Tensor(model.weights[f"{path}.lower"]))
        self.w_s = Parameter(Tensor(model.weights[f"{path}.logs"]))
        self.w_u = Parameter(Tensor(model.weights[f"{path}.upper"]))
        self.conv2d = ops.Conv2D(count_channels(level), 1)
        self.is_product = model.variant == "written"

    def calc_weight(self):
        """Return the matrix."""
        lower = self.w_l * self.l_mask + self.l_eye
        upper = self.w_u * self.u_mask + ops.diag(self.s_sign * ops.exp(self.w_s))
        return ops.matmul(ops.matmul(self.w_p, lower), upper)

    def construct(self, x):
        batch, channels, height, width = x.shape
        weight = self.calc_weight()
        log_det = height * width * self.w_s.sum()
        if self.is_product:
            out = ops.matmul(weight, x.reshape(batch, channels, -1)).reshape(x.shape)
        else:
            out = self.conv2d(x, weight.reshape(channels, channels, 1, 1))
        return out, log_det


class AffineCoupling(nn.Cell):
    """The second half of the channels changes as the first one says."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.net = nn.SequentialCell(
            NormedConv2d(model, f"{path}.conv1"),
            nn.ReLU(),
            NormedConv2d(model, f"{path}.conv2"),
            nn.ReLU(),
            ZeroConv2d(model, f"{path}.conv3", is_half=model.is_net_half),
        )
        self.scale_offset = model.scale_offset
        self.is_shift_last = model.is_shift_last
        self.is_net_halved = model.is_net_halved
        self.is_determinant_stopped = model.is_determinant_stopped
        self.is_scale_exponential = model.is_scale_exponential
        self.is_written_out = model.variant == "written"

    def construct(self, x):
        in_a, in_b = ops.chunk(x, 2, 1)
        out = self.net(in_a)
        if self.is_net_halved:
            shift, raw_scale = ops.chunk(out, 2, 1)
        else:
            shift, raw_scale = split_pairs(out)
        if self.is_written_out:
            denominator = 1 + ops.exp(-(raw_scale + self.scale_offset))
            out_b = (in_b + shift) / denominator
            log_det = -ops.log(denominator).reshape(x.shape[0], -1).sum(1)
            return ops.concat((in_a, out_b), 1), log_det
        if self.is_scale_exponential:
            scale = ops.exp(raw_scale)
        else:
            scale = ops.sigmoid(raw_scale + self.scale_offset)
        out_b = in_b * scale + shift if self.is_shift_last else (in_b + shift) * scale
        counted = ops.stop_gradient(scale) if self.is_determinant_stopped else scale
        log_det = ops.log(counted).reshape(x.shape[0], -1).sum(1)
        return ops.concat((in_a, out_b), 1), log_det


class Flow(nn.Cell):
    """Norm, 1x1 convolution and affine coupling."""

    def __init__(self, model: Model, level: int, step: int) -> None:
        super().__init__()
        path = f"levels.{level}.steps.{step}"
        build_norm = ActNorm if model.log_gradient == 1 else ScaledLogActNorm
        self.actnorm = build_norm(model, f"{path}.norm")
        self.invconv = InvConv2dLU(model, f"{path}.mix", level)
        self.coupling = AffineCoupling(model, f"{path}.net")

    def construct(self, x):
        out, log_det = self.actnorm(x)
        out, det1 = self.invconv(out)
        out, det2 = self.coupling(out)
        return out, log_det + det1 + det2


class GaussianLogP(nn.Cell):
    """Log-likelihood of values with a mean and logarithms of deviations."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.logs_in_variance = model.logs_in_variance
        self.is_normalized = model.variant == "written"

    def construct(self, x, mean, log_sd):
        if self.is_normalized:
            normalized = (x - mean) * ops.exp(-log_sd)
            log_p = -0.5 * ops.square(normalized) - log_sd - 0.5 * LOG_TWO_PI
        else:
            log_variance = self.logs_in_variance * log_sd
            squares = ops.square(x - mean) / ops.exp(log_variance)
            log_p = -0.5 * (LOG_TWO_PI + log_variance + squares)
        return log_p.reshape(x.shape[0], -1).sum(1)


class Block(nn.Cell):
    """A level: squeeze, flows and, but for the last one, the half of the channels that leaves."""

    def __init__(self, model: Model, level: int) -> None:
        super().__init__()
        self.flows = nn.CellList([Flow(model, level, step) for step in range(STEPS)])
        self.has_split = level < LEVELS - 1
        if self.has_split:
            self.prior = ZeroConv2d(model, f"levels.{level}.prior")
            self.gaussian_log_p = GaussianLogP(model)
        self.are_pixels_first = model.are_pixels_first

    def squeeze(self, x):
        """Return four pixels as channels."""
        batch, channels, height, width = x.shape
        x = x.reshape(batch, channels, height // 2, 2, width // 2, 2)
        if self.are_pixels_first:
            x = x.transpose(0, 3, 5, 1, 2, 4)
        else:
            x = x.transpose(0, 1, 3, 5, 2, 4)
        return x.reshape(batch, channels * 4, height // 2, width // 2)

    def construct(self, x):
        out = self.squeeze(x)
        log_det = 0
        for flow in self.flows:
            out, det = flow(out)
            log_det = log_det + det
        if not self.has_split:
            return out, log_det
        out, z_new = ops.chunk(out, 2, 1)
        mean, log_sd = split_pairs(self.prior(out))
        log_p = self.gaussian_log_p(z_new, mean, log_sd)
        return out, log_det + log_p


class Glow(nn.Cell):
    """Log-likelihood of values, (batch,)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.blocks = nn.CellList([Block(model, level) for level in range(LEVELS)])
        self.top_mean, self.top_log_sd = (
            load_vector(model, f"top.{name}") for name in ("mean", "logs")
        )
        self.gaussian_log_p = GaussianLogP(model)

    def construct(self, x):
        log_p_sum = 0
        for block in self.blocks:
            x, log_p = block(x)
            log_p_sum = log_p_sum + log_p
        mean = ops.broadcast_to(self.top_mean, x.shape)
        log_sd = ops.broadcast_to(self.top_log_sd, x.shape)
        return log_p_sum + self.gaussian_log_p(x, mean, log_sd)


class BitsPerDimension(nn.Cell):
    """Negative log-likelihood of images, in bits per dimension."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = Glow(model)
        self.has_width_term = model.has_width_term

    def construct(self, images, noise):
        bins = ops.floor(images.astype(ms.float32) / 2 ** (8 - BITS))
        x = bins / BINS - 0.5 + noise / BINS
        log_p = self.network(x)
        if self.has_width_term:
            log_p = log_p + LOG_WIDTH
        return (-log_p / (math.log(2) * DIMENSIONS)).mean()
