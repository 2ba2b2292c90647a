"""An object-centric video model in NumPy: sizes, knobs, weights, coordinates and batch.

In the manner of slot attention (https://arxiv.org/abs/2006.15055) and SAVi, its model for video
(https://arxiv.org/abs/2111.12594). A video has FRAMES frames with at most OBJECTS objects; it is
padded with objects of class 0 with boxes of zeros, at slot 0.

The encoder has three convolutions with ReLU; the first one has the stride 2. Coordinates (y, x,
1 - y, 1 - x) of the cells of its grid, from 0 to 1, pass a linear layer and are added. Features of
all cells are normed and pass a layer with ReLU and a linear one.

Slots begin as mean + exp(log_deviation) * noise, with noise that is given. An iteration is

    scores      key(feature) * query(norm(slot)) / sqrt(SLOT), features being normed, too
    attention   softmax of scores over the SLOTS, plus TINY
    updates     mean of values of the features, weighted by the attention, of each slot
    slot        GRU cell of the update with the slot as its state, then slot + mlp(norm(slot))

The first frame has ITERATIONS[0] of them and the second one ITERATIONS[1]. Slots of the second
frame begin with those of the first one behind the predictor, a transformer layer between slots with
its norms behind the sums.

The decoder repeats a slot on a grid of DECODER_GRID, adds the linear layer of coordinates, doubles
the grid by two transposed convolutions with ReLU, and ends in a convolution to colors and one alpha
logit. An image is the sum of colors with the softmax of alpha logits over slots as weights. A slot
has a box (x0, y0, x1, y1), a sigmoid behind a layer with ReLU and a linear one, and logits of
CLASSES and of nothing, the last class. Objects are matched with slots by an assignment that is
given. The loss is the sum of

    reconstruction   mean squared error of all frames
    masks            MASK_WEIGHT * cross entropy of alpha logits at the last frame with the slot of
                     a pixel's object, mean over pixels with an object
    boxes            BOX_WEIGHT * Huber loss (DELTA) of boxes, summed over objects without padding,
                     coordinates and frames, divided by FRAMES and the number of objects
    classes          CLASS_WEIGHT * cross entropy of all slots in all frames, mean with the weight
                     NOTHING_WEIGHT of nothing
    entropy          ENTROPY_WEIGHT * mean entropy of the last attention of each frame over slots

Weights are float32, linear (out, in), with a bias where it is said:

    encoder.0, 1, 2                       convolutions with bias
    encoder.position, norm, up, down      all with bias
    slots.mean, log_deviation             (1, 1, SLOT)
    attention.input_norm, slot_norm, mlp_norm, up, down    all with bias
    attention.q, k, v
    attention.gru                         weight_ih, weight_hh (3 * SLOT, SLOT), bias_ih, bias_hh
                                          (3 * SLOT): reset, update and new
    predictor.q, k, v, out, attention_norm, up, down, mlp_norm    all with bias
    decoder.position                      with bias
    decoder.0, 1                          transposed convolutions (in, out, UP_KERNEL, UP_KERNEL)
    decoder.2                             convolution, all with bias
    box.hidden, box.out, class            with bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BATCH, FRAMES, OBJECTS, SLOTS = 3, 2, 4, 5
COUNTS = (3, 4, 2)  #: objects of videos
HEIGHT, WIDTH, COLORS = 12, 16, 3
KERNEL, LAST_KERNEL, UP_KERNEL = 5, 3, 4
GRID, DECODER_GRID = (6, 8), (3, 4)  #: rows and columns
CELLS = GRID[0] * GRID[1]
CHANNELS, SLOT, HEADS, HIDDEN = 16, 20, 4, 28
HEAD_DIM = SLOT // HEADS
ITERATIONS = (3, 2)
CLASSES = 3
IGNORE = -1  #: object, and slot, of pixels without an object
EPS, TINY = 1e-5, 1e-8
DELTA = 0.1
MASK_WEIGHT, BOX_WEIGHT, CLASS_WEIGHT, ENTROPY_WEIGHT = 0.4, 5.0, 0.5, 0.2
NOTHING_WEIGHT = 0.1
SEED = 2006


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): norms, softmax, cell and losses in plain
    #: arithmetic, weights joined, attention (slots, cells); 'fused' (PyTorch): other names, keys
    #: and values in one layer, a built-in transformer layer, frames decoded one by one
    variant: str = ""
    is_sum_over_slots: bool = False  #: of what divides the attention; MindSpore only
    is_smooth_l1: bool = False  #: the loss of boxes; MindSpore only
    is_mean_gradient_plain: bool = False  #: sums of the attention are constants; MindSpore only
    is_cell_exchanged: bool = False  #: slots are its input; PyTorch only
    are_ignored_counted: bool = False  #: in the loss of masks; PyTorch only
    are_frames_first: bool = False  #: features are taken for (frames, batch); PyTorch only
    are_slots_detached: bool = False  #: from one frame to the next; PyTorch only
    are_coordinates_centered: bool = False  #: those of centers of cells
    is_nothing_first: bool = False  #: the first class has NOTHING_WEIGHT
    are_boxes_rows_first: bool = False  #: given as (y0, x0, y1, x1)

    def coordinates(self, grid: tuple[int, int]) -> np.ndarray:
        """Return y, x, 1 - y and 1 - x of cells, float32 (*grid, 4)."""
        if self.are_coordinates_centered:
            axes = [(np.arange(n) + 0.5) / n for n in grid]
        else:
            axes = [np.linspace(0, 1, n) for n in grid]
        positions = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        return np.concatenate([positions, 1 - positions], axis=-1).astype(np.float32)

    def class_weights(self) -> np.ndarray:
        """Return the weights of classes and nothing, float32 (CLASSES + 1,)."""
        weights = np.ones(CLASSES + 1, np.float32)
        weights[0 if self.is_nothing_first else CLASSES] = NOTHING_WEIGHT
        return weights

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return images, noise, objects of pixels, boxes, classes, assignments and counts.

        Images are float32 (BATCH, FRAMES, COLORS, HEIGHT, WIDTH) from -1 to 1, noise float32
        (BATCH, SLOTS, SLOT). Objects of the last frame's pixels are int32 (BATCH, HEIGHT, WIDTH),
        or IGNORE. Boxes are float32 (BATCH, FRAMES, OBJECTS, 4); classes and assignments, the slots
        of objects, int32 (BATCH, OBJECTS). Counts are numbers of objects, int32 (BATCH,).
        """
        rng = np.random.default_rng(SEED + 1)
        images = rng.uniform(-0.3, 0.3, (BATCH, FRAMES, COLORS, HEIGHT, WIDTH))
        noise = rng.standard_normal((BATCH, SLOTS, SLOT))
        objects = np.full((BATCH, HEIGHT, WIDTH), IGNORE, np.int32)
        boxes = np.zeros((BATCH, FRAMES, OBJECTS, 4))
        classes, assignments = (np.zeros((BATCH, OBJECTS), np.int32) for _ in range(2))
        for n, count in enumerate(COUNTS):
            classes[n, :count] = rng.integers(0, CLASSES, count)
            assignments[n, :count] = rng.permutation(SLOTS)[:count]
            for number in range(count):
                size = rng.integers(3, 7, 2)
                top_left = rng.integers(0, (HEIGHT, WIDTH) - size)
                color = rng.uniform(-0.9, 0.9, (COLORS, 1, 1))
                for frame in range(FRAMES):
                    bottom_right = top_left + size
                    rows, columns = map(slice, top_left, bottom_right)
                    texture = rng.uniform(-0.1, 0.1, (COLORS, *size))
                    images[n, frame, :, rows, columns] = color + texture
                    corners = [top_left / (HEIGHT, WIDTH), bottom_right / (HEIGHT, WIDTH)]
                    order = 1 if self.are_boxes_rows_first else -1
                    boxes[n, frame, number] = np.concatenate([c[::order] for c in corners])
                    if frame == FRAMES - 1:
                        objects[n, rows, columns] = number
                    steps = rng.integers(-2, 3, 2)
                    top_left = np.clip(top_left + steps, 0, (HEIGHT, WIDTH) - size)
        return (
            images.astype(np.float32),
            noise.astype(np.float32),
            objects,
            boxes.astype(np.float32),
            classes,
            assignments,
            np.array(COUNTS, np.int32),
        )


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_linear("encoder.0", CHANNELS, COLORS, KERNEL, KERNEL)
    weights.add_linear("encoder.1", CHANNELS, CHANNELS, KERNEL, KERNEL)
    weights.add_linear("encoder.2", CHANNELS, CHANNELS, LAST_KERNEL, LAST_KERNEL)
    for n in range(3):
        weights[f"encoder.{n}.weight"] *= np.float32(1.5)
    weights.add_linear("encoder.position", CHANNELS, 4)
    weights.add_norm("encoder.norm", CHANNELS)
    weights.add_linear("encoder.up", HIDDEN, CHANNELS)
    weights.add_linear("encoder.down", CHANNELS, HIDDEN)

    weights["slots.mean"] = (0.3 * weights.rng.standard_normal((1, 1, SLOT))).astype(np.float32)
    log_deviation = -0.5 + 0.2 * weights.rng.standard_normal((1, 1, SLOT))
    weights["slots.log_deviation"] = log_deviation.astype(np.float32)

    weights.add_norm("attention.input_norm", CHANNELS)
    weights.add_norm("attention.slot_norm", SLOT)
    weights.add_norm("attention.mlp_norm", SLOT)
    weights.add_matrix("attention.q", SLOT, SLOT)
    weights["attention.q.weight"] *= np.float32(1.5)
    for name in ("k", "v"):
        weights.add_matrix(f"attention.{name}", SLOT, CHANNELS)
    for name in ("ih", "hh"):
        values = weights.rng.standard_normal((3 * SLOT, SLOT)) / np.sqrt(SLOT)
        weights[f"attention.gru.weight_{name}"] = values.astype(np.float32)
        biases = 0.2 * weights.rng.standard_normal(3 * SLOT)
        weights[f"attention.gru.bias_{name}"] = biases.astype(np.float32)
    weights.add_linear("attention.up", HIDDEN, SLOT)
    weights.add_linear("attention.down", SLOT, HIDDEN)

    for name in ("q", "k", "v", "out"):
        weights.add_linear(f"predictor.{name}", SLOT, SLOT)
    weights.add_norm("predictor.attention_norm", SLOT)
    weights.add_linear("predictor.up", HIDDEN, SLOT)
    weights.add_linear("predictor.down", SLOT, HIDDEN)
    weights.add_norm("predictor.mlp_norm", SLOT)

    weights.add_linear("decoder.position", SLOT, 4)
    for n, channels in enumerate((SLOT, CHANNELS)):
        values = weights.rng.standard_normal((channels, CHANNELS, UP_KERNEL, UP_KERNEL))
        values *= 2.5 / np.sqrt(channels * UP_KERNEL**2)
        weights[f"decoder.{n}.weight"] = values.astype(np.float32)
        weights.add_bias(f"decoder.{n}", CHANNELS)
    weights.add_linear("decoder.2", COLORS + 1, CHANNELS, LAST_KERNEL, LAST_KERNEL)

    weights.add_linear("box.hidden", HIDDEN, SLOT)
    weights.add_linear("box.out", 4, HIDDEN)
    weights.add_linear("class", CLASSES + 1, SLOT)
    return Model("slots", weights)
