"""A neural audio codec in NumPy: sizes, knobs, weights and batch.

The encoder and decoder of https://arxiv.org/abs/2210.13438 (section 3.1), small and causal: in each
stage a residual unit (a dilated convolution and one of a single step, each behind an activation)
and a strided convolution whose kernel has two strides; an LSTM with a skip around it at the end.
Convolutions are padded by reflection on the left, with dilation * (kernel - 1) + 1 - stride
samples. Transposed ones lose as many samples on the right as the kernel has more than the stride.
The encoder has ELU, the decoder snake, x + sin(alpha x)^2 / alpha (https://arxiv.org/abs/2306.06546,
section 3.1).

Residual vector quantisation (https://arxiv.org/abs/2107.03312, section III-C): each of three
codebooks has the nearest code of what the codebooks before it left over. An example has the codes
of its first codebooks only, as its count says. The gradient passes straight from the sum of the
codes to the encoding. The loss is the sum of

    waveform     mean absolute error
    spectra      mean absolute error of the logarithms of magnitudes, for two window sizes
    codebooks    squared distance of codes to what they are compared with, which has no gradient
    commitment   the same distance, with a gradient to the encoding only, times COMMITMENT_WEIGHT

the last two as means over the batch, zero for the codebooks that an example lacks. Weights:

    encoder.in, encoder.out, decoder.in, decoder.out       convolutions with bias
    encoder.N.unit.{conv1, conv2}, encoder.N.down          with weight norm: .direction, .magnitude
    decoder.N.unit.{conv1, conv2}                          (outputs, 1, 1), .bias; likewise
    decoder.N.up.weight (in, out, kernel), .bias           transposed convolutions
    decoder.N.alpha, decoder.N.unit.{alpha1, alpha2}, decoder.alpha     (channels, 1), of snake
    lstm.{weight_ih, weight_hh, bias_ih, bias_hh}          gates in the order i, f, g, o
    codebooks.N.weight (CODES, EMBED)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, STRIDES, CHANNELS, EMBED = 4, (3, 5), (6, 10, 16), 14
STEPS = 7  #: of the encoding
SAMPLES = STEPS * STRIDES[0] * STRIDES[1]
STAGES, HIDDEN = len(STRIDES), CHANNELS[-1]
IO_KERNEL, UNIT_KERNEL, BOTTLENECK_KERNEL = 5, 3, 3
DILATIONS = (3, 2)  #: of the encoder's residual units; the decoder has the same from behind
CODEBOOKS, CODES = 3, 22
COUNTS = (3, 1, 2, 3)  #: of the codebooks that an example has
WINDOWS = ((20, 5), (36, 9))  #: window and hop of the spectra
POWER_EPS = 1e-4
SPECTRAL_WEIGHT, COMMITMENT_WEIGHT = 0.5, 0.25
SEED = 2210


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'functional' (PyTorch): other names, weight norm, snake, ELU
    #: and losses written out, the LSTM cell by cell, spectra by a strided convolution; 'products'
    #: (MindSpore): channels last, convolutions and transposed ones as products of windows, the LSTM
    #: step by step, codes by one-hot vectors
    variant: str = ""
    is_trimmed_around: bool = False  #: transposed convolutions, on both sides; MindSpore only
    has_lstm_skip: bool = True  #: MindSpore only
    has_code_lengths: bool = True  #: squared, in the distances to codes; MindSpore only
    are_losses_masked: bool = True  #: of codebooks that an example lacks; MindSpore only
    is_root_halved: bool = True  #: the gradient of the magnitudes' root; MindSpore only
    are_spectra_stopped: bool = False  #: no gradient through them; MindSpore only
    is_residual_restarted: bool = False  #: codes are taken from the encoding; PyTorch only
    is_stride_ignored: bool = False  #: in the padding of strided convolutions; PyTorch only
    log_base: float = np.e  #: of the magnitudes' logarithm; PyTorch only
    is_residual_detached: bool = False  #: what a codebook leaves over; PyTorch only
    is_direction_norm_stopped: bool = False  #: no gradient through it; MindSpore only
    is_alpha_logarithm: bool = False  #: snake reads exp(alpha); PyTorch only
    counts: tuple[int, ...] = COUNTS  #: of the batch
    optimizer: Optimizer = field(default_factory=Optimizer)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return waves, float32 (BATCH, 1, SAMPLES), and counts, int32 (BATCH,)."""
        rng = np.random.default_rng(SEED + 1)
        times = np.arange(SAMPLES)
        frequencies = rng.uniform(0.05, 0.9, (BATCH, 4, 1))
        phases = rng.uniform(0, 2 * np.pi, (BATCH, 4, 1))
        tones = 0.4 * np.sin(frequencies * times + phases).sum(1, keepdims=True)
        noise = 0.2 * rng.standard_normal((BATCH, 1, SAMPLES))
        return (tones + noise).astype(np.float32), np.array(self.counts, np.int32)


def get_padding(kernel: int, stride: int = 1, dilation: int = 1) -> int:
    """Return by how many samples a causal convolution is padded on the left."""
    return dilation * (kernel - 1) + 1 - stride


def get_fourier_matrix(window: int) -> np.ndarray:
    """Return real and imaginary parts of a windowed Fourier transform, (window, 2 * bins)."""
    times = np.arange(window)
    angles = 2 * np.pi * np.outer(times, np.arange(window // 2 + 1)) / window
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * times / window)
    parts = np.concatenate([np.cos(angles), -np.sin(angles)], axis=1)
    return (hann[:, None] * parts).astype(np.float32)


def get_frame_index(window: int, hop: int) -> np.ndarray:
    """Return the samples of each frame, int32 (frames, window)."""
    starts = np.arange(0, SAMPLES - window + 1, hop)
    return (starts[:, None] + np.arange(window)).astype(np.int32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_linear("encoder.in", CHANNELS[0], 1, IO_KERNEL)
    for n, stride in enumerate(STRIDES):
        _add_unit(weights, f"encoder.{n}.unit", CHANNELS[n])
        _add_normed(weights, f"encoder.{n}.down", CHANNELS[n + 1], CHANNELS[n], 2 * stride)
    for name in ("weight_ih", "weight_hh"):
        weights.add_table("lstm", 4 * HIDDEN, HIDDEN, deviation=HIDDEN**-0.5)
        weights[f"lstm.{name}"] = weights.pop("lstm.weight")
    for name in ("bias_ih", "bias_hh"):
        weights.add_bias("lstm", 4 * HIDDEN)
        weights[f"lstm.{name}"] = weights.pop("lstm.bias")
    weights.add_linear("encoder.out", EMBED, HIDDEN, BOTTLENECK_KERNEL)
    for n in range(CODEBOOKS):
        weights.add_table(f"codebooks.{n}", CODES, EMBED, deviation=0.6 * 0.75**n)
    weights.add_linear("decoder.in", HIDDEN, EMBED, BOTTLENECK_KERNEL)
    for n, stride in enumerate(reversed(STRIDES)):
        n_in, n_out = CHANNELS[STAGES - n], CHANNELS[STAGES - n - 1]
        _add_alpha(weights, f"decoder.{n}.alpha", n_in)
        weights.add_matrix(f"decoder.{n}.up", n_in, n_out, 2 * stride)
        weights[f"decoder.{n}.up.weight"] *= np.float32(stride**0.5)
        weights.add_bias(f"decoder.{n}.up", n_out)
        _add_alpha(weights, f"decoder.{n}.unit.alpha1", n_out)
        _add_alpha(weights, f"decoder.{n}.unit.alpha2", n_out)
        _add_unit(weights, f"decoder.{n}.unit", n_out)
    _add_alpha(weights, "decoder.alpha", CHANNELS[0])
    weights.add_linear("decoder.out", 1, CHANNELS[0], IO_KERNEL)
    weights["decoder.out.weight"] *= np.float32(0.3)
    return Model("codec", weights)


def _add_normed(weights: Weights, path: str, n_out: int, n_in: int, kernel: int) -> None:
    """Add a convolution with weight norm whose magnitudes are not the norms of its directions."""
    weights.add_matrix(path, n_out, n_in, kernel)
    weights[f"{path}.direction"] = weights.pop(f"{path}.weight")
    magnitude = weights.rng.uniform(0.8, 1.4, (n_out, 1, 1))
    weights[f"{path}.magnitude"] = magnitude.astype(np.float32)
    weights.add_bias(path, n_out)


def _add_unit(weights: Weights, path: str, channels: int) -> None:
    _add_normed(weights, f"{path}.conv1", channels, channels, UNIT_KERNEL)
    _add_normed(weights, f"{path}.conv2", channels, channels, 1)


def _add_alpha(weights: Weights, name: str, channels: int) -> None:
    weights[name] = weights.rng.uniform(0.6, 1.6, (channels, 1)).astype(np.float32)
