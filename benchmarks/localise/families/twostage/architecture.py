"""A two-stage detector in NumPy: sizes, knobs, weights, anchors and batch.

Faster R-CNN (https://arxiv.org/abs/1506.01497) with a feature pyramid
(https://arxiv.org/abs/1612.03144) of two levels. The backbone is a strided convolution and two
residual blocks of stride 2 with a strided shortcut; its batch norms are frozen, weights and all.
The coarse level is upsampled to the nearest cell and added to the fine one before the outputs.

The head of the first stage, a 3x3 convolution with relu and two 1x1 ones, reads both levels: for
each anchor of a cell an objectness, and four deltas. The batch says which anchors are sampled and
which object they have. The batch also has the proposals, padded to PROPOSALS in an image. A
proposal belongs to the coarse level if its area is that of COARSE_SIZE squared or more. RoI align
(https://arxiv.org/abs/1703.06870, section 3) has BINS x BINS bins, which are the mean of SAMPLES x
SAMPLES bilinear samples. A box's edge at pixel x is at x / stride - 0.5 among the cells' centers;
samples beyond the last center take its value. Two linear layers with relu, whose input is (channel,
row, column), give the scores of the classes, background last, and the deltas of each class.

The deltas of a box from another one, its anchor or proposal, are, with centers x, y and sizes w, h,

    (x' - x) / w, (y' - y) / h, log(w' / w), log(h' / h)

and those of the second stage are times BOX_WEIGHTS. The loss is the sum of

    objectness   binary cross-entropy, mean of all sampled anchors
    anchors      smooth L1 with ANCHOR_BETA, summed over deltas, mean of the anchors with an object
    classes      cross-entropy, mean of all proposals that are no padding
    boxes        smooth L1 with BOX_BETA of the object's class, summed over deltas, mean of the
                 proposals with an object

Weights are float32, linear ones (out, in):

    stem, stages.N.{first, second, shortcut}
                          convolutions, each with NAME.norm.{weight, bias, mean, variance}
    lateral.N, output.N   convolutions of the pyramid, with bias
    anchors.{hidden, objectness, deltas}        convolutions with bias; deltas anchor by anchor
    boxes.{first, second, classes, deltas}      linear, with bias; deltas class by class
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from families.weights import Weights

HEIGHT, WIDTH = 32, 48
SIZES = ((32, 41), (27, 48))  #: height and width of the images without their padding
BATCH = len(SIZES)
STRIDES = (4, 8)  #: pixels of a cell, level by level
LEVELS = len(STRIDES)
GRIDS = tuple((HEIGHT // stride, WIDTH // stride) for stride in STRIDES)
CHANNELS, PYRAMID, HIDDEN, CLASSES = (8, 12, 16), 10, 18, 5
ANCHOR_SIZES, RATIOS = (9.0, 18.0), (0.5, 1.0, 2.0)  #: by level; height / width
ANCHORS = len(RATIOS)  #: of a cell
OBJECTS = (3, 2)  #: of each image
SAMPLED_ANCHORS = 40  #: of each image
COUNTS = (10, 7)  #: proposals of each image
PROPOSALS = max(COUNTS)
PADDING_BOX = (0.0, 0.0, 1.0, 1.0)
BACKGROUND, UNSAMPLED = -1, -2  #: instead of the number of an object
COARSE_SIZE, BINS, SAMPLES = 16.0, 3, 2
BOX_WEIGHTS = (10.0, 10.0, 5.0, 5.0)
ANCHOR_BETA, BOX_BETA = 1 / 9, 1.0
MIN_OVERLAP, MAX_BACKGROUND_OVERLAP = 0.5, 0.3
EPS = 1e-5
SEED = 1506


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): RoI align as products with the shares of
    #: rows and columns, norms and losses in plain arithmetic; 'detectron' (PyTorch): other names,
    #: fused norms, RoI align by grid_sample of proposals that are no padding, losses by masks
    variant: str = ""
    is_roi_aligned: bool = True  #: edges of boxes are moved by half a cell; MindSpore only
    are_deltas_first: bool = False  #: in the second stage, before the classes; MindSpore only
    is_padding_counted: bool = False  #: as background, in the classes' loss; MindSpore only
    is_stage_stopped: bool = False  #: no gradient behind the first stage; MindSpore only
    are_sizes_inclusive: bool = False  #: a pixel more, in targets of deltas; MindSpore only
    are_ratios_inverted: bool = False  #: of anchors, width / height; MindSpore only
    norm_eps: float = EPS  #: PyTorch only
    anchor_beta: float = ANCHOR_BETA  #: PyTorch only
    anchor_divisor: str = "objects"  #: or 'sampled': all sampled anchors; PyTorch only
    is_gradient_overwritten: bool = False  #: where samples have a cell in common; PyTorch only
    proposal_scale: float = 1.0  #: of the batch's proposals

    def anchors(self) -> np.ndarray:
        """Return the anchors as corners, float32 (anchors, 4): level, row, column, ratio."""
        levels = []
        for (rows, columns), stride, size in zip(GRIDS, STRIDES, ANCHOR_SIZES, strict=True):
            y, x = np.meshgrid(
                (np.arange(rows) + 0.5) * stride, (np.arange(columns) + 0.5) * stride, indexing="ij"
            )
            centers = np.stack([x, y], axis=-1)[:, :, None]
            roots = np.sqrt(np.array(RATIOS))
            half_sizes = np.stack([size / roots, size * roots], axis=-1) / 2
            corners = np.concatenate([centers - half_sizes, centers + half_sizes], axis=-1)
            levels.append(corners.reshape(-1, 4))
        return np.concatenate(levels).astype(np.float32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return the arrays of a batch; boxes are corners in pixels:

        images, float32 (BATCH, 3, HEIGHT, WIDTH), zero where padded; boxes of objects, float32
        (BATCH, objects, 4), and their classes, int32 (BATCH, objects), padded with zeros; objects
        of anchors, int32 (BATCH, anchors), BACKGROUND or UNSAMPLED; proposals, float32 (BATCH,
        PROPOSALS, 4), their number, int32 (BATCH,), and their objects, int32 (BATCH, PROPOSALS),
        BACKGROUND for padding, too.
        """
        rng = np.random.default_rng(SEED + 1)
        images = np.zeros((BATCH, 3, HEIGHT, WIDTH))
        boxes = np.zeros((BATCH, max(OBJECTS), 4))
        classes = np.zeros((BATCH, max(OBJECTS)), np.int32)
        proposals = np.tile(np.array(PADDING_BOX), (BATCH, PROPOSALS, 1))
        objects_of_proposals = np.full((BATCH, PROPOSALS), BACKGROUND, np.int32)
        objects_of_anchors = []
        for n, ((height, width), n_objects, count) in enumerate(
            zip(SIZES, OBJECTS, COUNTS, strict=True)
        ):
            images[n, :, :height, :width] = rng.standard_normal((3, height, width))
            objects = _draw_boxes(rng, n_objects, height, width)
            boxes[n, :n_objects] = objects
            classes[n, :n_objects] = rng.choice(CLASSES, n_objects, replace=False)
            objects_of_anchors.append(_match_anchors(rng, self.anchors(), objects, height, width))
            proposals[n, :count] = _propose(rng, objects, count, height, width)
            overlaps = _compute_overlaps(proposals[n, :count], objects)
            is_object = overlaps.max(axis=1) >= MIN_OVERLAP
            objects_of_proposals[n, :count] = np.where(
                is_object, overlaps.argmax(axis=1), BACKGROUND
            )
        valid = np.arange(PROPOSALS) < np.array(COUNTS)[:, None]
        proposals[valid] *= self.proposal_scale
        return (
            images.astype(np.float32),
            boxes.astype(np.float32),
            classes,
            np.stack(objects_of_anchors),
            proposals.astype(np.float32),
            np.array(COUNTS, np.int32),
            objects_of_proposals,
        )


def _draw_boxes(rng: np.random.Generator, count: int, height: int, width: int) -> np.ndarray:
    """Return boxes (count, 4) in an image."""
    sizes = rng.uniform(8, 24, (count, 2))
    corners = rng.uniform(0, 1, (count, 2)) * (np.array([width, height]) - sizes)
    return np.concatenate([corners, corners + sizes], axis=1)


def _propose(
    rng: np.random.Generator, objects: np.ndarray, count: int, height: int, width: int
) -> np.ndarray:
    """Return proposals (count, 4) in random order: two near each object, the others anywhere."""
    near = np.repeat(objects, 2, axis=0) + rng.uniform(-1.5, 1.5, (2 * len(objects), 4))
    near = np.clip(near, 0, [width, height, width, height])
    others = _draw_boxes(rng, count - len(near), height, width)
    return rng.permutation(np.concatenate([near, others]))


def _match_anchors(
    rng: np.random.Generator, anchors: np.ndarray, objects: np.ndarray, height: int, width: int
) -> np.ndarray:
    """Return objects of anchors: all anchors with one are sampled, and some of the background."""
    overlaps = _compute_overlaps(anchors, objects)
    matches = np.full(len(anchors), UNSAMPLED)
    is_object = overlaps.max(axis=1) >= MIN_OVERLAP
    matches[is_object] = overlaps.argmax(axis=1)[is_object]
    matches[overlaps.argmax(axis=0)] = np.arange(len(objects))
    centers = (anchors[:, :2] + anchors[:, 2:]) / 2
    is_background = (overlaps.max(axis=1) < MAX_BACKGROUND_OVERLAP) & (matches == UNSAMPLED)
    candidates = np.flatnonzero(is_background & (centers < [width, height]).all(axis=1))
    n_background = SAMPLED_ANCHORS - int((matches >= 0).sum())
    matches[rng.choice(candidates, n_background, replace=False)] = BACKGROUND
    return matches.astype(np.int32)


def _compute_overlaps(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the share that each two boxes have in common of both, (boxes, others)."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    common = np.prod(np.clip(high - low, 0, None), axis=-1)
    areas, other_areas = (np.prod(x[:, 2:] - x[:, :2], axis=-1) for x in (boxes, others))
    return common / (areas[:, None] + other_areas - common)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    _add_normed(weights, "stem", CHANNELS[0], 3, 3, 3)
    for n, (n_in, n_out) in enumerate(pairwise(CHANNELS)):
        _add_normed(weights, f"stages.{n}.first", n_out, n_in, 3, 3)
        _add_normed(weights, f"stages.{n}.second", n_out, n_out, 3, 3)
        _add_normed(weights, f"stages.{n}.shortcut", n_out, n_in, 1, 1)
    for level, channels in enumerate(CHANNELS[1:]):
        weights.add_linear(f"lateral.{level}", PYRAMID, channels, 1, 1)
        weights.add_linear(f"output.{level}", PYRAMID, PYRAMID, 3, 3)
    weights.add_linear("anchors.hidden", PYRAMID, PYRAMID, 3, 3)
    weights.add_linear("anchors.objectness", ANCHORS, PYRAMID, 1, 1)
    weights.add_linear("anchors.deltas", 4 * ANCHORS, PYRAMID, 1, 1)
    weights.add_linear("boxes.first", HIDDEN, PYRAMID * BINS**2)
    weights.add_linear("boxes.second", HIDDEN, HIDDEN)
    weights.add_linear("boxes.classes", CLASSES + 1, HIDDEN)
    weights.add_linear("boxes.deltas", 4 * CLASSES, HIDDEN)
    return Model("twostage", weights)


def _add_normed(weights: Weights, path: str, *shape: int) -> None:
    """Add a convolution and its frozen norm, with channels as unlike as a trained net has them."""
    weights.add_matrix(path, *shape)
    weights.add_norm(f"{path}.norm", shape[0])
    variances = np.exp(weights.rng.uniform(np.log(4e-4), np.log(1), shape[0]))
    deviations = np.sqrt(variances)
    means = 0.3 * deviations * weights.rng.standard_normal(shape[0])
    weights[f"{path}.norm.mean"] = means.astype(np.float32)
    weights[f"{path}.norm.variance"] = variances.astype(np.float32)
    weights[f"{path}.weight"] *= deviations.astype(np.float32).reshape(-1, 1, 1, 1)
