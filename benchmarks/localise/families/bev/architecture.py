"""Detection in the bird's-eye view from several cameras in NumPy: sizes, knobs, weights and batch.

Images are lifted and pooled as in Lift, Splat, Shoot (https://arxiv.org/abs/2008.05711), depths
know their camera and are supervised as in BEVDepth (https://arxiv.org/abs/2206.10092), and objects
are points as in CenterPoint (https://arxiv.org/abs/2006.11275). A layer is a convolution without
bias, a batch norm of the batch's statistics and a ReLU; a block adds its input, through a strided
convolution and a norm if it is strided itself, to two convolutions with norms, and has a ReLU
behind the sum. One encoder, two strided layers and a block, reads all CAMERAS of all samples.

The depth network begins with a layer. CAMERA numbers of each camera have a batch norm: focal
lengths and centers, the upper left 2 x 2 entries and the shift of the image's augmentation, the
upper left 2 x 2 entries of that of the scene, and the 3 x 4 entries of the pose, row by row. A mlp
of two layers, both with a ReLU, reads them for the context and another one for the depths, and
squeeze-and-excitation multiplies cells by sigmoid(expand(relu(reduce(mlp)))). Context is a
convolution of that; depths are a softmax over BINS, of a convolution of a block of that.

A cell's pixels, evenly from the image's first to its last one, and BINS depths are the frustum.
Its points (u, v, d) become

    (u, v, d) = inverse(augmentation) ((u, v, d) - shift)
    point     = scene (rotation inverse(intrinsics) (u d, v d, d) + translation)

with x forward, y left and z up, and are in the cell floor((point - LOWER) / CELL). Cells of the
grid sum depth * context of their points; points outside the grid are dropped. The grid's encoder is
a strided layer, a block, a strided block, that upsampled and joined to the first block (upsampled
first), a layer, upsampled, a layer, both times twice, bilinear with aligned corners. Heads read a
shared layer: each is a layer and a convolution with a bias. The loss is the sum of

    heatmap    focal loss of sigmoid clipped to MIN_SCORE and 1 - MIN_SCORE, with (1 - target)^4 as
               weight of cells that are no center, divided by the number of centers
    boxes      BOX_WEIGHT * L1 of offsets in the cell, height, logarithms of sizes, sine and cosine
               of yaw, and velocities, times CODE_WEIGHTS; sum of centers divided by their number
    depth      DEPTH_WEIGHT * binary cross entropy of all bins, in cells that have a depth, summed
               and divided by the number of these; the depth of a cell is the least of its pixels'

Weights, with NAME.norm behind each convolution of a layer or block:

    encoder.N, encoder.block.first, second      (out, in, 3, 3)
    depth.layer, depth.block.first, second      (HIDDEN, HIDDEN, 3, 3)
    camera                                      norm of CAMERA numbers
    context.KIND, bins.KIND                     mlp.0, mlp.1, reduce, expand: linear with bias
    context.out, bins.out                       linear with bias, in each cell
    grid.stem, grid.near, grid.far, grid.far.shortcut, grid.merge, grid.last, heads.shared
    heads.NAME.hidden, heads.NAME.out           for NAME of HEADS
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BATCH, CAMERAS = 2, 3
HEIGHT, WIDTH, STRIDE = 16, 24, 4
ROWS, COLUMNS = HEIGHT // STRIDE, WIDTH // STRIDE
FIRST_DEPTH, DEPTH_STEP, BINS = 1.0, 1.0, 8
LOWER, CELL = (-8.0, -6.0, -1.0), (1.0, 1.0, 4.0)
GRID_X, GRID_Y = 16, 12  #: columns and rows of the grid; its height is one cell
STEM, HIDDEN, CONTEXT, FAR, HEAD = 12, 16, 10, 20, 8
CAMERA = 26
HEADS = (("offset", 2), ("height", 1), ("size", 3), ("yaw", 2), ("velocity", 2))  #: of boxes
CODE = sum(width for _, width in HEADS)
CODE_WEIGHTS = (1.0,) * 8 + (0.2,) * 2
CLASSES, COUNTS = 3, (6, 3)
OBJECTS = max(COUNTS)
MIN_SCORE, RADIUS = 1e-4, 2
BOX_WEIGHT, DEPTH_WEIGHT = 0.25, 3.0
EPS = 1e-5
YAWS, PITCHES = (0.0, 1.1, -1.2), (0.06, 0.1, 0.02)  #: of cameras
SEED = 2206


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'matrix' (MindSpore): pooling and upsampling are products with
    #: matrices, layers of all heads are one, losses in plain arithmetic; 'cumsum' (PyTorch): names
    #: of Lift, Splat, Shoot, homogeneous matrices, sums of sorted points by differences
    variant: str = ""
    is_softmax_of_columns: bool = False  #: of depths; MindSpore only
    are_cells_truncated: bool = False  #: towards zero, not rounded down; MindSpore only
    are_bins_early: bool = False  #: of the loss, by one; MindSpore only
    is_outside_trained: bool = False  #: by the gradient of the first cell; MindSpore only
    are_corners_aligned: bool = True  #: MindSpore only
    are_heights_pooled: bool = False  #: of points above and below the grid; MindSpore only
    is_shift_last: bool = False  #: of the image's augmentation; PyTorch only
    code_weights: tuple[float, ...] = CODE_WEIGHTS  #: PyTorch only
    is_depth_detached: bool = False  #: where it multiplies the context; PyTorch only
    are_predictions_transposed: bool = False  #: where boxes gather them; PyTorch only
    image_order: tuple[int, ...] = (0, 1, 2)  #: of cameras
    are_yaws_clockwise: bool = False  #: from the other axis, those of boxes

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return, float32 if nothing else is said:

        images (BATCH, CAMERAS, 3, HEIGHT, WIDTH); of each camera rotation (3, 3) and translation
        (3,) of its pose, intrinsics (3, 3), and matrix (3, 3) and shift (3,) of the augmentation;
        the scene's augmentation (BATCH, 3, 3); depths of pixels, 0 if there is none (BATCH,
        CAMERAS, HEIGHT, WIDTH); heatmaps (BATCH, CLASSES, GRID_Y, GRID_X); boxes (x, y, z, 3
        sizes, yaw, 2 velocities) of the augmented scene (BATCH, OBJECTS, 9); cells of their
        centers, int32, y * GRID_X + x, and which of them are no padding (BATCH, OBJECTS).
        """
        rng = np.random.default_rng(SEED + 1)
        cameras = [[_make_camera(rng, n) for n in range(CAMERAS)] for _ in range(BATCH)]
        geometry = [np.array([[c[k] for c in row] for row in cameras]) for k in range(5)]
        scenes = np.array([_turn(0.21) * 1.04, _turn(-0.16) @ np.diag((0.97, -0.97, 0.97))])
        images = _draw_images(rng)[:, list(self.image_order)]
        shape = (BATCH, CAMERAS, HEIGHT, WIDTH)
        depths = rng.uniform(0.5, 10.5, shape) * (rng.uniform(size=shape) < 0.06)
        heatmaps, boxes, *centers = _draw_objects(rng)
        if self.are_yaws_clockwise:
            boxes[..., 6] = -boxes[..., 6] - np.pi / 2
        floats = (images, *geometry, scenes, depths, heatmaps, boxes, *centers)
        *arrays, cells, masks = (np.asarray(values, np.float32) for values in floats)
        return *arrays, cells.astype(np.int32), masks


def make_frustum() -> np.ndarray:
    """Return (u, v, d) of the points of a camera, (BINS, ROWS, COLUMNS, 3)."""
    depths = FIRST_DEPTH + DEPTH_STEP * np.arange(BINS)
    rows, columns = np.linspace(0, HEIGHT - 1, ROWS), np.linspace(0, WIDTH - 1, COLUMNS)
    d, v, u = np.meshgrid(depths, rows, columns, indexing="ij")
    return np.stack([u, v, d], axis=-1).astype(np.float32)


def _turn(angle: float) -> np.ndarray:
    """Return the rotation about the third axis."""
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.array([[cosine, -sine, 0.0], [sine, cosine, 0.0], [0.0, 0.0, 1.0]])


def _make_camera(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    """Return rotation, translation, intrinsics, and matrix and shift of the augmentation."""
    yaw, pitch = np.array([YAWS[n], PITCHES[n]]) + rng.uniform(-0.05, 0.05, 2)
    forward = np.array([np.cos(yaw) * np.cos(pitch), np.sin(yaw) * np.cos(pitch), -np.sin(pitch)])
    right = np.array([np.sin(yaw), -np.cos(yaw), 0.0])
    rotation = np.stack([right, np.cross(forward, right), forward], axis=1)
    translation = (0.7 * np.cos(yaw), 0.6 * np.sin(yaw), rng.uniform(0.9, 1.4))
    focal_x, focal_y = rng.uniform(17, 22, 2)
    center_x, center_y = rng.uniform((11, 6.5), (13.5, 9))
    intrinsics = np.array([[focal_x, 0, center_x], [0, focal_y, center_y], [0, 0, 1]])
    matrix = _turn(rng.uniform(-0.09, 0.09)) @ np.diag((-1 if n == 1 else 1, 1, 1))
    matrix[:2, :2] *= rng.uniform(0.85, 1.15)
    center = np.array([WIDTH / 2, HEIGHT / 2, 0.0])
    shift = center - matrix @ center + np.array([*rng.uniform(-1.5, 1.5, 2), 0.0])
    return rotation, np.array(translation), intrinsics, matrix, shift


def _draw_images(rng: np.random.Generator) -> np.ndarray:
    """Return standardized images of patches, each of its own contrast."""
    shape = (BATCH, CAMERAS, 3, HEIGHT // 4, WIDTH // 4)
    patches = rng.standard_normal(shape).repeat(4, axis=3).repeat(4, axis=4)
    contrasts = rng.uniform(0.6, 1.4, (BATCH, CAMERAS, 3, 1, 1))
    return contrasts * (patches + 0.4 * rng.standard_normal(patches.shape))


def _draw_objects(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return heatmaps, boxes, cells of centers, and which of them are no padding."""
    heatmaps = np.zeros((BATCH, CLASSES, GRID_Y, GRID_X))
    boxes = np.tile([0.0, 0, 0, 1, 1, 1, 0, 0, 0], (BATCH, OBJECTS, 1))
    cells, masks = np.zeros((2, BATCH, OBJECTS))
    rows, columns = np.mgrid[:GRID_Y, :GRID_X]
    deviation = (2 * RADIUS + 1) / 6
    for n, count in enumerate(COUNTS):
        centers = rng.choice(GRID_Y * GRID_X, count, replace=False)
        for k, (row, column) in enumerate(zip(*np.divmod(centers, GRID_X), strict=True)):
            place = np.array([column, row]) + rng.uniform(0.1, 0.9, 2)
            boxes[n, k, :2] = LOWER[:2] + place * CELL[:2]
            boxes[n, k, 2] = rng.uniform(-0.5, 1.5)
            boxes[n, k, 3:6] = (1.9, 4.4, 1.6) * np.exp(0.4 * rng.standard_normal(3))
            boxes[n, k, 6:] = (rng.uniform(-np.pi, np.pi), *(2 * rng.standard_normal(2)))
            squares = (rows - row) ** 2 + (columns - column) ** 2
            is_near = np.maximum(abs(rows - row), abs(columns - column)) <= RADIUS
            gaussian = np.exp(-squares / (2 * deviation**2)) * is_near
            label = rng.integers(CLASSES)
            heatmaps[n, label] = np.maximum(heatmaps[n, label], gaussian)
        cells[n, :count], masks[n, :count] = centers, 1
    return heatmaps, boxes, cells, masks


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_layer(path: str, n_out: int, n_in: int, size: int = 3) -> None:
        weights.add_matrix(path, n_out, n_in, size, size)
        weights.add_norm(f"{path}.norm", n_out)

    def add_block(path: str, n_out: int, n_in: int) -> None:
        add_layer(f"{path}.first", n_out, n_in)
        add_layer(f"{path}.second", n_out, n_out)
        if n_in != n_out:
            add_layer(f"{path}.shortcut", n_out, n_in, 1)

    add_layer("encoder.0", STEM, 3)
    add_layer("encoder.1", HIDDEN, STEM)
    add_block("encoder.block", HIDDEN, HIDDEN)
    add_layer("depth.layer", HIDDEN, HIDDEN)
    weights.add_norm("camera", CAMERA)
    for kind, n_out in (("context", CONTEXT), ("bins", BINS)):
        weights.add_linear(f"{kind}.mlp.0", HIDDEN, CAMERA)
        weights.add_linear(f"{kind}.mlp.1", HIDDEN, HIDDEN)
        weights.add_linear(f"{kind}.reduce", HIDDEN, HIDDEN)
        weights.add_linear(f"{kind}.expand", HIDDEN, HIDDEN)
        weights.add_linear(f"{kind}.out", n_out, HIDDEN)
    weights["bins.out.weight"] *= np.float32(1.5)
    add_block("depth.block", HIDDEN, HIDDEN)
    add_layer("grid.stem", HIDDEN, CONTEXT)
    add_block("grid.near", HIDDEN, HIDDEN)
    add_block("grid.far", FAR, HIDDEN)
    add_layer("grid.merge", HIDDEN, FAR + HIDDEN)
    add_layer("grid.last", STEM, HIDDEN)
    add_layer("heads.shared", STEM, STEM)
    for name, n_out in (("heatmap", CLASSES), *HEADS):
        add_layer(f"heads.{name}.hidden", HEAD, STEM)
        weights.add_linear(f"heads.{name}.out", n_out, HEAD, 3, 3)
    weights["heads.heatmap.out.bias"] -= np.float32(2.19)
    weights["heads.size.out.bias"] += np.array([0.6, 1.4, 0.4], np.float32)
    return Model("bev", weights)
