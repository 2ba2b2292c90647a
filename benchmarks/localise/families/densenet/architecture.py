"""A DenseNet with a temporal head over the rows of its features in NumPy: sizes, knobs, weights.

The stem is a strided convolution, a batch norm and relu. Each layer of a dense block
(https://arxiv.org/abs/1608.06993, section 3) reads the concatenation of the block's input and of
what all earlier layers returned: norm, relu, 1x1 convolution, norm, relu, 3x3 convolution. Between
the blocks, norm, relu, a 1x1 convolution to half of the channels, and the mean of 2x2 pixels; a
norm and relu end the last block.

Findings are a linear layer of the pixels' mean. Their loss is the asymmetric one
(https://arxiv.org/abs/2009.14119, section 2): probabilities of absent findings are shifted by
MARGIN, and the focusing weights have no gradient. Findings that are present weigh
FINDING_WEIGHTS; labels of -1 are uncertain and have no loss. It is summed over the findings.

Landmarks are rows. The features' means over the width are a sequence of rows, which dilated, causal
convolutions with weight norm read (https://arxiv.org/abs/1609.03499, section 2;
https://arxiv.org/abs/1602.07868, section 2), each with a gate, a residual sum over sqrt(2), and
what is skipped to the end. The loss is the cross entropy of a landmark's heatmap of rows, and
smooth L1 of its expected place (https://arxiv.org/abs/1711.08229, section 2). Weights:

    stem, stem.norm             convolutions have no bias, except for those of one row
    blocks.B.N.{norm1,reduce,norm2,grow}
    transition.{norm,reduce}, final (a norm)
    findings                    linear layer
    entry                       convolution of one row, from the features
    temporal.N.dilated          direction (2 * ROW_CHANNELS, ROW_CHANNELS, KERNEL), magnitude, bias
    temporal.N.{skip,residual}  convolutions of one row; the last block has no residual
    output.{0,1}                convolutions of one row, to landmarks; the last one has no bias,
                                which a heatmap would not see
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, HEIGHT, WIDTH = 4, 48, 24
STEM, GROWTH, BOTTLENECK, DEPTHS = 8, 6, 12, (3, 3)
COMPRESSED = (STEM + GROWTH * DEPTHS[0]) // 2  #: channels behind the transition
FEATURES = COMPRESSED + GROWTH * DEPTHS[1]
EPS, MOMENTUM = 1e-5, 0.1  #: of batch norms; share of the batch in the running statistics
ROWS = HEIGHT // 4  #: of the features
FINDINGS, LANDMARKS = 6, 3
UNCERTAIN = -1
FINDING_WEIGHTS = (1.5, 3.0, 2.0, 4.0, 2.5, 1.25)
GAMMA_PRESENT, GAMMA_ABSENT, MARGIN, TINY = 1.0, 2.0, 0.05, 1e-8
ROW_CHANNELS, KERNEL, DILATIONS = 10, 3, (1, 2, 4)
DEVIATION, BETA = 0.1, 0.05  #: of the heatmaps; of smooth L1; as shares of the height
HEATMAP_WEIGHT, PLACE_WEIGHT = 0.5, 5.0
DECAY = 5e-3  #: of matrices
SEED = 811


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'names' (PyTorch): Keras' names, functions for pooling and
    #: relu, nested concatenations, linear layers for convolutions of one row; 'written' (PyTorch):
    #: norms, weight norm, heatmaps and the loss of findings in plain arithmetic; 'split'
    #: (MindSpore): 1x1 convolutions of a dense layer as a sum over what is concatenated, the
    #: logarithm of the sigmoid; 'pooled' (MindSpore): the transition has its mean in front of the
    #: convolution, the loss of findings by a choice; 'linear' (MindSpore): the sequence has its
    #: channels last, dilated convolutions are sums of linear layers
    variant: str = ""
    is_new_first: bool = False  #: of what the last block concatenates
    is_pooled_early: bool = False  #: the transition has its mean in front of norm and relu
    has_final_relu: bool = True
    margin: float = MARGIN
    is_focus_attached: bool = False  #: focusing weights have a gradient
    are_absent_weighted: bool = False  #: by the weights of those that are present
    is_last_centered: bool = False  #: the last dilated convolution is padded on both sides
    #: the gradient of what the last layer of the first block reads is multiplied by it
    layer_gradient: float = 1.0
    is_skip_residual: bool = False  #: what is skipped comes from the residual sum, if there is one
    are_corners_aligned: bool = False  #: of the rows' places, that are 0 and 1 then
    is_carried_stopped: bool = False  #: no gradient through what the last block carries on
    is_gate_first: bool = False  #: of what a dilated convolution returns
    are_taps_normed: bool = False  #: one by one in a direction; MindSpore only
    are_uncertain_absent: bool = False  #: findings that are uncertain; PyTorch only
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(kind="momentum", weight_decay=DECAY, clip=0.0)
    )

    def get_places(self) -> np.ndarray:
        """Return the middles of the rows as shares of the height, float32 (ROWS,)."""
        if self.are_corners_aligned:
            return np.linspace(0, 1, ROWS, dtype=np.float32)
        return ((np.arange(ROWS) + 0.5) / ROWS).astype(np.float32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return images, float32 (BATCH, 1, HEIGHT, WIDTH), labels of findings, float32 (BATCH,
        FINDINGS), and places of landmarks, float32 (BATCH, LANDMARKS).
        """
        rng = np.random.default_rng(SEED + 1)
        cells = rng.standard_normal((BATCH, 1, HEIGHT // 4, WIDTH // 4))
        images = cells.repeat(4, axis=2).repeat(4, axis=3)
        images = images + 0.5 * rng.standard_normal((BATCH, 1, HEIGHT, WIDTH))
        labels = rng.choice((0, 1, UNCERTAIN), (BATCH, FINDINGS), p=(0.6, 0.25, 0.15))
        places = rng.uniform(0.1, 0.9, (BATCH, LANDMARKS))
        return images.astype(np.float32), labels.astype(np.float32), places.astype(np.float32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_matrix("stem", STEM, 1, 5, 5)
    weights.add_norm("stem.norm", STEM)
    # Norms read the stem, so that only its biases give its norm's weight a gradient.
    weights["stem.norm.bias"] = 5 * weights["stem.norm.bias"]
    for block, (n_in, depth) in enumerate(zip((STEM, COMPRESSED), DEPTHS, strict=True)):
        for n in range(depth):
            path, channels = f"blocks.{block}.{n}", n_in + n * GROWTH
            weights.add_norm(f"{path}.norm1", channels)
            weights.add_matrix(f"{path}.reduce", BOTTLENECK, channels, 1, 1)
            weights.add_norm(f"{path}.norm2", BOTTLENECK)
            weights.add_matrix(f"{path}.grow", GROWTH, BOTTLENECK, 3, 3)
    weights.add_norm("transition.norm", 2 * COMPRESSED)
    weights.add_matrix("transition.reduce", COMPRESSED, 2 * COMPRESSED, 1, 1)
    weights.add_norm("final", FEATURES)
    weights.add_linear("findings", FINDINGS, FEATURES)
    weights.add_linear("entry", ROW_CHANNELS, FEATURES, 1)
    for n in range(len(DILATIONS)):
        path = f"temporal.{n}"
        direction = weights.rng.standard_normal((2 * ROW_CHANNELS, ROW_CHANNELS, KERNEL))
        weights[f"{path}.dilated.direction"] = direction.astype(np.float32)
        magnitude = weights.rng.uniform(0.7, 1.6, (2 * ROW_CHANNELS, 1, 1))
        weights[f"{path}.dilated.magnitude"] = magnitude.astype(np.float32)
        weights.add_bias(f"{path}.dilated", 2 * ROW_CHANNELS)
        weights.add_linear(f"{path}.skip", ROW_CHANNELS, ROW_CHANNELS, 1)
        if n < len(DILATIONS) - 1:
            weights.add_linear(f"{path}.residual", ROW_CHANNELS, ROW_CHANNELS, 1)
    weights.add_linear("output.0", ROW_CHANNELS, ROW_CHANNELS, 1)
    weights.add_matrix("output.1", LANDMARKS, ROW_CHANNELS, 1)
    return Model("densenet", weights)
