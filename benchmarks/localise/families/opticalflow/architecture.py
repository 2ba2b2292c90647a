"""Optical flow in the manner of RAFT in NumPy: sizes, knobs, weights and batch.

https://arxiv.org/abs/2003.12039, small. Colors 0..255 become -1..1. A feature encoder (instance
norm without weights) is applied to both images, a context encoder (batch norm) to the first one.
The channels of the latter are the first hidden state, with tanh, and the context, with relu. The
dot products of all pairs of features, divided by the root of FEATURES, and those pooled over 2x2
pixels of the second image are the levels of a pyramid. Coordinates, (x, y) of each feature of the
first image in the second one, begin as the pixel's own. Each iteration takes them as constants and
reads a window of each level around them, bilinear, zeros outside; the first index of the window
moves x. Motion features of that and of the flow so far, with the flow, and the context are what a
convolutional GRU reads. Its state makes the change of the coordinates and, times MASK_SCALE, the
weights with which each fine pixel averages FACTOR * flow of nine coarse ones. The loss is the sum
of GAMMA^(N-1-n) times the mean over all pixels of the L1 distance, zero where a pixel is not valid
or its flow is MAX_FLOW or longer. Weights, convolutions before a norm without bias:

    features, context: stem           5x5, stride 2
        blocks.N.conv1, conv2         3x3, the first one of the second block with stride 2
        blocks.1.skip                 1x1, stride 2
        out                           1x1
    context: stem_norm, blocks.N.norm1, norm2, blocks.1.skip_norm
    motion.correlation, flow, join    1x1, 3x3, 3x3
    gru.z, r, q                       3x3, of state, context and motion
    flow.0, flow.1                    3x3
    mask.0, mask.1                    3x3; 1x1 to (9, FACTOR, FACTOR) channels
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, HEIGHT, WIDTH, FACTOR = 3, 28, 44, 4
ROWS, COLUMNS = HEIGHT // FACTOR, WIDTH // FACTOR
WIDTHS, FEATURES, HIDDEN, CONTEXT = (12, 20), 20, 14, 10
LEVELS, RADIUS, ITERATIONS = 2, 2, 2
WINDOW = 2 * RADIUS + 1
READ = LEVELS * WINDOW**2  #: correlations that a pixel reads
MOTION = 15  #: motion features, the two of the flow included
NEIGHBOURS = 9
MASK_SCALE, GAMMA, MAX_FLOW, EPS = 0.25, 0.8, 400.0, 1e-5
SEED = 2003


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (PyTorch): other names, norms in plain arithmetic,
    #: correlation by einsum, lookup by indexing, both gates in one convolution; 'products'
    #: (MindSpore): lookup as two products with triangular weights, instance norm as group norm;
    #: 'shared' (MindSpore): images encoded one by one, the context's share of the gates computed
    #: once, convolutions of joined channels as sums
    variant: str = ""
    is_window_y_first: bool = False  #: the first index of the window moves y
    is_pool_same: bool = False  #: a last odd row or column is pooled too, not dropped
    is_context_second: bool = False  #: the context is that of the second image
    flow_factor: float = FACTOR  #: of the flow when it is upsampled
    is_update_reversed: bool = False  #: z is the share of the old state
    is_gamma_reversed: bool = False  #: the first iteration has the largest weight
    is_magnitude_squared: bool = False  #: the square of a flow's length is compared with MAX_FLOW
    are_coords_attached: bool = False  #: coordinates keep their gradient
    is_hidden_stopped: bool = False  #: the hidden state of an iteration is a constant
    correlation_gradient: float = 1.0  #: factor of the gradient of the correlations that are read
    coords_offset: float = 0.0  #: of the coordinates of all pixels
    lookup_padding: str = "zeros"  #: beyond a level; or 'border', its nearest pixel; MindSpore only
    are_corners_aligned: bool = True  #: by the lookup's sampler; PyTorch only
    optimizer: Optimizer = field(default_factory=Optimizer)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return images, flow and validity, float32.

        Images are (BATCH, 3, HEIGHT, WIDTH), the flow (BATCH, 2, HEIGHT, WIDTH), validity (BATCH,
        HEIGHT, WIDTH). A few flows are too long to count.
        """
        rng = np.random.default_rng(SEED + 1)
        shape = (BATCH, 3, HEIGHT, WIDTH)
        first = 128 + 50 * rng.standard_normal(shape)
        second = np.roll(first, (1, 3), axis=(2, 3)) + 20 * rng.standard_normal(shape)
        images = (np.clip(image, 0, 255).astype(np.float32) for image in (first, second))
        pixels = (BATCH, HEIGHT, WIDTH)
        flow = np.stack((3 + 9 * rng.standard_normal(pixels), 1 + 7 * rng.standard_normal(pixels)))
        flow *= np.where(rng.random(pixels) < 0.02, 300, 1)
        valid = rng.random(pixels) < 0.85
        return *images, flow.swapaxes(0, 1).astype(np.float32), valid.astype(np.float32)


def _add_encoder(weights: Weights, name: str, n_out: int, *, has_norms: bool) -> None:
    """Add the weights of an encoder."""

    def add(conv: str, norm: str, *shape: int) -> None:
        weights.add_matrix(f"{name}.{conv}", *shape)
        if has_norms:
            weights.add_norm(f"{name}.{norm}", shape[0])

    narrow, wide = WIDTHS
    add("stem", "stem_norm", narrow, 3, 5, 5)
    for n, width in enumerate(WIDTHS):
        add(f"blocks.{n}.conv1", f"blocks.{n}.norm1", width, narrow, 3, 3)
        add(f"blocks.{n}.conv2", f"blocks.{n}.norm2", width, width, 3, 3)
    add("blocks.1.skip", "blocks.1.skip_norm", wide, narrow, 1, 1)
    weights.add_linear(f"{name}.out", n_out, wide, 1, 1)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    _add_encoder(weights, "features", FEATURES, has_norms=False)
    _add_encoder(weights, "context", HIDDEN + CONTEXT, has_norms=True)
    weights.add_linear("motion.correlation", 16, READ, 1, 1)
    weights.add_linear("motion.flow", 8, 2, 3, 3)
    weights.add_linear("motion.join", MOTION - 2, 24, 3, 3)
    for gate in "zrq":
        weights.add_linear(f"gru.{gate}", HIDDEN, HIDDEN + CONTEXT + MOTION, 3, 3)
    weights.add_linear("flow.0", 18, HIDDEN, 3, 3)
    weights.add_linear("flow.1", 2, 18, 3, 3)
    weights.add_linear("mask.0", 21, HIDDEN, 3, 3)
    weights.add_linear("mask.1", NEIGHBOURS * FACTOR**2, 21, 1, 1)
    return Model("opticalflow", weights)
