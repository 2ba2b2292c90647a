"""A Swin transformer (https://arxiv.org/abs/2103.14030, section 3) in NumPy: sizes, knobs, weights,
tables and batch.

Patches are embedded by a convolution and a norm. Each stage has one block whose windows begin at
the edge of the image, and one whose windows are shifted by half their size; between two stages,
four neighbors are merged into one token. Scores get a bias by relative position, from a table. Each
branch has a layer scale (https://arxiv.org/abs/2103.17239, section 2) and drop path
(https://arxiv.org/abs/1603.09382, section 3), whose masks are a part of the batch. Images and
smoothed labels are mixed with those of the reversed batch (https://arxiv.org/abs/1710.09412,
section 2). Weights:

    patch                         convolution of kernel and stride PATCH, with bias; patch.norm
    stages.S.blocks.N.: norm1, attention.{q,k,v,o},
                                  attention.table (2 * WINDOW - 1, 2 * WINDOW - 1, heads), gamma1,
                                  norm2, mlp.{up,down}, gamma2
    merging.norm (4 * channels), merging.reduction (2 * channels, 4 * channels), without bias
    norm, head
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, IMAGE, PATCH, CLASSES = 4, 32, 2, 10
CHANNELS, HEADS, BLOCKS, MLP_RATIO = (16, 32), (2, 4), 2, 3
STAGES = len(CHANNELS)
CELLS = tuple(IMAGE // PATCH // 2**stage for stage in range(STAGES))  #: tokens along an edge
WINDOW, SHIFT = 4, 2
TOKENS = WINDOW**2  #: of a window
MASKED = -100.0  #: added to scores of tokens that are no neighbors
EPS = 1e-5
KEEP = 0.8  #: probability that drop path keeps a branch
SMOOTHING, MIXED = 0.1, 0.7  #: share of the own image and label in mixup
TABLE_DIMENSIONS = 3
SEED = 131


@dataclass(frozen=True)
class TableOptimizer(Optimizer):
    """AdamW without decay of the tables of relative positions, as Swin's recipe has it."""

    learning_rate: float = 4e-3
    weight_decay: float = 0.05
    clip: float = 5.0
    are_tables_decayed: bool = False
    are_tables_updated: bool = True  #: else they are in no group

    def get_rate(self, n_dimensions: int) -> float:
        """Return the learning rate of a weight."""
        if n_dimensions == TABLE_DIMENSIONS and not self.are_tables_updated:
            return 0.0
        return super().get_rate(n_dimensions)

    def get_decay(self, n_dimensions: int) -> float:
        """Return the weight decay of a weight; only tables have three dimensions."""
        if n_dimensions == TABLE_DIMENSIONS and not self.are_tables_decayed:
            return 0.0
        return super().get_decay(n_dimensions)


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault, of all blocks."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'fused' (PyTorch): the framework's fused attention, with bias
    #: and mask as one tensor, windows by einsum, and its cross entropy; 'written' (MindSpore):
    #: layer norm in plain arithmetic, one projection for q, k and v, biases by one-hot vectors,
    #: the loss from log-probabilities
    variant: str = ""
    is_relation_reversed: bool = False  #: positions of keys less those of queries in the table
    is_bias_scaled: bool = False  #: the scale multiplies scores with their bias
    is_mask_of_images: bool = False  #: each mask is for BATCH windows in a row, not for every image
    is_shift_repeated: bool = False  #: tokens are shifted again, not back
    is_merged_by_row: bool = False  #: the right neighbor is second, the lower one third
    is_kept_scaled: bool = True  #: kept branches are divided by their probability
    drop_gradient: float = 1.0  #: the gradient of all branches is multiplied by it
    is_pooled_first: bool = False  #: mean of the tokens before the last norm
    are_others_smoothed: bool = False  #: the smoothed share goes to the other classes only
    are_tables_stopped: bool = False  #: no gradient to the tables of relative positions
    is_gelu_approximate: bool = False  #: the form with tanh
    is_scale_of_channels: bool = False  #: scores are scaled for all channels, not for a head's
    indexing: str = "ij"  #: of the grid of a window's positions; or 'xy'
    are_columns_masked: bool = True  #: the mask's regions differ by column, too, not only by row
    is_mask_shared: bool = False  #: both branches of a block are kept by the first one's mask
    are_labels_rolled: bool = False  #: labels are mixed with those of the batch rolled by one
    is_shift_gradient_repeated: bool = False  #: the gradient of shifted tokens is shifted, not back
    are_windows_moved: bool = True  #: axes of windows before those of their tokens; PyTorch only
    optimizer: Optimizer = field(default_factory=TableOptimizer)

    def relative_index(self) -> np.ndarray:
        """Return the rows of the flattened table, int32 (TOKENS, TOKENS), of queries and keys."""
        axes = np.meshgrid(np.arange(WINDOW), np.arange(WINDOW), indexing=self.indexing)
        positions = np.stack(axes).reshape(2, -1)
        distances = positions[:, :, None] - positions[:, None, :]
        if self.is_relation_reversed:
            distances = -distances
        rows, columns = distances + WINDOW - 1
        return (rows * (2 * WINDOW - 1) + columns).astype(np.int32)

    def mask(self, stage: int) -> np.ndarray:
        """Return what is added to the scores of shifted windows, float32 (windows, TOKENS, TOKENS).

        Tokens that the shift brought from the other edge attend only to each other.
        """
        cells = CELLS[stage]
        regions = np.zeros((cells, cells))
        edges = (slice(0, -WINDOW), slice(-WINDOW, -SHIFT), slice(-SHIFT, None))
        for row, rows in enumerate(edges):
            for column, columns in enumerate(edges):
                number = column if self.are_columns_masked else 0
                regions[rows, columns] = row * len(edges) + number
        n = cells // WINDOW
        windows = regions.reshape(n, WINDOW, n, WINDOW).swapaxes(1, 2).reshape(n * n, TOKENS)
        is_other = windows[:, :, None] != windows[:, None, :]
        return np.where(is_other, MASKED, 0.0).astype(np.float32)

    def smoothed_values(self) -> tuple[float, float]:
        """Return the targets of the label and of each other class."""
        if self.are_others_smoothed:
            return 1 - SMOOTHING, SMOOTHING / (CLASSES - 1)
        share = SMOOTHING / CLASSES
        return 1 - SMOOTHING + share, share

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return images, float32 (BATCH, 3, IMAGE, IMAGE), labels, int32 (BATCH,), and which
        branches are kept, float32 (STAGES * BLOCKS, 2, BATCH).
        """
        rng = np.random.default_rng(SEED + 1)
        images = rng.standard_normal((BATCH, 3, IMAGE, IMAGE)).astype(np.float32)
        labels = rng.integers(0, CLASSES, BATCH).astype(np.int32)
        is_kept = rng.random((STAGES * BLOCKS, 2, BATCH)) < KEEP
        return images, labels, is_kept.astype(np.float32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    rng = weights.rng
    weights.add_linear("patch", CHANNELS[0], 3, PATCH, PATCH)
    weights.add_norm("patch.norm", CHANNELS[0])
    for stage, (channels, heads) in enumerate(zip(CHANNELS, HEADS, strict=True)):
        if stage:
            weights.add_norm("merging.norm", 2 * channels)
            weights.add_matrix("merging.reduction", channels, 2 * channels)
        for n in range(BLOCKS):
            path = f"stages.{stage}.blocks.{n}"
            weights.add_norm(f"{path}.norm1", channels)
            for projection in "qkvo":
                weights.add_linear(f"{path}.attention.{projection}", channels, channels)
            table = 0.6 * rng.standard_normal((2 * WINDOW - 1, 2 * WINDOW - 1, heads))
            weights[f"{path}.attention.table"] = table.astype(np.float32)
            weights.add_norm(f"{path}.norm2", channels)
            weights.add_linear(f"{path}.mlp.up", MLP_RATIO * channels, channels)
            weights.add_linear(f"{path}.mlp.down", channels, MLP_RATIO * channels)
            for name in ("gamma1", "gamma2"):
                gamma = rng.uniform(0.4, 0.9, channels)
                weights[f"{path}.{name}"] = gamma.astype(np.float32)
    weights.add_norm("norm", CHANNELS[-1])
    weights.add_linear("head", CLASSES, CHANNELS[-1])
    return Model("swin", weights)
