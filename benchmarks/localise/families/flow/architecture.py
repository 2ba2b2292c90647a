"""A Glow (https://arxiv.org/abs/1807.03039, section 3) in NumPy: sizes, knobs, weights and batch.

Pixels keep BITS of their 8 bits, get uniform noise of one bin and lie in [-0.5, 0.5]. A level
squeezes 2x2 pixels into channels and has STEPS steps: (x + bias) * exp(logs) by channel, a 1x1
convolution and an affine coupling, in which the first half of the channels says how the second one
changes: (x + shift) * sigmoid(scale + OFFSET). Shift and scale have the even and the odd channels
of a small network. Behind all levels but the last, the second half of the channels leaves; the
first half predicts its mean and the logarithms of its deviations. What is left at the top has a
learned mean and learned deviations. Matrices of the 1x1 convolutions are order @ (lower + 1) @
(upper + diagonal), and the diagonal is signs * exp(logs) (ibid., section 3.2). Last convolutions of
a network multiply by exp(LOGS_FACTOR * logs). The loss is the negative log-likelihood in bits per
dimension, with that of the bins' width (https://arxiv.org/abs/1511.01844, section 3.1). Weights:

    levels.L.steps.S.   norm.{bias,logs}
                        mix.{order,signs} (constant), mix.{lower,upper,logs}
                        net.{conv1,conv2}.weight with .{bias,logs} as those of a norm (3x3, 1x1)
                        net.conv3.{weight,bias,logs} (3x3)
    levels.L.prior.{weight,bias,logs}   the convolution (3x3) that predicts, of all levels but one
    top.{mean,logs}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, IMAGE, COLORS, LEVELS, STEPS, WIDTH = 4, 16, 3, 2, 2, 24
DIMENSIONS = COLORS * IMAGE**2  #: of one image
BITS = 5
BINS = 2**BITS
OFFSET = 2.0  #: of the scales, so that a coupling changes little at first
LOGS_FACTOR = 3.0
RATE, WARMUP = 1e-3, 10  #: steps in which the learning rate grows to RATE
SEED = 211


def count_channels(level: int) -> int:
    """Return the channels of a level's steps."""
    return 4 * COLORS * 2**level


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault, of all steps."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'fused' (PyTorch): the framework's squeeze, convolutions by
    #: einsum, log-sigmoid and normal distribution; 'written' (MindSpore): convolutions by matrix
    #: products, sigmoid in plain arithmetic, log-likelihoods of normalized values
    variant: str = ""
    are_pixels_first: bool = False  #: squeezed channels are in the order of pixels, then colors
    scale_offset: float = OFFSET
    is_shift_last: bool = False  #: couplings are x * scale + shift
    is_net_halved: bool = False  #: shift and scale have the first and the second half of channels
    is_norm_counted_once: bool = False  #: log-determinant of a norm: without the number of pixels
    has_width_term: bool = True  #: the log-likelihood of the bins' width
    logs_in_variance: float = 2.0  #: a variance is exp(logs_in_variance * logs)
    is_determinant_stopped: bool = False  #: no gradient through the log-determinant of couplings
    is_net_half: bool = False  #: the last convolution of a coupling's network in float16
    is_scale_exponential: bool = False  #: scales of couplings are exp(scale)
    log_gradient: float = 1.0  #: the gradient of the logarithms of a norm is multiplied by it
    #: the backward pass of a coupling takes its result for the sum it multiplies; PyTorch only
    is_result_read_back: bool = False
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(learning_rate=RATE / WARMUP, clip=1.0)
    )

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Return images, int32 (BATCH, COLORS, IMAGE, IMAGE), and noise in [0, 1), float32.

        Pixels next to each other are alike.
        """
        rng = np.random.default_rng(SEED + 1)
        tints = rng.uniform(60, 200, (BATCH, COLORS, 1, 1))
        coarse = 35 * rng.standard_normal((BATCH, COLORS, IMAGE // 4, IMAGE // 4))
        patches = coarse.repeat(4, axis=2).repeat(4, axis=3)
        details = 12 * rng.standard_normal((BATCH, COLORS, IMAGE, IMAGE))
        images = np.clip(tints + patches + details, 0, 255).astype(np.int32)
        return images, rng.uniform(0, 1, images.shape).astype(np.float32)

    def mix_mask(self, level: int) -> np.ndarray:
        """Return ones below the diagonal, float32 (channels, channels)."""
        n = count_channels(level)
        return np.tril(np.ones((n, n), dtype=np.float32), -1)


#: Logarithm of the bins' width in all dimensions of an image.
LOG_WIDTH = -math.log(BINS) * DIMENSIONS


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_vector(name: str, length: int, mean: float = 0.0, deviation: float = 0.1) -> None:
        values = mean + deviation * weights.rng.standard_normal(length)
        weights[name] = values.astype(np.float32)

    def add_mix(path: str, channels: int) -> None:
        rng = weights.rng
        weights[f"{path}.order"] = np.eye(channels, dtype=np.float32)[rng.permutation(channels)]
        weights[f"{path}.signs"] = rng.choice([-1.0, 1.0], channels).astype(np.float32)
        for name, triangle in (("lower", np.tril), ("upper", np.triu)):
            values = 0.5 * rng.standard_normal((channels, channels)) / math.sqrt(channels)
            values = triangle(values, -1 if name == "lower" else 1)
            weights[f"{path}.{name}"] = values.astype(np.float32)
        add_vector(f"{path}.logs", channels)

    def add_last(path: str, n_out: int, n_in: int) -> None:
        weights.add_matrix(path, n_out, n_in, 3, 3)
        weights[f"{path}.weight"] *= np.float32(0.3)
        weights.add_bias(path, n_out)
        add_vector(f"{path}.logs", n_out)

    for level in range(LEVELS):
        channels = count_channels(level)
        for step in range(STEPS):
            path = f"levels.{level}.steps.{step}"
            add_vector(f"{path}.norm.bias", channels)
            # latents have a deviation near one, as behind an initialization from data
            add_vector(f"{path}.norm.logs", channels, mean=1.2 if level + step == 0 else 0.1)
            add_mix(f"{path}.mix", channels)
            for name, n_in, kernel in (("conv1", channels // 2, 3), ("conv2", WIDTH, 1)):
                weights.add_matrix(f"{path}.net.{name}", WIDTH, n_in, kernel, kernel)
                weights.add_bias(f"{path}.net.{name}", WIDTH)
                add_vector(f"{path}.net.{name}.logs", WIDTH)
            add_last(f"{path}.net.conv3", channels, WIDTH)
        if level < LEVELS - 1:
            add_last(f"levels.{level}.prior", channels, channels // 2)
    for name in ("mean", "logs"):
        add_vector(f"top.{name}", count_channels(LEVELS - 1))
    return Model("flow", weights)
