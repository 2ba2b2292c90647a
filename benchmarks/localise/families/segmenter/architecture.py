"""A semantic segmenter in NumPy: sizes, knobs, weights and batch.

Separable convolutions in residual blocks, with squeeze and excitation
(https://arxiv.org/abs/1709.01507, section 3), feed one transformer block whose keys and values have
fewer positions (https://arxiv.org/abs/2105.15203, section 3.1). Dilated branches and image pooling,
and a decoder with low-level features follow (https://arxiv.org/abs/1802.02611, section 3). A second
head reads the encoder (https://arxiv.org/abs/1612.01105, section 3.3). The loss is the weighted
cross entropy of both heads, and soft Dice (https://arxiv.org/abs/1606.04797, section 3), class by
class. Ignored pixels have no loss. Weights:

    stem, blocks.N.{first,second}.{depthwise,pointwise}, blocks.N.shortcut,
    pyramid.{point,pooled,project}, pyramid.N.{depthwise,pointwise}, decoder.low,
    decoder.fuse.{depthwise,pointwise}, auxiliary
                          convolutions without bias, each with NAME.norm, a batch norm
    blocks.N.gate.{reduce,expand}, decoder.classes, auxiliary.classes    1x1 convolutions with bias
    attention.norm1, attention.{q,k,v,o}, attention.norm2, attention.mlp.{up,down}
    attention.reduce      REDUCTION x REDUCTION convolution of that stride, with bias, and
                          attention.reduce.norm, a layer norm
    attention.mlp.depthwise                      3x3 convolution with bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, IMAGE, CLASSES, STEM = 4, 32, 5, 8
#: Channels in and out, stride and dilation of the residual blocks.
BLOCKS = ((STEM, 12, 1, 1), (12, 20, 2, 1), (20, 20, 1, 2))
GATED = (1, 2)  #: blocks with squeeze and excitation
LOW, WIDTH = BLOCKS[0][1], BLOCKS[-1][1]  #: channels of the decoder's skip, and of the encoder
GRID = IMAGE // 4  #: cells along an edge behind the encoder
HEADS, HEAD_DIM, REDUCTION, MLP = 2, WIDTH // 2, 2, 40
PYRAMID, RATES, LOW_REDUCED, DECODER, AUXILIARY = 16, (2, 4), 6, 16, 8
BATCH_EPS, LAYER_EPS, MOMENTUM = 1e-5, 1e-6, 0.1
#: Of red, green and blue, in the range of 0 to 255.
MEANS, DEVIATIONS = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
IGNORED = 255  #: label of pixels without loss
CLASS_WEIGHTS = (0.5, 1.5, 1.0, 2.0, 0.8)
DICE_WEIGHT, AUXILIARY_WEIGHT, DICE_SMOOTH = 0.5, 0.4, 1.0
SEED = 131


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'functional' (PyTorch): fused attention, means in place of
    #: pooling modules, cross entropy and Dice from other operators; 'written' (MindSpore): batch
    #: norm in plain arithmetic, linear gates, attention by batched products, the framework's cross
    #: entropy
    variant: str = ""
    are_constants_reversed: bool = False  #: means and deviations of channels are blue first
    stem_padding: str = "both"  #: sides of the image that are padded; or 'end', as by pad_mode same
    gate_activation: str = "sigmoid"  #: of squeeze and excitation; or 'hardsigmoid'
    rates: tuple[int, int] = RATES  #: dilations of the pyramid
    has_reduction_norm: bool = True  #: layer norm of what keys and values are computed from
    is_low_level_rectified: bool = True  #: the decoder's skip is taken behind the relu
    are_corners_aligned: bool = False  #: of the upsampling in the decoder
    batch_eps: float = BATCH_EPS  #: of all batch norms
    is_pooling_first: bool = False  #: of the branches of the pyramid, when they are joined
    loss_divisor: str = "weights"  #: cross entropy is divided by their sum; or 'pixels': number
    is_dice_masked: bool = True  #: probabilities of ignored pixels do not count in Dice
    is_auxiliary_stopped: bool = False  #: no gradient from the second head to the encoder
    pooling_gradient: float = 1.0  #: the gradient of the image pooling is multiplied by it
    upsampling: str = "bilinear"  #: of the logits of both heads; or 'nearest'
    is_attention_image_transposed: bool = True  #: channels come first in what the reduction reads
    is_shortcut_pooled: bool = False  #: 2x2 cells are averaged in front of a strided shortcut
    is_gate_late: bool = False  #: of the last block: behind the sum with the shortcut
    auxiliary_weight: float = AUXILIARY_WEIGHT  #: of the loss of the second head
    is_dice_of_images: bool = False  #: the mean of Dice over images, not of all; MindSpore only
    #: of the decoder's upsampling in its backward pass; PyTorch only
    are_gradient_corners_aligned: bool = False
    is_first_class_ignored: bool = False  #: labels of the others are one less
    #: rows of keys and values are read head by head; PyTorch only
    are_keys_read_by_head: bool = False
    score_divisor: int = HEAD_DIM  #: scores are divided by its root; PyTorch only
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(
            kind="momentum", weight_decay=5e-4, clip=1.0, group="vectors", group_rate=2.0
        )
    )

    def channel_constants(self) -> tuple[np.ndarray, np.ndarray]:
        """Return means and deviations of the channels, float32 (1, 3, 1, 1)."""
        step = -1 if self.are_constants_reversed else 1
        means, deviations = (
            np.array(values[::step], dtype=np.float32).reshape(1, 3, 1, 1)
            for values in (MEANS, DEVIATIONS)
        )
        return means, deviations

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Return images, float32 (batch, 3, IMAGE, IMAGE), and labels of the pixels, int32 (batch,
        IMAGE, IMAGE).

        Images have brightness, squares of four pixels, and noise. Labels are those of the squares;
        squares without a label are IGNORED.
        """
        rng = np.random.default_rng(SEED + 1)
        brightness = rng.uniform(60, 190, (BATCH, 3, 1, 1))
        squares = 40 * rng.standard_normal((BATCH, 3, IMAGE // 4, IMAGE // 4))
        noise = 20 * rng.standard_normal((BATCH, 3, IMAGE, IMAGE))
        images = brightness + squares.repeat(4, axis=2).repeat(4, axis=3) + noise
        classes = rng.integers(0, CLASSES + 1, (BATCH, IMAGE // 4, IMAGE // 4))
        labels = np.where(classes == CLASSES, IGNORED, classes).repeat(4, axis=1).repeat(4, axis=2)
        if self.is_first_class_ignored:
            labels = np.where((labels == 0) | (labels == IGNORED), IGNORED, labels - 1)
        return np.clip(np.round(images), 0, 255).astype(np.float32), labels.astype(np.int32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_normed(name: str, *shape: int) -> None:
        weights.add_matrix(name, *shape)
        weights.add_norm(f"{name}.norm", shape[0])

    def add_separable(name: str, n_in: int, n_out: int) -> None:
        add_normed(f"{name}.depthwise", n_in, 1, 3, 3)
        add_normed(f"{name}.pointwise", n_out, n_in, 1, 1)

    add_normed("stem", STEM, 3, 3, 3)
    for n, (n_in, n_out, *_) in enumerate(BLOCKS):
        add_separable(f"blocks.{n}.first", n_in, n_out)
        add_separable(f"blocks.{n}.second", n_out, n_out)
        if n in GATED:
            weights.add_linear(f"blocks.{n}.gate.reduce", n_out // 4, n_out, 1, 1)
            weights.add_linear(f"blocks.{n}.gate.expand", n_out, n_out // 4, 1, 1)
        if n_in != n_out:
            add_normed(f"blocks.{n}.shortcut", n_out, n_in, 1, 1)
    weights.add_norm("attention.norm1", WIDTH)
    for projection in "qkvo":
        weights.add_linear(f"attention.{projection}", WIDTH, WIDTH)
    weights.add_linear("attention.reduce", WIDTH, WIDTH, REDUCTION, REDUCTION)
    weights.add_norm("attention.reduce.norm", WIDTH)
    weights.add_norm("attention.norm2", WIDTH)
    weights.add_linear("attention.mlp.up", MLP, WIDTH)
    weights.add_linear("attention.mlp.depthwise", MLP, 1, 3, 3)
    weights.add_linear("attention.mlp.down", WIDTH, MLP)
    add_normed("pyramid.point", PYRAMID, WIDTH, 1, 1)
    for n in range(len(RATES)):
        add_separable(f"pyramid.{n}", WIDTH, PYRAMID)
    add_normed("pyramid.pooled", PYRAMID, WIDTH, 1, 1)
    add_normed("pyramid.project", PYRAMID, (len(RATES) + 2) * PYRAMID, 1, 1)
    add_normed("decoder.low", LOW_REDUCED, LOW, 1, 1)
    add_separable("decoder.fuse", PYRAMID + LOW_REDUCED, DECODER)
    weights.add_linear("decoder.classes", CLASSES, DECODER, 1, 1)
    add_normed("auxiliary", AUXILIARY, BLOCKS[1][1], 3, 3)
    weights.add_linear("auxiliary.classes", CLASSES, AUXILIARY, 1, 1)
    return Model("segmenter", weights)
