"""A siamese tracker of one object in NumPy: sizes, knobs, weights and batch.

In the manner of SiamRPN++ (https://arxiv.org/abs/1812.11703). One backbone reads a template, which
shows the object, and a larger search region, both with colors from 0 to 255 in the order blue,
green, red, of which MEAN is subtracted and which are divided by DEVIATION. A layer is a convolution
and a batch norm. The stem, a strided layer with a ReLU, is frozen: its norm has the running
statistics, and it does not train. Of the three blocks the first has stride 2, the others dilation
2; a block adds its input, through a layer of 1 x 1 if the number of channels changes, to two
layers, and has a ReLU behind the sum. All three blocks are levels: a neck, a layer of 1 x 1
with a ReLU, makes HIDDEN channels of each, and the CROP x CROP cells in the middle of the template
stay.

Each level has a branch 'cls' and a branch 'loc'. In a branch, two layers without padding and with
a ReLU read template and search region. The first result is a kernel for the second one, channel by
channel and pair by pair, without padding: SCORES x SCORES places are left. A layer of 1 x 1 with a
ReLU reads them. Convolutions of 1 x 1 with a bias make of it

    cls.N.out   2 ANCHORS logits: no object and object; class * ANCHORS + anchor
    loc.N.out   4 ANCHORS deltas: x, y, width, height; coordinate * ANCHORS + anchor
    iou.N.out   ANCHORS logits of the box's IoU, from the branch 'loc'

Levels are summed with weights softmax(fusion.cls) for the first and softmax(fusion.loc) for both
others. Anchors have the sizes of ``make_sizes`` and centers STRIDE pixels apart, around the middle
of the search region. Deltas are (x - center) / size and log(size / size of the anchor). The loss is
the sum of

    cls     half the mean cross entropy of anchors with label 1 and half that of label 0; -1 counts
            nowhere
    loc     LOC_WEIGHT * smooth L1 of deltas with the threshold BETA, summed over coordinates, mean
            of a pair's anchors with label 1, 0 if it has none, mean of pairs
    giou    GIOU_WEIGHT * mean of 1 - GIoU of all anchors with label 1
    iou     IOU_WEIGHT * mean binary cross entropy of the same anchors; the target is the IoU of
            their box, a constant
    track   TRACK_WEIGHT * mean, over pairs with an object, of the expected 1 - IoU of the box that
            the tracker takes: probabilities are scores divided by their sum over a pair. A score is
            (1 - INFLUENCE) penalty p(object) sigmoid(iou) + INFLUENCE window, where the window is
            Hann's in rows and columns, the penalty exp(PENALTY * (1 - change of size * change of
            the aspect ratio)), a change is the larger one of x and 1 / x, x is the quotient of the
            box and the last size, and a size is sqrt((w + (w + h) / 2) (h + (w + h) / 2))

Weights are float32, with NAME.norm behind each convolution of a layer:

    stem                                 its norm has a mean and a variance, too
    blocks.N.first, second, shortcut     no shortcut in the last block
    necks.N
    cls.N.kernel, search, hidden, out; loc.N.kernel, search, hidden, out; iou.N.out
    fusion.cls, fusion.loc               one number for each level
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BATCH = 4
TEMPLATE, SEARCH, STRIDE = 40, 48, 4
TEMPLATE_CELLS, SEARCH_CELLS = TEMPLATE // STRIDE, SEARCH // STRIDE
CROP = 6
KERNEL = CROP - 2  #: rows and columns of what is correlated with the search region
SCORES = SEARCH_CELLS - 2 - KERNEL + 1
STEM, CHANNELS, HIDDEN = 9, (12, 14, 14), 10
LEVELS = len(CHANNELS)
RATIOS, SCALES = (0.5, 1.0, 2.0), (3, 5)  #: of anchors: height / width, size / STRIDE
ANCHORS = len(RATIOS) * len(SCALES)
MEAN, DEVIATION = (103.53, 116.28, 123.675), (57.375, 57.12, 58.395)
MIN_IOU, MAX_IOU = 0.5, 0.25  #: of anchors with label 1 and 0
MAX_POSITIVES, MAX_NEGATIVES = (9, 6, 4, 0), (20, 24, 18, 30)  #: of each pair
BETA = 1 / 9
LOC_WEIGHT, GIOU_WEIGHT, IOU_WEIGHT, TRACK_WEIGHT = 1.2, 0.8, 0.6, 1.5
INFLUENCE, PENALTY = 0.4, 0.15
HARD_CROP = 4  #: first cell of the crop of 15 x 15 cells in the published code
EPS = 1e-5
SEED = 1812


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): norms in plain arithmetic, correlation
    #: as a sum of shifted products, losses without the framework's; 'joined' (PyTorch): other
    #: names, both branches of a level in one convolution, correlation by unfolding
    variant: str = ""
    crop_start: int = (TEMPLATE_CELLS - CROP) // 2  #: MindSpore only
    are_ignored_negative: bool = False  #: labels of -1 in the cross entropy; MindSpore only
    are_classes_balanced: bool = True  #: in the cross entropy; MindSpore only
    is_kernel_flipped_back: bool = True  #: in the gradient of the search region; MindSpore only
    is_template_stopped: bool = False  #: its features have no gradient; MindSpore only
    is_fusion_linear: bool = False  #: weights of levels divided by their sum; PyTorch only
    are_centers_transposed: bool = False  #: of anchors: x grows with the row; PyTorch only
    is_window_interleaved: bool = False  #: as for scores with anchors last; PyTorch only
    backbone_gradient: float = 1.0  #: its factor; PyTorch only
    are_colors_reversed: bool = False  #: red, green, blue
    beta: float = BETA  #: of smooth L1; MindSpore only
    is_penalty_stopped: bool = False  #: it is a constant for the gradient; PyTorch only

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return templates, search regions, boxes, last sizes and labels.

        Images are float32 (BATCH, 3, TEMPLATE, TEMPLATE) and (BATCH, 3, SEARCH, SEARCH), boxes
        float32 (BATCH, 4): center x, y, width, height in pixels of the search region; last sizes
        float32 (BATCH, 2); labels int32 (BATCH, ANCHORS, SCORES, SCORES): 1, 0 or -1. The last
        pair has no object in its search region.
        """
        rng = np.random.default_rng(SEED + 1)
        templates, regions, boxes, sizes, labels = [], [], [], [], []
        for n in range(BATCH):
            box = np.array([*rng.uniform(17, 31, 2), *rng.uniform((11, 10), (21, 17))])
            last_size = box[2:] * rng.uniform(0.85, 1.15, 2)
            look = rng.uniform(0, 255, (3, 4, 4))
            templates.append(_draw_scene(rng, TEMPLATE, [TEMPLATE / 2] * 2, last_size, look))
            shown = look if MAX_POSITIVES[n] else rng.uniform(0, 255, (3, 4, 4))
            regions.append(_draw_scene(rng, SEARCH, box[:2], box[2:], shown))
            boxes.append(box)
            sizes.append(last_size)
            labels.append(_draw_labels(rng, box, MAX_POSITIVES[n], MAX_NEGATIVES[n]))
        regions[1][:, :, -7:] = np.array(MEAN)[:, None, None]  # beyond the frame
        images = [np.array(images, np.float32) for images in (templates, regions)]
        if self.are_colors_reversed:
            images = [np.ascontiguousarray(values[:, ::-1]) for values in images]
        floats = (np.array(values, np.float32) for values in (boxes, sizes))
        return *images, *floats, np.array(labels, np.int32)


def make_sizes() -> np.ndarray:
    """Return widths and heights of anchors, float32 (ANCHORS, 2)."""
    sides = [(STRIDE / ratio**0.5, STRIDE * ratio**0.5) for ratio in RATIOS]
    sizes = [scale * np.array(side) for side in sides for scale in SCALES]
    return np.array(sizes, np.float32)


def make_centers() -> np.ndarray:
    """Return the x of columns, which are the y of rows too, float32 (SCORES,)."""
    return (SEARCH / 2 + STRIDE * (np.arange(SCORES) - SCORES // 2)).astype(np.float32)


def _draw_scene(
    rng: np.random.Generator, side: int, center: list[float], size: np.ndarray, look: np.ndarray
) -> np.ndarray:
    """Return an image (3, side, side) of patches with an object of a look (3, 4, 4)."""
    image = rng.uniform(30, 220, (3, side // 8, side // 8)).repeat(8, axis=1).repeat(8, axis=2)
    rows, columns = np.mgrid[:side, :side] + 0.5
    x, y = (columns - center[0]) / size[0] + 0.5, (rows - center[1]) / size[1] + 0.5
    is_object = (x >= 0) & (x < 1) & (y >= 0) & (y < 1)
    index = [np.clip((4 * share).astype(int), 0, 3) for share in (y, x)]
    image = np.where(is_object, look[:, index[0], index[1]], image)
    return np.clip(image + 12 * rng.standard_normal(image.shape), 0, 255)


def _draw_labels(
    rng: np.random.Generator, box: np.ndarray, max_positives: int, max_negatives: int
) -> np.ndarray:
    """Return labels of anchors, of which at most so many are not ignored."""
    centers, sizes = make_centers(), make_sizes()[:, :, None, None]
    y, x = np.meshgrid(centers, centers, indexing="ij")
    overlap_x = np.minimum(box[0] + box[2] / 2, x + sizes[:, 0] / 2)
    overlap_x -= np.maximum(box[0] - box[2] / 2, x - sizes[:, 0] / 2)
    overlap_y = np.minimum(box[1] + box[3] / 2, y + sizes[:, 1] / 2)
    overlap_y -= np.maximum(box[1] - box[3] / 2, y - sizes[:, 1] / 2)
    overlap = np.maximum(overlap_x, 0) * np.maximum(overlap_y, 0)
    iou = (overlap / (sizes[:, 0] * sizes[:, 1] + box[2] * box[3] - overlap)).ravel()
    labels = np.full(iou.shape, -1)
    labels[rng.permutation(np.flatnonzero(iou < MAX_IOU))[:max_negatives]] = 0
    labels[rng.permutation(np.flatnonzero(iou > MIN_IOU))[:max_positives]] = 1
    return labels.reshape(ANCHORS, SCORES, SCORES)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_layer(path: str, n_out: int, n_in: int, size: int = 3) -> None:
        weights.add_matrix(path, n_out, n_in, size, size)
        weights.add_norm(f"{path}.norm", n_out)

    add_layer("stem", STEM, 3)
    mean = 0.4 * weights.rng.standard_normal(STEM)
    weights["stem.norm.mean"] = mean.astype(np.float32)
    weights["stem.norm.variance"] = weights.rng.uniform(0.4, 1.8, STEM).astype(np.float32)
    n_in = STEM
    for n, n_out in enumerate(CHANNELS):
        add_layer(f"blocks.{n}.first", n_out, n_in)
        add_layer(f"blocks.{n}.second", n_out, n_out)
        if n_in != n_out:
            add_layer(f"blocks.{n}.shortcut", n_out, n_in, 1)
        add_layer(f"necks.{n}", HIDDEN, n_out, 1)
        n_in = n_out
    for n in range(LEVELS):
        for branch, n_out in (("cls", 2 * ANCHORS), ("loc", 4 * ANCHORS)):
            add_layer(f"{branch}.{n}.kernel", HIDDEN, HIDDEN)
            add_layer(f"{branch}.{n}.search", HIDDEN, HIDDEN)
            add_layer(f"{branch}.{n}.hidden", HIDDEN, HIDDEN, 1)
            weights.add_linear(f"{branch}.{n}.out", n_out, HIDDEN, 1, 1)
        weights[f"loc.{n}.out.weight"] *= np.float32(0.4)
        weights.add_linear(f"iou.{n}.out", ANCHORS, HIDDEN, 1, 1)
    weights["fusion.cls"] = np.array([1.7, 0.3, 0.9], np.float32)
    weights["fusion.loc"] = np.array([0.4, 1.1, 1.8], np.float32)
    return Model("tracker", weights)
