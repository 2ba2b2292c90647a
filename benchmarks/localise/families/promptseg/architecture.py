"""Promptable segmentation in NumPy: sizes, knobs, weights, coordinates and batch.

In the manner of Segment Anything (https://arxiv.org/abs/2304.02643). An image has PROMPTS prompts;
COUNTS of them are real, the others are padding. A prompt has up to POINTS points with labels 1
(foreground), 0 (background) or -1 (padding), and may have a box and a coarse mask.

The image encoder cuts patches, adds positions (1, *GRID, DIM) and has blocks with the norms first.
A block attends in windows of WINDOW x WINDOW cells, whose missing rows are zeros behind the norm,
or to all cells where its entry of WINDOWS is 0. Scores are

    q * k / sqrt(HEAD_DIM) + q * rows[i - i' + n - 1] + q * columns[j - j' + m - 1]

for a query at (i, j) and a key at (i', j') of n x m cells. The neck has two convolutions, each with
a layer norm of the channels behind it.

A point (x, y) in pixels has sin and cos of 2 * pi * (2 * (x + 0.5, y + 0.5) / (WIDTH, HEIGHT) - 1)
times the Gaussian matrix, which is fixed, plus the row of its label. Corners of boxes are points
with rows 2 and 3. Padding, and corners where there is no box, have a vector of their own. A mask is
made smaller by two convolutions with norm and GELU, and a third one; where there is none, it is a
vector. It is added to the image.

The decoder has a token for the score, MASKS tokens for masks, and those of the prompt. A layer has

    tokens attend to each other   in the first layer without positions, and in place of the tokens
    tokens attend to the image    INTERNAL wide
    mlp of the tokens             with ReLU
    the image attends to tokens   INTERNAL wide

each with a norm behind the sum. Positions, for tokens their first values, are added to queries and
keys each time. Tokens attend to the image once more. Each mask token passes an MLP of its own; the
result is multiplied with the image, which two transposed convolutions have made larger. A further
MLP predicts the IoU of all masks.

The loss of a mask is FOCAL_WEIGHT * focal loss (ALPHA, GAMMA), mean over pixels, plus

    dice    1 - (2 * sum of p * t + SMOOTHING) / (sum of p + sum of t + SMOOTHING)

Prompts of one point without a box are ambiguous: what counts is the mask from 1 to 3 with the
smallest loss. Other prompts have mask 0. The IoU of this mask's probabilities is measured, without
a gradient; SCORE_WEIGHT * squared error of its prediction is added. The loss is the mean over real
prompts.

Weights are float32, linear (out, in), with a bias where it is said:

    encoder.patch                              convolution with bias
    encoder.position                           (1, *GRID, DIM)
    encoder.N.norm1, qkv, proj, norm2, up, down    with bias
    encoder.N.rows, columns                    (2 * n - 1, HEAD_DIM)
    neck.conv1, norm1, conv2, norm2            norms with bias
    prompts.gaussian                           (2, EMBED // 2)
    prompts.points                             (4, EMBED): background, foreground, first and second
                                               corner
    prompts.not_a_point, no_mask               (1, EMBED)
    prompts.mask1, mask_norm1, mask2, mask_norm2, mask3    with bias
    decoder.score_token, mask_tokens           (1, EMBED) and (MASKS, EMBED)
    decoder.N.self, to_image, to_tokens, with .q, .k, .v, .out    with bias, as decoder.final
    decoder.N.norm1, norm2, up, down, norm3, norm4, decoder.final_norm    with bias
    decoder.up1, up_norm, up2                  transposed convolutions (in, out, 2, 2), with bias
    decoder.hyper.M.0, 1, 2                    with bias, as decoder.score.0, 1, 2
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BATCH, PROMPTS, POINTS = 2, 4, 3
COUNTS = (4, 3)  #: real prompts of images
HEIGHT, WIDTH, COLORS = 48, 64, 3
PATCH, WINDOW = 8, 4
GRID = (HEIGHT // PATCH, WIDTH // PATCH)  #: rows and columns
CELLS = GRID[0] * GRID[1]
WINDOWS = (WINDOW, 0)  #: of blocks; 0 attends to all cells
PADDED_ROWS = GRID[0] + -GRID[0] % WINDOW  #: the columns are whole windows
DIM, HEADS, HIDDEN = 24, 3, 40
HEAD_DIM = DIM // HEADS
EMBED, DECODER_HEADS, INTERNAL, DECODER_HIDDEN = 32, 4, 16, 48
DECODER_LAYERS = 2
UP_CHANNELS = (8, 4)
MASK_CHANNELS = (4, 12)
MASKS, SCORE_HIDDEN = 4, 24
MASK_SIZE = (HEIGHT // 2, WIDTH // 2)
BACKGROUND, FOREGROUND, PADDING = 0, 1, -1  #: labels of points
EPS, DECODER_EPS = 1e-6, 1e-5
FOCAL_WEIGHT, ALPHA, GAMMA = 20.0, 0.25, 2.0
SMOOTHING = 1.0
SCORE_WEIGHT = 1.0
SEED = 2855  #: all of masks 1 to 3 are the best one of a prompt

#: Of real prompts: labels of points, whether there is a box, and whether there is a mask.
_KINDS = (
    (((1,), False, False), ((1, 1), True, False), ((1, 0, 1), False, True), ((1,), False, False)),
    (((), True, False), ((1,), False, False), ((1, 0), True, True)),
)


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): norms, softmax and losses in plain
    #: arithmetic, convolutions without overlap as products, windows by an index; 'fused'
    #: (PyTorch): other names, built-in attention, hypernetworks in one product, losses by
    #: logsigmoid
    variant: str = ""
    are_windows_reshaped: bool = False  #: without a transposition; MindSpore only
    are_rows_first: bool = False  #: in coordinates of cells; MindSpore only
    is_dice_squared: bool = False  #: p * p + t * t below; MindSpore only
    is_measured_attached: bool = False  #: the measured IoU has a gradient; MindSpore only
    is_scale_of_width: bool = False  #: that of EMBED where it is INTERNAL; PyTorch only
    are_images_tiled: bool = False  #: 0 1 0 1, not 0 0 1 1; PyTorch only
    is_padding_located: bool = False  #: padding has the features of its place; PyTorch only
    is_best_by_score: bool = False  #: by the predicted IoU; PyTorch only
    is_variance_constant: bool = False  #: in the gradient of norms of channels; PyTorch only
    are_sizes_given: bool = False  #: boxes as (x, y, width, height)

    def coordinates(self) -> np.ndarray:
        """Return x and y of centers of cells, from 0 to 1, float32 (*GRID, 2)."""
        rows, columns = ((np.arange(n) + 0.5) / n for n in GRID)
        order = "yx" if self.are_rows_first else "xy"
        axes = dict(zip("yx", np.meshgrid(rows, columns, indexing="ij"), strict=True))
        return np.stack([axes[name] for name in order], axis=-1).astype(np.float32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return images, points, labels, boxes, has_box, masks, has_mask, targets, is_prompt.

        Images are float32 (BATCH, COLORS, HEIGHT, WIDTH). Points are float32 (BATCH, PROMPTS,
        POINTS, 2), with labels int32 (BATCH, PROMPTS, POINTS). Boxes are float32 (BATCH, PROMPTS,
        4), masks and targets float32 (BATCH, PROMPTS, *MASK_SIZE). What tells whether there is a
        box, a mask or a prompt is float32 (BATCH, PROMPTS).
        """
        rng = np.random.default_rng(SEED + 1)
        images = rng.normal(0, 0.4, (BATCH, COLORS, HEIGHT, WIDTH))
        points = np.zeros((BATCH, PROMPTS, POINTS, 2))
        labels = np.full((BATCH, PROMPTS, POINTS), PADDING, np.int32)
        boxes = np.zeros((BATCH, PROMPTS, 4))
        masks, targets = (np.zeros((BATCH, PROMPTS, *MASK_SIZE)) for _ in range(2))
        has_box, has_mask, is_prompt = (np.zeros((BATCH, PROMPTS), np.float32) for _ in range(3))
        for image, kinds in enumerate(_KINDS):
            for prompt, (kinds_of_points, is_boxed, is_masked) in enumerate(kinds):
                place = image, prompt
                target = _draw_ellipse(rng)
                pixels = np.kron(target, np.ones((2, 2)))
                images[image] += rng.normal(0, 1.2, (COLORS, 1, 1)) * pixels
                for n, label in enumerate(kinds_of_points):
                    rows, columns = np.nonzero(pixels == label)
                    chosen = rng.integers(len(rows))
                    points[place][n] = columns[chosen], rows[chosen]
                    labels[place][n] = label
                if is_boxed:
                    boxes[place] = self._find_box(pixels)
                if is_masked:
                    masks[place] = 6 * target - 3 + rng.normal(0, 1.5, MASK_SIZE)
                has_box[place], has_mask[place], is_prompt[place] = is_boxed, is_masked, 1
                targets[place] = target
        return (
            images.astype(np.float32),
            points.astype(np.float32),
            labels,
            boxes.astype(np.float32),
            has_box,
            masks.astype(np.float32),
            has_mask,
            targets.astype(np.float32),
            is_prompt,
        )

    def _find_box(self, pixels: np.ndarray) -> tuple[int, int, int, int]:
        rows, columns = np.nonzero(pixels)
        x, y = int(columns.min()), int(rows.min())
        x_end, y_end = int(columns.max()), int(rows.max())
        if self.are_sizes_given:
            return x, y, x_end - x, y_end - y
        return x, y, x_end, y_end


def _draw_ellipse(rng: np.random.Generator) -> np.ndarray:
    """Return ones inside of an ellipse, (*MASK_SIZE,)."""
    height, width = MASK_SIZE
    row, column = rng.uniform(6, height - 6), rng.uniform(8, width - 8)
    radius, other_radius = rng.uniform(3, 7, 2)
    rows, columns = np.arange(height)[:, None], np.arange(width)
    distance = ((rows - row) / radius) ** 2 + ((columns - column) / other_radius) ** 2
    return (distance < 1).astype(np.float64)


def relative_index(length: int) -> np.ndarray:
    """Return the rows of a table for queries and keys, int32 (length, length)."""
    positions = np.arange(length, dtype=np.int32)
    return positions[:, None] - positions + length - 1


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_linear("encoder.patch", DIM, COLORS, PATCH, PATCH)
    weights["encoder.position"] = _draw(weights, (1, *GRID, DIM), 0.4)
    for n, window in enumerate(WINDOWS):
        path = f"encoder.{n}"
        weights.add_norm(f"{path}.norm1", DIM)
        weights.add_linear(f"{path}.qkv", 3 * DIM, DIM)
        sizes = (window, window) if window else GRID
        for name, length in zip(("rows", "columns"), sizes, strict=True):
            weights[f"{path}.{name}"] = _draw(weights, (2 * length - 1, HEAD_DIM), 0.3)
        weights.add_linear(f"{path}.proj", DIM, DIM)
        weights.add_norm(f"{path}.norm2", DIM)
        _add_mlp(weights, path, DIM, HIDDEN)
    weights.add_matrix("neck.conv1", EMBED, DIM, 1, 1)
    weights.add_norm("neck.norm1", EMBED)
    weights.add_matrix("neck.conv2", EMBED, EMBED, 3, 3)
    weights.add_norm("neck.norm2", EMBED)

    weights["prompts.gaussian"] = _draw(weights, (2, EMBED // 2), 1.0)
    weights["prompts.points"] = _draw(weights, (4, EMBED), 0.7)
    for name in ("not_a_point", "no_mask"):
        weights[f"prompts.{name}"] = _draw(weights, (1, EMBED), 0.7)
    first, second = MASK_CHANNELS
    weights.add_linear("prompts.mask1", first, 1, 2, 2)
    weights.add_norm("prompts.mask_norm1", first)
    weights.add_linear("prompts.mask2", second, first, 2, 2)
    weights.add_norm("prompts.mask_norm2", second)
    weights.add_linear("prompts.mask3", EMBED, second, 1, 1)

    weights["decoder.score_token"] = _draw(weights, (1, EMBED), 0.7)
    weights["decoder.mask_tokens"] = _draw(weights, (MASKS, EMBED), 0.7)
    for n in range(DECODER_LAYERS):
        path = f"decoder.{n}"
        _add_attention(weights, f"{path}.self", EMBED)
        _add_attention(weights, f"{path}.to_image", INTERNAL)
        _add_mlp(weights, path, EMBED, DECODER_HIDDEN)
        _add_attention(weights, f"{path}.to_tokens", INTERNAL)
        for number in range(1, 5):
            weights.add_norm(f"{path}.norm{number}", EMBED)
    _add_attention(weights, "decoder.final", INTERNAL)
    weights.add_norm("decoder.final_norm", EMBED)
    for name, n_in, n_out in zip(("up1", "up2"), (EMBED, UP_CHANNELS[0]), UP_CHANNELS, strict=True):
        weights[f"decoder.{name}.weight"] = _draw(weights, (n_in, n_out, 2, 2), n_in**-0.5)
        weights.add_bias(f"decoder.{name}", n_out)
    weights.add_norm("decoder.up_norm", UP_CHANNELS[0])
    for mask in range(MASKS):
        for n, n_out in enumerate((EMBED, EMBED, UP_CHANNELS[1])):
            weights.add_linear(f"decoder.hyper.{mask}.{n}", n_out, EMBED)
            weights[f"decoder.hyper.{mask}.{n}.weight"] *= np.float32(1.6)
    for n, (n_in, n_out) in enumerate(
        ((EMBED, SCORE_HIDDEN), (SCORE_HIDDEN, SCORE_HIDDEN), (SCORE_HIDDEN, MASKS))
    ):
        weights.add_linear(f"decoder.score.{n}", n_out, n_in)
    return Model("promptseg", weights)


def _draw(weights: Weights, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    return (deviation * weights.rng.standard_normal(shape)).astype(np.float32)


def _add_mlp(weights: Weights, path: str, dim: int, hidden: int) -> None:
    weights.add_linear(f"{path}.up", hidden, dim)
    weights.add_linear(f"{path}.down", dim, hidden)


def _add_attention(weights: Weights, path: str, internal: int) -> None:
    for name in ("q", "k", "v"):
        weights.add_linear(f"{path}.{name}", internal, EMBED)
    weights.add_linear(f"{path}.out", EMBED, internal)
