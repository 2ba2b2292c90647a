"""A Perceiver in NumPy: sizes, knobs, weights, constant tables and batch.

Learned latents attend to an array, whose features are joined with Fourier features of their
positions (https://arxiv.org/abs/2103.03206, section 3.2); padding is masked. A block with the same
weights then runs REPEATS times over the latents. Its attention has relative positions with a bias
of contents and one of positions (https://arxiv.org/abs/1901.02860, section 3.3), in both
directions. Learned queries attend to the latents (https://arxiv.org/abs/2107.14795), and are added
to what they read. All feed-forwards are GEGLUs (https://arxiv.org/abs/2002.05202). The loss is the
smoothed cross entropy of the queries' classes and the smooth L1 loss of their known values.
Weights, linear ones (out, in); projections to queries, keys, values and positions have no bias:

    latents (LATENTS, HIDDEN), queries (TARGETS, HIDDEN)
    {encoder,decoder}.: norm, input_norm, attention.{q,k,v,o}, mlp_norm, mlp.{value,gate,down}
    block.: norm, attention.{q,k,v,r,o}, mlp_norm, mlp.{value,gate,down}
            attention.{content_bias,position_bias} (HEADS, HEAD_DIM)
    norm, classes, values
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

LENGTHS = (14, 9, 11)  #: rows of each array that are no padding
BATCH, TOKENS, FEATURES = len(LENGTHS), max(LENGTHS), 6
BANDS, MAX_FREQUENCY = 5, 10.0  #: of the positions; frequencies end at half of it
CHANNELS = FEATURES + 2 * BANDS + 1
LATENTS, REPEATS = 7, 2
DISTANCES = 2 * LATENTS - 1
HIDDEN, HEADS, FFN = 16, 2, 28
HEAD_DIM = HIDDEN // HEADS
TARGETS, CLASSES, VALUES = 9, 11, 4
IGNORED = -100  #: label of a query without a class
BASE = 10000.0  #: of the sinusoids of distances
SMOOTHING = 0.1
BETA, VALUE_WEIGHT = 0.5, 0.5  #: of the smooth L1 loss
EPS = 1e-5
SEED = 227


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'fused' (PyTorch): one projection for keys and values, fused
    #: attention; 'named' (PyTorch): modules named as in another library, einsum, the shift as a
    #: gather, Huber loss; 'written' (MindSpore): norms, softmax, gelu and losses in plain
    #: arithmetic; 'joined' (MindSpore): cells of other names, joined projections, mint
    variant: str = ""
    are_bands_logarithmic: bool = False  #: frequencies are powers, not equally spaced
    are_distances_reversed: bool = False  #: the first row is that of the first later latent
    are_biases_scaled: bool = True  #: as the queries they are added to
    is_mask_late: bool = False  #: probabilities of padding become 0, behind the softmax
    input_eps: float = EPS  #: of the norm of the array
    #: 'smooth': squares are divided by BETA; 'huber': lines are multiplied by it
    value_loss: str = "smooth"
    are_rows_counted: bool = False  #: the value loss is divided by the known rows, not numbers
    #: keys of the distances, the same in each run of the block, have their gradient from the first
    are_keys_cached: bool = False
    latent_gradient: float = 1.0  #: of the learned latents is multiplied by it
    are_positions_first: bool = False  #: before their sines and cosines; MindSpore only
    are_queries_added: bool = True  #: to what the decoder's attention reads; MindSpore only
    #: masks are repeated for heads outside of the batch, which are inside of it; PyTorch only
    are_heads_outside: bool = False
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(learning_rate=2e-3, weight_decay=0.05, clip=0.5)
    )

    def frequencies(self) -> np.ndarray:
        """Return the frequencies of the positions, float32 (BANDS,)."""
        if self.are_bands_logarithmic:
            return np.geomspace(1.0, MAX_FREQUENCY / 2, BANDS).astype(np.float32)
        return np.linspace(1.0, MAX_FREQUENCY / 2, BANDS).astype(np.float32)

    def distances(self) -> np.ndarray:
        """Return the distance from a latent to another one of each row, float32 (DISTANCES,)."""
        distances = np.arange(LATENTS - 1, -LATENTS, -1.0, dtype=np.float32)
        return -distances if self.are_distances_reversed else distances

    def inverse_frequencies(self) -> np.ndarray:
        """Return the frequencies of the distances, float32 (HIDDEN / 2,)."""
        return (BASE ** (-np.arange(0, HIDDEN, 2) / HIDDEN)).astype(np.float32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return the arrays, float32 (batch, TOKENS, FEATURES), where they are no padding, int32
        (batch, TOKENS), labels, int32 (batch, TARGETS), values, float32 (batch, TARGETS, VALUES),
        and where they are known, float32 (batch, TARGETS).
        """
        rng = np.random.default_rng(SEED + 1)
        arrays = (0.5 * rng.standard_normal((BATCH, TOKENS, FEATURES))).astype(np.float32)
        is_valid = (np.arange(TOKENS) < np.reshape(LENGTHS, (BATCH, 1))).astype(np.int32)
        arrays *= is_valid[..., None]
        labels = rng.integers(0, CLASSES, (BATCH, TARGETS)).astype(np.int32)
        labels[rng.random((BATCH, TARGETS)) < 0.2] = IGNORED
        values = (0.8 * rng.standard_normal((BATCH, TARGETS, VALUES))).astype(np.float32)
        is_known = (rng.random((BATCH, TARGETS)) < 0.7).astype(np.float32)
        return arrays, is_valid, labels, values, is_known


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_mlp(path: str) -> None:
        weights.add_norm(f"{path}.mlp_norm", HIDDEN)
        weights.add_linear(f"{path}.mlp.value", FFN, HIDDEN)
        weights.add_linear(f"{path}.mlp.gate", FFN, HIDDEN)
        weights.add_linear(f"{path}.mlp.down", HIDDEN, FFN)

    def add_cross(path: str, width: int) -> None:
        weights.add_norm(f"{path}.norm", HIDDEN)
        weights.add_norm(f"{path}.input_norm", width)
        weights.add_matrix(f"{path}.attention.q", HIDDEN, HIDDEN)
        weights.add_matrix(f"{path}.attention.k", HIDDEN, width)
        weights.add_matrix(f"{path}.attention.v", HIDDEN, width)
        weights.add_linear(f"{path}.attention.o", HIDDEN, HIDDEN)
        add_mlp(path)

    weights.add_table("latents", LATENTS, HIDDEN, deviation=0.7)
    weights.add_table("queries", TARGETS, HIDDEN, deviation=0.7)
    add_cross("encoder", CHANNELS)
    weights.add_norm("block.norm", HIDDEN)
    for name in "qkvr":
        weights.add_matrix(f"block.attention.{name}", HIDDEN, HIDDEN)
    weights.add_linear("block.attention.o", HIDDEN, HIDDEN)
    weights.add_table("block.attention.content_bias", HEADS, HEAD_DIM, deviation=0.5)
    weights.add_table("block.attention.position_bias", HEADS, HEAD_DIM, deviation=0.5)
    add_mlp("block")
    add_cross("decoder", HIDDEN)
    weights.add_norm("norm", HIDDEN)
    weights.add_linear("classes", CLASSES, HIDDEN)
    weights.add_linear("values", VALUES, HIDDEN)
    return Model("perceiver", weights)
