"""Separation of speakers in NumPy: sizes, knobs, weights and batch.

The net is that of Conv-TasNet (https://arxiv.org/abs/1809.07454, section II), small and causal up
to the attention, which SepFormer (https://arxiv.org/abs/2010.13154, section 2) has inside segments:

    encoder    convolution with stride STRIDE, without padding, and a rectifier: (FILTERS, FRAMES)
    norm       global layer norm: over channels and frames of an example
    bottleneck 1x1 convolution
    blocks.N   1x1 convolution, PReLU, cumulative norm, depthwise convolution with dilation 2^N that
               sees no later frame, PReLU, cumulative norm; from there a residual, which the last
               block lacks, and a skip output, whose sum over blocks goes on
    prelu      of the sum
    attention  frames are padded by HOP before and HOP + REST behind them and cut into segments of
               CHUNK every HOP frames; sines and cosines of the place in the segment are added;
               x + o(attention(norm(x))) inside a segment; overlapping segments are summed and the
               padding is cut off
    mask       1x1 convolution to SPEAKERS * FILTERS channels (speaker first) and a sigmoid
    decoder    masks times what the encoder returned, by a transposed convolution to waveforms

A cumulative norm divides by mean and variance over all channels of a frame and the ones before.
The loss is the negative scale-invariant signal-to-noise ratio in decibels, of waveforms without
their mean, averaged over speakers, with the best assignment of each example, averaged over the
batch; plus MIXTURE_WEIGHT times the energy of what the sum of the estimates lacks of the mixture,
as a share of the mixture's energy.

Weights of convolutions are (out, in, kernel), of the decoder (FILTERS, 1, KERNEL), of attention
(out, in); all have a bias but encoder and decoder. Slopes of PReLU are (1,).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, SPEAKERS, FRAMES = 3, 2, 33
KERNEL, STRIDE, FILTERS = 8, 4, 21
SAMPLES = (FRAMES - 1) * STRIDE + KERNEL
BOTTLENECK, HIDDEN, SKIP, BLOCKS, TAPS = 13, 19, 20, 3, 3
HEADS, HEAD_DIM = 4, 5
CHUNK, HOP = 10, 5
REST = CHUNK - (HOP + FRAMES % CHUNK) % CHUNK  #: frames missing in the last segment
PADDED = 2 * HOP + FRAMES + REST
SEGMENTS = (PADDED - CHUNK) // HOP + 1
NORM_EPS, LAYER_EPS, LOSS_EPS = 1e-8, 1e-5, 1e-8
MIXTURE_WEIGHT = 2.0
PERMUTATIONS = ((0, 1), (1, 0))
SEED = 683


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'products' (MindSpore): 1x1 convolutions, cumulative sums and
    #: the decoder by matrix products, channels last; 'fused' (PyTorch): group norm, joined skips
    #: and projections, folding; 'written' (PyTorch): einsum, halves of segments, energies
    variant: str = ""
    is_norm_channelwise: bool = False  #: cumulative norms see their own frame only; MindSpore only
    is_norm_masked: bool = False  #: masks are multiplied with normed features; MindSpore only
    is_attention_between: bool = False  #: it runs between segments, not inside; MindSpore only
    are_segments_overwritten: bool = False  #: gradients of overlaps are not added; MindSpore only
    is_cut_twice: bool = False  #: both runs of segments lose their first hop; MindSpore only
    mixture_gradient: float = 1.0  #: factor of the gradient of the estimates' sum; MindSpore only
    is_ratio_natural: bool = False  #: ten times its natural logarithm; MindSpore only
    overlap_factor: float = 1.0  #: of the sum of overlapping segments; PyTorch only
    is_padded_around: bool = False  #: the last depthwise convolution; PyTorch only
    mask_activation: str = "sigmoid"  #: or 'softmax', over speakers; PyTorch only
    is_batch_permuted: bool = False  #: one assignment for the whole batch; PyTorch only
    is_projection_stopped: bool = False  #: of the source on the estimate; PyTorch only
    is_sum_gradient_forward: bool = False  #: that of cumulative sums runs forward; PyTorch only
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(learning_rate=1e-3, weight_decay=0.0, clip=5.0)
    )

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return mixtures (BATCH, SAMPLES) and sources (BATCH, SPEAKERS, SAMPLES), float32."""
        rng = np.random.default_rng(SEED + 1)
        time = np.arange(SAMPLES)
        frequency = rng.uniform(0.02, 0.45, (BATCH, SPEAKERS, 3, 1))
        phase = rng.uniform(0, 2 * np.pi, (BATCH, SPEAKERS, 3, 1))
        tones = np.sin(frequency * time + phase).mean(axis=2)
        noise = 0.2 * rng.standard_normal((BATCH, SPEAKERS, SAMPLES))
        sources = (tones + noise + 0.1).astype(np.float32)
        return sources.sum(axis=1), sources


def get_positions(length: int) -> np.ndarray:
    """Return sines and cosines in turn, float32 (length, SKIP)."""
    frequencies = 10000.0 ** (-np.arange(0, SKIP, 2) / SKIP)
    angles = np.arange(length)[:, None] * frequencies
    pairs = np.stack([np.sin(angles), np.cos(angles)], axis=2)
    return pairs.reshape(length, SKIP).astype(np.float32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_matrix("encoder", FILTERS, 1, KERNEL)
    weights.add_norm("norm", FILTERS)
    weights.add_linear("bottleneck", BOTTLENECK, FILTERS, 1)
    for n in range(BLOCKS):
        path = f"blocks.{n}"
        weights.add_linear(f"{path}.in", HIDDEN, BOTTLENECK, 1)
        weights.add_linear(f"{path}.depth", HIDDEN, 1, TAPS)
        for layer in (1, 2):
            _add_slope(weights, f"{path}.prelu{layer}")
            weights.add_norm(f"{path}.norm{layer}", HIDDEN)
        if n < BLOCKS - 1:
            weights.add_linear(f"{path}.residual", BOTTLENECK, HIDDEN, 1)
        weights.add_linear(f"{path}.skip", SKIP, HIDDEN, 1)
    _add_slope(weights, "prelu")
    weights.add_norm("attention.norm", SKIP)
    for name in ("q", "k", "v", "o"):
        weights.add_linear(f"attention.{name}", SKIP, SKIP)
    weights.add_linear("mask", SPEAKERS * FILTERS, SKIP, 1)
    _add_decoder(weights)
    return Model("separation", weights)


def _add_slope(weights: Weights, name: str) -> None:
    weights[f"{name}.weight"] = (0.25 + 0.05 * weights.rng.standard_normal(1)).astype(np.float32)


def _add_decoder(weights: Weights) -> None:
    """Add a decoder that follows the encoder, as training makes it: estimates are like mixtures."""
    weights.add_matrix("decoder", FILTERS, 1, KERNEL)
    encoder = weights["encoder.weight"]
    weights["decoder.weight"] = 0.3 * encoder + 0.1 * weights["decoder.weight"]
