"""A ResNeXt with the stem and the shortcuts of ResNet-D in NumPy: sizes, knobs, weights and batch.

The stem has three convolutions, of which the first one has stride 2, and max pooling of 3x3 pixels
with stride 2 and a border of one pixel (https://arxiv.org/abs/1812.01187, section 4). A bottleneck
(https://arxiv.org/abs/1611.05431, section 3) has convolutions of 1x1, 3x3 and 1x1 pixels; the
second one is grouped and has the stride. Each convolution is followed by a batch norm, and by relu
except for the last one, whose norm is added to the shortcut in front of a relu. The shortcut of a
first block is a 1x1 convolution and a norm, behind the mean of 2x2 pixels if the block is strided;
at the border of an odd image, it is the mean of those that exist. Pixels are averaged in front of
the linear head; a second head reads the means of the middle stage. Images are mixed
(https://arxiv.org/abs/1710.09412, section 2) before they come here: each has two labels and the
share of the first one. The loss is the cross entropy of the smoothed and mixed labels, with
AUX_WEIGHT of the same for the second head. Weights:

    stem.N                      convolutions without bias, each with NAME.norm, a batch norm; it has
                                a mean and a variance, the running statistics of a checkpoint
    stages.S.N.: reduce, grouped (width, width / GROUPS, 3, 3), expand, shortcut     as above; only
                                the first block of a stage has a shortcut
    head, aux                   linear layers
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, IMAGE, LABELS = 4, 24, 10
STEM = (8, 8, 16)
DEPTHS, WIDTHS, CHANNELS = (2, 2, 2), (12, 16, 24), (24, 32, 48)
STRIDES = (1, 2, 2)
GROUPS = 4
AUX_STAGE = 1  #: the second head reads its output
EPS, MOMENTUM = 1e-5, 0.1  #: of batch norm; share of the batch in the running statistics
SMOOTHING, AUX_WEIGHT = 0.1, 0.4
DECAY = 1e-3  #: of matrices
SEED = 503


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault, of all blocks."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'functional' (PyTorch): torchvision's names, norms, pooling and
    #: groups by functions; 'written' (MindSpore): norms, means and the loss in plain arithmetic,
    #: groups of convolutions one by one
    variant: str = ""
    strided: str = "grouped"  #: or 'reduce': the convolution of a bottleneck that has the stride
    is_shortcut_pooled: bool = True  #: else its convolution has the stride
    is_overhang_counted: bool = False  #: zeros beyond the border in the shortcut's means
    is_max_pool_centered: bool = True  #: a border on all sides, else only below and on the right
    is_relu_early: bool = False  #: in front of the residual sum, not behind it
    is_stem_frozen: bool = False  #: the stem's norms use the running statistics
    dilations: tuple[int, ...] = (1, 1, 1)  #: of the second block of each stage
    is_mix_swapped: bool = False  #: the share is that of the second label
    aux_weight: float = AUX_WEIGHT
    is_aux_stopped: bool = False  #: no gradient from the second head to the stages
    label_smoothing: float = SMOOTHING
    is_identity_stopped: bool = False  #: no gradient through shortcuts without a convolution
    are_statistics_stopped: bool = False  #: no gradient through those of norms; MindSpore only
    are_colors_reversed: bool = False  #: images have blue first
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(kind="momentum", weight_decay=DECAY, clip=0.0)
    )

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return mixed images, float32 (BATCH, 3, IMAGE, IMAGE), both labels of each image, int32
        (BATCH,), and the share of the first one, float32 (BATCH,).
        """
        rng = np.random.default_rng(SEED + 1)
        images = rng.standard_normal((BATCH, 3, IMAGE, IMAGE))
        first = rng.permutation(LABELS)[:BATCH]
        share = rng.uniform(0.55, 0.95, BATCH)
        ratio = share.reshape(-1, 1, 1, 1)
        mixed = ratio * images + (1 - ratio) * images[::-1]
        if self.are_colors_reversed:
            mixed = np.ascontiguousarray(mixed[:, ::-1])
        return (
            mixed.astype(np.float32),
            first.astype(np.int32),
            np.ascontiguousarray(first[::-1]).astype(np.int32),
            share.astype(np.float32),
        )


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_conv(name: str, *shape: int) -> None:
        weights.add_matrix(name, *shape)
        weights.add_norm(f"{name}.norm", shape[0])
        mean = 0.2 * weights.rng.standard_normal(shape[0])
        weights[f"{name}.norm.mean"] = mean.astype(np.float32)
        variance = weights.rng.uniform(0.6, 1.4, shape[0])
        weights[f"{name}.norm.variance"] = variance.astype(np.float32)

    n_in = 3
    for n, channels in enumerate(STEM):
        add_conv(f"stem.{n}", channels, n_in, 3, 3)
        n_in = channels
    for stage, depth in enumerate(DEPTHS):
        width, n_out = WIDTHS[stage], CHANNELS[stage]
        for n in range(depth):
            path = f"stages.{stage}.{n}"
            add_conv(f"{path}.reduce", width, n_in, 1, 1)
            add_conv(f"{path}.grouped", width, width // GROUPS, 3, 3)
            add_conv(f"{path}.expand", n_out, width, 1, 1)
            if n == 0:
                add_conv(f"{path}.shortcut", n_out, n_in, 1, 1)
            n_in = n_out
    weights.add_linear("head", LABELS, CHANNELS[-1])
    weights.add_linear("aux", LABELS, CHANNELS[AUX_STAGE])
    return Model("resnext", weights)
