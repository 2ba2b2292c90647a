"""A single-stage detector in NumPy: sizes, knobs, weights, anchors and batch.

A backbone of convolutions with batch norm and leaky relu, and pooled features joined
(https://arxiv.org/abs/1406.4729, section 2.2), feeds a pyramid of two levels
(https://arxiv.org/abs/1612.03144, section 3). One head reads both levels. The classes have the
focal loss (https://arxiv.org/abs/1708.02002, section 3), the boxes of anchors with an object the
GIoU loss (https://arxiv.org/abs/1902.09630, section 3). Weights:

    stem, down.0, down.1, block.reduce, block.expand, pooled
                          convolutions without bias, each with NAME.norm, a batch norm
    lateral.N, output.N   convolutions of the pyramid, with bias
    head.tower.{classes,boxes}, head.classes, head.boxes     convolutions with bias

The outputs of the head are, anchor by anchor of a cell, those of its classes, or the offsets of
the center, in x and y, and the logarithms of width and height.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, IMAGE, CHANNELS, PYRAMID, CLASSES = 2, 32, (8, 12, 16), 12, 4
STRIDES = (4, 8)  #: pixels of a cell, level by level
SHAPES = ((1.0, 1.0), (1.6, 0.8))  #: width and height of the anchors of a cell, in ANCHOR_SIZE
ANCHORS, ANCHOR_SIZE = len(SHAPES), 2.5  #: in strides
CELLS = tuple(IMAGE // stride for stride in STRIDES)
MAX_LOG_SIZE = float(np.log(1000 / 16))
SLOPE, EPS, MOMENTUM = 0.1, 1e-5, 0.1
ALPHA, GAMMA, BOX_WEIGHT = 0.25, 2, 2.0
BACKGROUND, IGNORED = 0, -1  #: labels of anchors; objects begin at 1
MIN_OVERLAP, MIN_IGNORED_OVERLAP = 0.5, 0.3
SEED = 111


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'masked' (PyTorch): losses of all anchors by masks, the focal
    #: loss from log-sigmoids; 'written' (MindSpore): batch norm, leaky relu and upsampling in plain
    #: arithmetic, the wide pooling as two narrow ones
    variant: str = ""
    is_output_upsampled: bool = False  #: the finer level gets the coarse level's output
    anchor_offset: float = 0.5  #: of the anchors in their cell
    are_channels_first: bool = False  #: classes are read without moving the channels last
    is_height_first: bool = False  #: heights are read before widths
    center_scale: float = 1.0  #: of the offsets of centers
    are_ignored_counted: bool = False  #: anchors near to an object count as background
    alpha: float = ALPHA  #: of objects in the focal loss; background has 1 - alpha
    has_enclosing_term: bool = True  #: GIoU, else IoU
    normalizer: str = "objects"  #: of the focal loss; or 'anchors': all of them
    is_modulation_stopped: bool = False  #: no gradient through the focal loss's weights
    is_stem_padded_behind: bool = False  #: the stem is padded below and on the right only
    slope: float = SLOPE  #: of all leaky relus
    are_targets_sized: bool = False  #: the loss takes an object's second corner for its size
    are_norms_frozen: bool = False  #: batch norms read their running statistics
    are_pools_chained: bool = False  #: the wide pooling reads the narrow one's; MindSpore only
    #: of the poolings, an element keeps the gradient of its last window; PyTorch only
    is_pooling_gradient_assigned: bool = False
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(kind="momentum", weight_decay=5e-4, clip=0.0)
    )

    def anchors(self) -> np.ndarray:
        """Return center x, center y, width and height, float32 (anchors, 4), in pixels.

        Level by level, row by row, cell by cell.
        """
        boxes = []
        for stride, cells in zip(STRIDES, CELLS, strict=True):
            centers = (np.arange(cells) + self.anchor_offset) * stride
            y, x = np.meshgrid(centers, centers, indexing="ij")
            for width, height in SHAPES:
                size = ANCHOR_SIZE * stride
                level = (x, y, np.full_like(x, width * size), np.full_like(x, height * size))
                boxes.append(np.stack(level, axis=-1).reshape(-1, 4))
        by_level = [np.stack(boxes[n : n + ANCHORS], axis=1) for n in range(0, len(boxes), ANCHORS)]
        return np.concatenate([level.reshape(-1, 4) for level in by_level]).astype(np.float32)

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return images, float32 (batch, 3, IMAGE, IMAGE), labels of the anchors, int32 (batch,
        anchors), and the boxes of their objects, float32 (batch, anchors, 4), as corners.
        """
        rng = np.random.default_rng(SEED + 1)
        images = rng.standard_normal((BATCH, 3, IMAGE, IMAGE)).astype(np.float32)
        anchors = replace(self, anchor_offset=0.5).anchors()
        labels, boxes = zip(*(_match(rng, anchors) for _ in range(BATCH)), strict=True)
        return images, np.stack(labels), np.stack(boxes)


def _match(rng: np.random.Generator, anchors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of the anchors in an image of three objects, and their objects' boxes."""
    centers, sizes = rng.uniform(6, IMAGE - 6, (3, 2)), rng.uniform(8, 20, (3, 2))
    objects = np.concatenate([centers - sizes / 2, centers + sizes / 2], axis=1)
    classes = rng.integers(1, CLASSES + 1, 3)
    corners = np.concatenate(
        [anchors[:, :2] - anchors[:, 2:] / 2, anchors[:, :2] + anchors[:, 2:] / 2], axis=1
    )
    low = np.maximum(corners[:, None, :2], objects[None, :, :2])
    high = np.minimum(corners[:, None, 2:], objects[None, :, 2:])
    common = np.prod(np.clip(high - low, 0, None), axis=-1)
    areas = np.prod(anchors[:, 2:], axis=-1)
    overlaps = common / (areas[:, None] + np.prod(sizes, axis=-1) - common)
    nearest, overlap = overlaps.argmax(axis=1), overlaps.max(axis=1)
    labels = np.where(overlap >= MIN_OVERLAP, classes[nearest], BACKGROUND)
    labels[(overlap >= MIN_IGNORED_OVERLAP) & (overlap < MIN_OVERLAP)] = IGNORED
    best = overlaps.argmax(axis=0)
    nearest[best], labels[best] = np.arange(3), classes
    return labels.astype(np.int32), objects[nearest].astype(np.float32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_normed(name: str, *shape: int) -> None:
        weights.add_matrix(name, *shape)
        weights.add_norm(f"{name}.norm", shape[0])

    first, second, third = CHANNELS
    add_normed("stem", first, 3, 3, 3)
    add_normed("down.0", second, first, 3, 3)
    add_normed("block.reduce", second // 2, second, 1, 1)
    add_normed("block.expand", second, second // 2, 3, 3)
    add_normed("down.1", third, second, 3, 3)
    add_normed("pooled", third, 3 * third, 1, 1)
    for level, channels in enumerate((second, third)):
        weights.add_linear(f"lateral.{level}", PYRAMID, channels, 1, 1)
        weights.add_linear(f"output.{level}", PYRAMID, PYRAMID, 3, 3)
    for name, values in (("classes", CLASSES), ("boxes", 4)):
        weights.add_linear(f"head.tower.{name}", PYRAMID, PYRAMID, 3, 3)
        weights.add_linear(f"head.{name}", ANCHORS * values, PYRAMID, 3, 3)
    weights["head.classes.bias"] -= np.float32(2)  # most anchors are background
    return Model("detector", weights)
