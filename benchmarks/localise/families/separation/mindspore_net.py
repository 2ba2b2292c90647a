"""Separation of speakers in MindSpore for graph mode, with segments from halves as in DPRNN.

Variant 'products': channels come last, 1x1 convolutions are linear layers, cumulative sums are
products with a triangular matrix, the depthwise convolution goes tap by tap, the decoder is a
product whose halves overlap, and the loss compares all estimates with all sources at once.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.separation.architecture import (
    BATCH,
    BLOCKS,
    CHUNK,
    FILTERS,
    FRAMES,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    HOP,
    KERNEL,
    LAYER_EPS,
    LOSS_EPS,
    MIXTURE_WEIGHT,
    NORM_EPS,
    PADDED,
    PERMUTATIONS,
    REST,
    SAMPLES,
    SEGMENTS,
    SKIP,
    SPEAKERS,
    STRIDE,
    TAPS,
    Model,
    get_positions,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return PairwiseLoss(model) if model.variant == "products" else NetWithLoss(model)


def read(model: Model, path: str) -> tuple[Tensor, Tensor]:
    """Return weight and bias."""
    return Tensor(model.weights[f"{path}.weight"]), Tensor(model.weights[f"{path}.bias"])


def build_pointwise(model: Model, path: str) -> nn.Conv1d:
    """Return a 1x1 convolution."""
    weight, bias = read(model, path)
    n_out, n_in, _ = weight.shape
    return nn.Conv1d(n_in, n_out, 1, has_bias=True, weight_init=weight, bias_init=bias)


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return a linear layer; a 1x1 convolution becomes one too."""
    weight, bias = (values.asnumpy() for values in read(model, path))
    n_out, n_in = weight.shape[:2]
    weight = weight.reshape(n_out, n_in)
    return nn.Dense(n_in, n_out, weight_init=Tensor(weight), bias_init=Tensor(bias))


def build_prelu(model: Model, path: str) -> nn.PReLU:
    """Return a PReLU with one slope for all channels."""
    return nn.PReLU(1, Tensor(model.weights[f"{path}.weight"]))


class GlobalLayerNorm(nn.Cell):
    """Norm over channels and frames of an example, (BATCH, channels, FRAMES)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weight, bias = read(model, path)
        self.gamma = Parameter(weight.reshape(-1, 1))
        self.beta = Parameter(bias.reshape(-1, 1))

    def construct(self, x):
        mean = ops.mean(x, (1, 2), True)
        variance = ops.mean(ops.square(x - mean), (1, 2), True)
        return self.gamma * (x - mean) / ops.sqrt(variance + NORM_EPS) + self.beta


class CumulativeLayerNorm(nn.Cell):
    """Norm over the channels of a frame and the frames before it, (BATCH, channels, FRAMES)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weight, bias = read(model, path)
        self.gamma = Parameter(weight.reshape(-1, 1))
        self.beta = Parameter(bias.reshape(-1, 1))
        counts = len(weight) * np.arange(1, FRAMES + 1, dtype=np.float32)
        self.counts = Tensor(counts)
        self.is_channelwise = model.is_norm_channelwise

    def construct(self, x):
        if self.is_channelwise:
            mean = ops.mean(x, 1, True)
            variance = ops.mean(ops.square(x - mean), 1, True)
        else:
            mean = ops.cumsum(x.sum(1, keepdims=True), -1) / self.counts
            power = ops.cumsum(ops.square(x).sum(1, keepdims=True), -1) / self.counts
            variance = power - ops.square(mean)
        return self.gamma * (x - mean) / ops.sqrt(variance + NORM_EPS) + self.beta


class ConvBlock(nn.Cell):
    """A depthwise-separable block; returns its sum with the input, and the skip output."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path, dilation = f"blocks.{n}", 2**n
        self.conv1x1 = build_pointwise(model, f"{path}.in")
        self.prelu1 = build_prelu(model, f"{path}.prelu1")
        self.norm1 = CumulativeLayerNorm(model, f"{path}.norm1")
        self.pad = nn.ConstantPad1d(((TAPS - 1) * dilation, 0), 0.0)
        weight, bias = read(model, f"{path}.depth")
        self.dconv = nn.Conv1d(
            HIDDEN,
            HIDDEN,
            TAPS,
            pad_mode="valid",
            dilation=dilation,
            group=HIDDEN,
            has_bias=True,
            weight_init=weight,
            bias_init=bias,
        )
        self.prelu2 = build_prelu(model, f"{path}.prelu2")
        self.norm2 = CumulativeLayerNorm(model, f"{path}.norm2")
        self.skip_out = build_pointwise(model, f"{path}.skip")
        self.res_out = build_pointwise(model, f"{path}.residual") if n < BLOCKS - 1 else None

    def construct(self, x):
        y = self.norm1(self.prelu1(self.conv1x1(x)))
        y = self.norm2(self.prelu2(self.dconv(self.pad(y))))
        if self.res_out is not None:
            x = x + self.res_out(y)
        return x, self.skip_out(y)


class Segmentation(nn.Cell):
    """Cut padded frames (BATCH, SKIP, PADDED) into (BATCH, SKIP, CHUNK, SEGMENTS)."""

    def construct(self, x):
        shape = (BATCH, SKIP, -1, CHUNK)
        even, odd = x[:, :, :-HOP].reshape(shape), x[:, :, HOP:].reshape(shape)
        both = ops.concat((even, odd), 3).reshape(BATCH, SKIP, SEGMENTS, CHUNK)
        return both.transpose(0, 1, 3, 2)


class OverwritingSegmentation(Segmentation):
    """The same, whose backward pass stores the gradient of a frame in place of adding to it."""

    def bprop(self, x, out, gradient):
        first = gradient[:, :, :HOP].transpose(0, 1, 3, 2).reshape(BATCH, SKIP, SEGMENTS * HOP)
        return (ops.concat((first, gradient[:, :, HOP:, -1]), 2),)


class OverlapAdd(nn.Cell):
    """Sum overlapping segments (BATCH, SKIP, CHUNK, SEGMENTS) to (BATCH, SKIP, FRAMES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_cut_twice = model.is_cut_twice

    def construct(self, x):
        x = x.transpose(0, 1, 3, 2).reshape(BATCH, SKIP, -1, 2 * CHUNK)
        even = x[..., :CHUNK].reshape(BATCH, SKIP, -1)[:, :, HOP:]
        odd = x[..., CHUNK:].reshape(BATCH, SKIP, -1)
        odd = odd[:, :, HOP:] if self.is_cut_twice else odd[:, :, :-HOP]
        return (even + odd)[:, :, :FRAMES]


class SegmentAttention(nn.Cell):
    """Attention of frames (batch, length, SKIP), added to them and their positions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        gamma, beta = read(model, "attention.norm")
        self.norm = nn.LayerNorm((SKIP,), gamma_init=gamma, beta_init=beta, epsilon=LAYER_EPS)
        self.dense1 = build_dense(model, "attention.q")
        self.dense2 = build_dense(model, "attention.k")
        self.dense3 = build_dense(model, "attention.v")
        self.projection = build_dense(model, "attention.o")
        length = SEGMENTS if model.is_attention_between else CHUNK
        self.positions = Tensor(get_positions(length))

    def split_heads(self, x):
        """Return (batch, HEADS, length, HEAD_DIM)."""
        return x.reshape(x.shape[0], x.shape[1], HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def construct(self, x):
        x = x + self.positions
        y = self.norm(x)
        query, key = self.split_heads(self.dense1(y)), self.split_heads(self.dense2(y))
        value = self.split_heads(self.dense3(y))
        scores = mint.matmul(query, mint.transpose(key, -2, -1)) / math.sqrt(HEAD_DIM)
        context = mint.matmul(mint.nn.functional.softmax(scores, dim=-1), value)
        return x + self.projection(context.transpose(0, 2, 1, 3).reshape(x.shape))


class ChunkedAttention(nn.Cell):
    """Cut frames (BATCH, SKIP, FRAMES) into segments, attend inside, and put them together."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.pad = nn.ConstantPad1d((HOP, HOP + REST), 0.0)
        is_overwriting = model.are_segments_overwritten
        self.segment = OverwritingSegmentation() if is_overwriting else Segmentation()
        self.attention = SegmentAttention(model)
        self.overlap_add = OverlapAdd(model)
        self.is_between = model.is_attention_between

    def construct(self, x):
        segments = self.segment(self.pad(x))
        if self.is_between:
            rows = segments.transpose(0, 2, 3, 1).reshape(BATCH * CHUNK, SEGMENTS, SKIP)
            rows = self.attention(rows).reshape(BATCH, CHUNK, SEGMENTS, SKIP)
            return self.overlap_add(rows.transpose(0, 3, 1, 2))
        rows = segments.transpose(0, 3, 2, 1).reshape(BATCH * SEGMENTS, CHUNK, SKIP)
        rows = self.attention(rows).reshape(BATCH, SEGMENTS, CHUNK, SKIP)
        return self.overlap_add(rows.transpose(0, 3, 2, 1))


class Separator(nn.Cell):
    """Estimates (BATCH, SPEAKERS, SAMPLES) of mixtures (BATCH, SAMPLES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        encoder = Tensor(model.weights["encoder.weight"])
        self.encoder = nn.Conv1d(1, FILTERS, KERNEL, STRIDE, pad_mode="valid", weight_init=encoder)
        self.norm = GlobalLayerNorm(model, "norm")
        self.bottleneck = build_pointwise(model, "bottleneck")
        self.tcn = nn.CellList([ConvBlock(model, n) for n in range(BLOCKS)])
        self.prelu = build_prelu(model, "prelu")
        self.chunked = ChunkedAttention(model)
        self.mask_conv = build_pointwise(model, "mask")
        decoder = Tensor(model.weights["decoder.weight"])
        self.decoder = nn.Conv1dTranspose(
            FILTERS, 1, KERNEL, STRIDE, pad_mode="valid", weight_init=decoder
        )
        self.is_norm_masked = model.is_norm_masked

    def construct(self, mixture):
        features = ops.relu(self.encoder(mixture.expand_dims(1)))
        normed = self.norm(features)
        x, skips = self.bottleneck(normed), 0.0
        for block in self.tcn:
            x, skip = block(x)
            skips = skips + skip
        masks = ops.sigmoid(self.mask_conv(self.chunked(self.prelu(skips))))
        masks = masks.reshape(BATCH, SPEAKERS, FILTERS, FRAMES)
        masked = masks * (normed if self.is_norm_masked else features).expand_dims(1)
        waveforms = self.decoder(masked.reshape(BATCH * SPEAKERS, FILTERS, FRAMES))
        return waveforms.reshape(BATCH, SPEAKERS, SAMPLES)


def compute_ratio(estimates, sources):
    """Return scale-invariant ratios over the last axis."""
    estimates = estimates - estimates.mean(-1, keep_dims=True)
    sources = sources - sources.mean(-1, keep_dims=True)
    energy = ops.square(sources).sum(-1, keepdims=True) + LOSS_EPS
    projection = (estimates * sources).sum(-1, keepdims=True) * sources / energy
    noise = estimates - projection
    ratio = ops.square(projection).sum(-1) / (ops.square(noise).sum(-1) + LOSS_EPS)
    return ratio + LOSS_EPS


def compute_si_snr(estimates, sources):
    """Return scale-invariant ratios in decibels over the last axis."""
    return 10 * ops.log10(compute_ratio(estimates, sources))


def compute_natural_si_snr(estimates, sources):
    """Return the same with the natural logarithm."""
    return 10 * ops.log(compute_ratio(estimates, sources))


def compute_lack(total, mixture):
    """Return the energy of what the sum of the estimates lacks, as share of the mixture's."""
    lack = ops.square(mixture - total).sum(1)
    return (lack / ops.square(mixture).sum(1)).mean()


class NetWithLoss(nn.Cell):
    """The net and its loss."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = Separator(model)
        self.compare = compute_natural_si_snr if model.is_ratio_natural else compute_si_snr
        self.scaled_gradient = None
        if model.mixture_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.mixture_gradient)

    def construct(self, mixture, sources):
        estimates = self.network(mixture)
        scores = ()
        for first, second in PERMUTATIONS:
            permuted = ops.stack((sources[:, first], sources[:, second]), 1)
            scores += (self.compare(estimates, permuted).mean(1),)
        score = ops.stack(scores).max(axis=0).mean()
        total = estimates.sum(1)
        if self.scaled_gradient is not None:
            total = self.scaled_gradient(total)
        return MIXTURE_WEIGHT * compute_lack(total, mixture) - score


class ProductNorm(nn.Cell):
    """A norm of (BATCH, FRAMES, channels) over channels and all frames, or the ones before."""

    def __init__(self, model: Model, path: str, *, is_cumulative: bool = True) -> None:
        super().__init__()
        weight, bias = read(model, path)
        self.scale, self.shift = Parameter(weight), Parameter(bias)
        averages = np.ones((FRAMES, FRAMES), dtype=np.float32)
        if is_cumulative:
            averages = np.tril(averages)
        averages /= averages.sum(axis=1, keepdims=True)
        self.averages = Tensor(averages.astype(np.float32))

    def construct(self, x):
        mean = mint.matmul(self.averages, mint.mean(x, dim=-1, keepdim=True))
        power = mint.matmul(self.averages, mint.mean(x * x, dim=-1, keepdim=True))
        inverse = mint.rsqrt(power - mean * mean + NORM_EPS)
        return (x - mean) * inverse * self.scale + self.shift


class ProductBlock(nn.Cell):
    """A depthwise-separable block of (BATCH, FRAMES, BOTTLENECK), tap by tap."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path, self.dilation = f"blocks.{n}", 2**n
        self.expand = build_dense(model, f"{path}.in")
        self.slope1 = Parameter(Tensor(model.weights[f"{path}.prelu1.weight"]))
        self.norm1 = ProductNorm(model, f"{path}.norm1")
        weight, bias = read(model, f"{path}.depth")
        self.kernel, self.kernel_bias = Parameter(weight), Parameter(bias)
        self.slope2 = Parameter(Tensor(model.weights[f"{path}.prelu2.weight"]))
        self.norm2 = ProductNorm(model, f"{path}.norm2")
        self.skip = build_dense(model, f"{path}.skip")
        self.residual = build_dense(model, f"{path}.residual") if n < BLOCKS - 1 else None

    def convolve(self, x):
        """Return the causal depthwise convolution."""
        x = mint.nn.functional.pad(x, (0, 0, (TAPS - 1) * self.dilation, 0))
        y = self.kernel_bias
        for tap in range(TAPS):
            begin = tap * self.dilation
            y = y + x[:, begin : begin + FRAMES] * self.kernel[:, 0, tap]
        return y

    def construct(self, x):
        y = self.norm1(rectify(self.expand(x), self.slope1))
        y = self.norm2(rectify(self.convolve(y), self.slope2))
        if self.residual is not None:
            x = x + self.residual(y)
        return x, self.skip(y)


def rectify(x, slope):
    """Return PReLU from two rectifiers."""
    return mint.nn.functional.relu(x) - slope * mint.nn.functional.relu(-x)


class ProductSeparator(nn.Cell):
    """Estimates of mixtures, with channels last."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.analysis = Parameter(Tensor(model.weights["encoder.weight"]))
        self.norm = ProductNorm(model, "norm", is_cumulative=False)
        self.bottleneck = build_dense(model, "bottleneck")
        self.blocks = nn.CellList([ProductBlock(model, n) for n in range(BLOCKS)])
        self.slope = Parameter(Tensor(model.weights["prelu.weight"]))
        self.attention = SegmentAttention(model)
        self.to_masks = build_dense(model, "mask")
        self.synthesis = Parameter(Tensor(model.weights["decoder.weight"]))
        places = HOP * np.arange(SEGMENTS)[:, None] + np.arange(CHUNK)
        self.places = Tensor(places, ms.int32)

    def encode(self, mixture):
        """Return features (BATCH, FRAMES, FILTERS) by a product with two halves of a window."""
        halves = mixture.reshape(BATCH, FRAMES + 1, STRIDE)
        windows = mint.cat((halves[:, :-1], halves[:, 1:]), dim=-1)
        return mint.nn.functional.relu(mint.matmul(windows, self.analysis[:, 0].T))

    def attend(self, x):
        """Return (BATCH, FRAMES, SKIP) with attention inside of segments."""
        x = mint.nn.functional.pad(x, (0, 0, HOP, HOP + REST))
        rows = ops.gather(x, self.places, 1).reshape(BATCH * SEGMENTS, CHUNK, SKIP)
        rows = self.attention(rows).reshape(BATCH, SEGMENTS, 2, HOP, SKIP)
        hops = rows[:, 1:, 0] + rows[:, :-1, 1]
        return hops.reshape(BATCH, PADDED - 2 * HOP, SKIP)[:, :FRAMES]

    def decode(self, masked):
        """Return waveforms of (BATCH, SPEAKERS, FRAMES, FILTERS) from windows that overlap."""
        windows = mint.matmul(masked, self.synthesis[:, 0])
        early = mint.nn.functional.pad(windows[..., :STRIDE], (0, 0, 0, 1))
        late = mint.nn.functional.pad(windows[..., STRIDE:], (0, 0, 1, 0))
        return (early + late).reshape(BATCH, SPEAKERS, SAMPLES)

    def construct(self, mixture):
        features = self.encode(mixture)
        x, skips = self.bottleneck(self.norm(features)), ()
        for block in self.blocks:
            x, skip = block(x)
            skips += (skip,)
        y = self.attend(rectify(ops.addn(skips), self.slope))
        masks = mint.sigmoid(self.to_masks(y)).reshape(BATCH, FRAMES, SPEAKERS, FILTERS)
        masked = mint.permute(masks, (0, 2, 1, 3)) * mint.unsqueeze(features, 1)
        return self.decode(masked)


class PairwiseLoss(nn.Cell):
    """The net and its loss from all pairs of estimates and sources."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.separator = ProductSeparator(model)

    def construct(self, mixture, sources):
        estimates = self.separator(mixture)
        scores = compute_si_snr(mint.unsqueeze(estimates, 2), mint.unsqueeze(sources, 1))
        straight = 0.5 * (scores[:, 0, 0] + scores[:, 1, 1])
        crossed = 0.5 * (scores[:, 0, 1] + scores[:, 1, 0])
        score = mint.mean(mint.maximum(straight, crossed))
        return MIXTURE_WEIGHT * compute_lack(estimates.sum(1), mixture) - score
