"""An Evoformer (https://www.nature.com/articles/s41586-021-03819-2, supplementary methods 1.6) in
NumPy: sizes, knobs, weights and batch. Algorithms are those of the supplement.

An alignment (ROWS, RESIDUES, ALIGNMENT) and pairs of residues (RESIDUES, RESIDUES, PAIR) are
embedded (algorithm 3). Pairs add a one-hot vector of their offset, clipped at MAX_OFFSET (algorithm
4). A block has attention along the rows with a bias of the pairs, gated (7), attention along the
columns (8), a transition (9), the outer product mean (10), two multiplications and two attentions
of triangles (11 to 14) and a transition of the pairs (15). The loss is DISTOGRAM_WEIGHT times the
cross entropy of the symmetrised distogram (1.9.8) plus MASKED_WEIGHT times that of the masked
residues of the alignment (1.9.9). There is no dropout. Weights, linear ones with bias if not said:

    embedding.alignment, .target, .left, .right, .offset
    blocks.N.row, .column     norm; q, k, v (no bias), gate, o; row.pair_norm, row.bias (no bias)
    blocks.N.alignment_transition, .pair_transition       norm, up, down
    blocks.N.outer            norm, left, right, out (PAIR, OUTER * OUTER)
    blocks.N.outgoing, .incoming    norm, left, left_gate, right, right_gate, norm_out, out, gate
    blocks.N.starting, .ending      norm; q, k, v, bias (no bias), gate, o
    distogram (BINS, PAIR), masked (TOKENS, ALIGNMENT)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

ROWS, RESIDUES, BLOCKS = 6, 10, 2
ALIGNMENT, HEADS, HEAD_DIM = 24, 4, 6
PAIR, PAIR_HEADS, PAIR_HEAD_DIM = 20, 2, 10
TRIANGLE, OUTER, FACTOR = 14, 5, 2
TYPES, TOKENS, MASK_TOKEN = 21, 23, 22  #: residues; the same with gap and mask
MAX_OFFSET = 3
OFFSETS = 2 * MAX_OFFSET + 1
BINS, FIRST_BREAK, LAST_BREAK = 12, 2.3125, 21.6875  #: in angstrom
DISTOGRAM_WEIGHT, MASKED_WEIGHT = 0.3, 2.0
EPS, OUTER_EPS, LOSS_EPS = 1e-5, 1e-3, 1e-6
MASKED = 1e9  #: is taken from scores of masked keys
FIRST_CHAIN = 6  #: residues before the gap in the numbers
PADDING = 2  #: residues at the end
SEED = 271


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault, of all blocks."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'fused' (PyTorch): the framework's attention, one projection
    #: for both sides of a triangle, products by matmul; 'written' (MindSpore): norms and softmax
    #: in plain arithmetic, triangles by sums of broadcast products
    variant: str = ""
    is_offset_reversed: bool = False  #: offset of a pair is that of its second residue
    is_outer_mean_plain: bool = False  #: outer products divided by all rows, not those of the mask
    is_bias_scaled: bool = False  #: the bias of the scores is multiplied by their scale, too
    is_distogram_symmetric: bool = True
    is_incoming_outgoing: bool = False  #: both multiplications of triangles are outgoing
    is_triangle_gate_swapped: bool = False  #: the sigmoid is on the projection, not on its gate
    are_gaps_masked: bool = True  #: in the attention along columns, else only residues are
    are_breaks_squared: bool = True  #: as the distances are with which they are compared
    is_bias_stopped: bool = False  #: no gradient through the bias of the pairs along the rows
    outer_gradient: float = 1.0  #: the gradient of the outer product mean is multiplied by it
    is_triangle_gate_raw: bool = False  #: output gates of multiplications read pairs without norm
    are_offsets_clipped: bool = True  #: else pairs of a larger offset have no one in their vector
    is_incoming_gradient_exchanged: bool = False  #: that of a pair is the exchanged pair's
    is_outer_first: bool = False  #: a block begins with the outer product mean
    coordinate_factor: float = 1.0  #: of the coordinates in the batch
    is_ending_bias_kept: bool = False  #: its pairs are not exchanged; MindSpore only
    are_all_tokens_predicted: bool = False  #: the masked loss is of the alignment; PyTorch only
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(learning_rate=5e-3, eps=1e-6, weight_decay=0.1, clip=0.1)
    )

    def breaks(self) -> np.ndarray:
        """Return the limits of the bins, float32 (BINS - 1,), squared."""
        breaks = np.linspace(FIRST_BREAK, LAST_BREAK, BINS - 1)
        return (breaks**2 if self.are_breaks_squared else breaks).astype(np.float32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return tokens of the alignment, int32 (ROWS, RESIDUES), the true ones, types and numbers
        of residues, int32 (RESIDUES,), coordinates, float32 (RESIDUES, 3), and masks, float32, of
        residues (RESIDUES,), and of alignment and masked tokens (ROWS, RESIDUES).
        """
        rng = np.random.default_rng(SEED + 1)
        labels = rng.integers(0, TOKENS - 1, (ROWS, RESIDUES)).astype(np.int32)
        types = rng.integers(0, TYPES, RESIDUES).astype(np.int32)
        numbers = np.arange(RESIDUES) + 30 * (np.arange(RESIDUES) >= FIRST_CHAIN)
        steps = rng.standard_normal((RESIDUES, 3))
        steps *= 3.8 / np.linalg.norm(steps, axis=1, keepdims=True)
        coordinates = (self.coordinate_factor * np.cumsum(steps, axis=0)).astype(np.float32)
        residue_mask = (np.arange(RESIDUES) < RESIDUES - PADDING).astype(np.float32)
        alignment_mask = (rng.random((ROWS, RESIDUES)) < 0.7).astype(np.float32) * residue_mask
        alignment_mask[0] = residue_mask
        token_mask = (rng.random((ROWS, RESIDUES)) < 0.3).astype(np.float32) * alignment_mask
        tokens = np.where(token_mask > 0, MASK_TOKEN, labels).astype(np.int32)
        return (
            tokens,
            labels,
            types,
            numbers.astype(np.int32),
            coordinates,
            residue_mask,
            alignment_mask,
            token_mask,
        )


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_attention(path: str, width: int, heads: int, size: int) -> None:
        weights.add_norm(f"{path}.norm", width)
        for name in "qkv":
            weights.add_matrix(f"{path}.{name}", heads * size, width)
        weights.add_linear(f"{path}.gate", heads * size, width)
        weights.add_linear(f"{path}.o", width, heads * size)

    def add_transition(path: str, width: int) -> None:
        weights.add_norm(f"{path}.norm", width)
        weights.add_linear(f"{path}.up", FACTOR * width, width)
        weights.add_linear(f"{path}.down", width, FACTOR * width)

    weights.add_linear("embedding.alignment", ALIGNMENT, TOKENS)
    weights.add_linear("embedding.target", ALIGNMENT, TYPES)
    weights.add_linear("embedding.left", PAIR, TYPES)
    weights.add_linear("embedding.right", PAIR, TYPES)
    weights.add_linear("embedding.offset", PAIR, OFFSETS)
    for n in range(BLOCKS):
        path = f"blocks.{n}"
        add_attention(f"{path}.row", ALIGNMENT, HEADS, HEAD_DIM)
        weights.add_norm(f"{path}.row.pair_norm", PAIR)
        weights.add_matrix(f"{path}.row.bias", HEADS, PAIR)
        add_attention(f"{path}.column", ALIGNMENT, HEADS, HEAD_DIM)
        add_transition(f"{path}.alignment_transition", ALIGNMENT)
        weights.add_norm(f"{path}.outer.norm", ALIGNMENT)
        weights.add_linear(f"{path}.outer.left", OUTER, ALIGNMENT)
        weights.add_linear(f"{path}.outer.right", OUTER, ALIGNMENT)
        weights.add_linear(f"{path}.outer.out", PAIR, OUTER * OUTER)
        for side in ("outgoing", "incoming"):
            weights.add_norm(f"{path}.{side}.norm", PAIR)
            for name in ("left", "left_gate", "right", "right_gate"):
                weights.add_linear(f"{path}.{side}.{name}", TRIANGLE, PAIR)
            weights.add_norm(f"{path}.{side}.norm_out", TRIANGLE)
            weights.add_linear(f"{path}.{side}.out", PAIR, TRIANGLE)
            weights.add_linear(f"{path}.{side}.gate", PAIR, PAIR)
        for side in ("starting", "ending"):
            add_attention(f"{path}.{side}", PAIR, PAIR_HEADS, PAIR_HEAD_DIM)
            weights.add_matrix(f"{path}.{side}.bias", PAIR_HEADS, PAIR)
        add_transition(f"{path}.pair_transition", PAIR)
    weights.add_linear("distogram", BINS, PAIR)
    weights.add_linear("masked", TOKENS, ALIGNMENT)
    return Model("evoformer", weights)
