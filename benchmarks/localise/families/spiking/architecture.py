"""A small spiking transformer for images in NumPy: sizes, knobs, weights and batch.

In the manner of Spikformer (https://arxiv.org/abs/2209.15425) behind blocks of SEW ResNet
(https://arxiv.org/abs/2102.04159), with PLIF neurons (https://arxiv.org/abs/2007.05785), tdBN
(https://arxiv.org/abs/2011.05280) and the loss of TET (https://arxiv.org/abs/2202.11946). An image
is the input at each of STEPS time steps; all layers but neurons and readout see time steps as
further images. A neuron begins with the potential u = 0; at each step, with the input x,

    potential   v = d * u + g * x
    spike       s = 1 where v >= threshold, else 0
    reset       soft, u = v - threshold * s, or hard, u = v * (1 - s), without a gradient through s

There are two kinds:

    PLIF   of convolutions: g = sigmoid(leak), d = 1 - g, of each channel; soft reset; does not
           spike, though its potential is above CONV_THRESHOLD, at the step after a spike; the
           derivative of its spikes is that of an arctan, ALPHA / 2 / (1 + (pi / 2 * ALPHA * z)^2)
           of z = v - threshold
    LIF    of tokens: g = 1, d = DECAY; hard reset; threshold TOKEN_THRESHOLD; the derivative is
           that of a fast sigmoid, 1 / (1 + SLOPE * |z|)^2

A norm is tdBN: alpha * threshold * (x - mean) / sqrt(variance + EPS) * weight + bias, of channels
over time, batch and pixels, with the threshold of the neurons behind it. Alpha is 1, and
BRANCH_ALPHA in blocks. f is a convolution or linear layer without bias, its norm and its neurons:

    stem              f, then means of 2x2 pixels
    blocks.N          x + f2(f1(x)), x being f(x) from shortcut where a block has a stride
    position          x + f(x), a convolution of each channel
    attention         x + f(of the context), the context being neurons of q k^T v * SCALE, without
                      softmax, with q, k and v from f, in heads, of the tokens of one time step
    mlp               x + f2(f1(x))
    head              linear, of the mean over tokens
    readout           o = READOUT_DECAY * o of the step before + logits, without spikes

The loss is the sum of

    1 - MARGIN_SHARE      mean over time steps and batch of the cross entropy of o
    MARGIN_SHARE          mean of (o - MARGIN)^2
    DISTILLATION          TEMPERATURE^2 * KL divergence of the teacher's classes from those of the
                          mean of o over time, both of logits / TEMPERATURE, mean over the batch
    ACTIVITY              mean over layers of neurons of the mean over channels of (rate - RATE)^2,
                          a rate being the mean of spikes over time, batch and pixels or tokens

each times what is on its left. Weights are float32:

    stem, blocks.N.{first,second,shortcut}, position   convolutions (out, in, height, width), each
                                                       with NAME.norm and NAME.leak (channels,)
    attention.{q,k,v,out}, mlp.{up,down}               linear (out, in), each with NAME.norm
    head                                               linear with bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

STEPS, BATCH, CLASSES = 4, 5, 7
CHANNELS, HEIGHT, WIDTH = 3, 12, 14
MEAN, STD = (0.49, 0.48, 0.41), (0.25, 0.21, 0.29)  #: of the channels of the data set's images
STEM, HIDDEN, FFN = 8, 18, 30
BLOCKS = ((STEM, STEM, 1), (STEM, HIDDEN, 2))  #: channels in and out, and stride
TOKENS = 3 * 4
HEADS, SCALE = 3, 0.25
HEAD_DIM = HIDDEN // HEADS
CONV_THRESHOLD, TOKEN_THRESHOLD = 0.8, 0.5
DECAY, READOUT_DECAY = 0.5, 0.75
ALPHA, SLOPE = 2.0, 4.0
BRANCH_ALPHA = 2**-0.5
EPS, MOMENTUM = 1e-5, 0.1
MARGIN_SHARE, MARGIN = 0.1, 1.0
DISTILLATION, TEMPERATURE = 0.4, 3.0
ACTIVITY, RATE = 2.0, 0.15
LAYERS = 14  #: of neurons
SEED = (
    2118  #: no potential but those of the context, which are exact, is within 8e-5 of a threshold
)


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): the image passes the stem's convolution
    #: once, norms and losses from reductions, keys times values first; 'functional' (PyTorch):
    #: tokens behind channels, one layer for queries, keys and values, spikes from a detached
    #: difference, potentials from weighted sums
    variant: str = ""
    is_norm_scaled: bool = True  #: by alpha * threshold; MindSpore only
    are_heads_merged_plain: bool = False  #: reshaped as they lie in memory; MindSpore only
    is_reset_hard: bool = False  #: of PLIF; MindSpore only
    slope: float = SLOPE  #: MindSpore only
    is_time_averaged_first: bool = False  #: before the cross entropy; MindSpore only
    is_threshold_exclusive: bool = False  #: no spike of a potential that equals it; MindSpore only
    is_image_interleaved: bool = False  #: repeated one by one; PyTorch only
    is_input_decayed: bool = False  #: of LIF; PyTorch only
    is_refractory: bool = True  #: PyTorch only
    is_reset_detached: bool = True  #: PyTorch only
    is_divergence_meaned: bool = False  #: over classes, too; PyTorch only
    are_potentials_detached: bool = False  #: between time steps; PyTorch only
    are_channels_reversed: bool = False  #: before they are normalized

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return normalized images, labels, and logits of a teacher.

        Images are float32 (BATCH, CHANNELS, HEIGHT, WIDTH), labels int32 (BATCH,), and logits
        float32 (BATCH, CLASSES).
        """
        rng = np.random.default_rng(SEED + 1)
        levels = rng.uniform(0.1, 0.9, (BATCH, CHANNELS, HEIGHT // 3, WIDTH // 2 + 1))
        levels = levels.repeat(3, axis=2).repeat(2, axis=3)[..., 1 : WIDTH + 1]
        grain = 0.12 * rng.standard_normal((BATCH, CHANNELS, HEIGHT, WIDTH))
        images = np.clip(levels + grain + np.reshape((0.1, 0.0, -0.1), (-1, 1, 1)), 0, 1)
        if self.are_channels_reversed:
            images = images[:, ::-1]
        mean, std = np.reshape(MEAN, (-1, 1, 1)), np.reshape(STD, (-1, 1, 1))
        labels = rng.integers(0, CLASSES, BATCH)
        logits = 1.5 * rng.standard_normal((BATCH, CLASSES))
        logits[np.arange(BATCH), labels] += 3
        return (
            ((images - mean) / std).astype(np.float32),
            labels.astype(np.int32),
            logits.astype(np.float32),
        )


def _add_layer(weights: Weights, path: str, *shape: int, has_leak: bool = False) -> None:
    """Add a convolution or linear layer and its norm, whose bias lets neurons spike."""
    weights.add_matrix(path, *shape)
    weights.add_norm(f"{path}.norm", shape[0])
    weights[f"{path}.norm.bias"] += np.float32(0.65 if has_leak else 0.15)
    if has_leak:
        leak = 0.4 + 0.5 * weights.rng.standard_normal(shape[0])
        weights[f"{path}.leak"] = leak.astype(np.float32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    _add_layer(weights, "stem", STEM, CHANNELS, 3, 3, has_leak=True)
    for n, (n_in, n_out, stride) in enumerate(BLOCKS):
        path = f"blocks.{n}"
        _add_layer(weights, f"{path}.first", n_out, n_in, 3, 3, has_leak=True)
        _add_layer(weights, f"{path}.second", n_out, n_out, 3, 3, has_leak=True)
        if stride > 1:
            _add_layer(weights, f"{path}.shortcut", n_out, n_in, 1, 1, has_leak=True)
    _add_layer(weights, "position", HIDDEN, 1, 3, 3, has_leak=True)
    for name in ("q", "k", "v", "out"):
        _add_layer(weights, f"attention.{name}", HIDDEN, HIDDEN)
    _add_layer(weights, "mlp.up", FFN, HIDDEN)
    _add_layer(weights, "mlp.down", HIDDEN, FFN)
    weights.add_linear("head", CLASSES, HIDDEN)
    weights["head.weight"] *= np.float32(0.6)
    return Model("spiking", weights)
