"""A Transformer-XL in NumPy: sizes, knobs, weights and batch.

Segment recurrence and relative positions of https://arxiv.org/abs/1901.02860, section 3, with norms
before the layers and no last one, as the authors' ``pre_lnorm``; adaptive embedding and softmax of
https://arxiv.org/abs/1809.10853 with one tail cluster; activation regularization of
https://arxiv.org/abs/1708.01009. A text has SEGMENTS segments of SEGMENT tokens, which are read one
after the other. The memory of a layer is what it has read in the last MEMORY steps of the segment
before, without a gradient; the first segment has none. With h a layer's input, c the memory and h:

    q, k, v  = rows of qkv(norm(c)); q of the steps of h only
    r        = position(sinusoids of the distances KEYS - 1, ..., 0), sines before cosines
    score    = ((q_i + u) . k_j + (q_i + v) . r_(distance of i and j)) / sqrt(HEAD_DIM)
    h       += o(softmax of the scores of no later steps, times values)
    h       += down(gelu(up(norm(h))))

u and v are shared by all layers. A token of the head cluster has a vector of HIDDEN, one of the
tail cluster a smaller one behind a projection; both are multiplied by sqrt(HIDDEN). The softmax has
the same tables and the same projection: that of the head is over the words of the head and the tail
cluster, that of the tail over its words; a tail word's log probability is the sum of both.

The loss is the mean of the next tokens' negative log probabilities plus ALPHA times the mean square
of the last hidden states; padding counts in neither of them.

Weights are float32, linear ones (out, in):

    head, tail                           tables of the clusters
    projection (HIDDEN, TAIL_DIM)        without bias
    cluster (1, HIDDEN), with bias       what the tail cluster has in the head's softmax
    head.bias, tail.bias                 of the softmax
    content, position (HEADS, HEAD_DIM)  u and v, as bias
    layers.N.{attention.norm, qkv, position, o}, layers.N.{mlp.norm, up, down}
                                         attention without bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

LENGTHS = (14, 12, 9)  #: tokens of each text that have a next one
BATCH, SEGMENTS, SEGMENT, MEMORY = len(LENGTHS), 2, 7, 6
STEPS = SEGMENTS * SEGMENT
HIDDEN, HEADS, HEAD_DIM, INNER, LAYERS = 24, 4, 5, 34, 2
HEAD_WORDS, TAIL_WORDS, TAIL_DIM = 11, 15, 8
PAD = 0  #: a word of the head cluster
EPS = 1e-5
BASE = 10000.0
ALPHA = 0.1
SEED = 1901


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): q, k and v from a layer each, u and v
    #: times keys and positions apart, scores by distance gathered, norms, activations and softmax
    #: in plain arithmetic; 'timed' (PyTorch): steps before texts, other names, einsum, one table of
    #: the log probabilities of all words, all segments in one loss
    variant: str = ""
    are_sinusoids_interleaved: bool = False  #: sine and cosine in turn; MindSpore only
    is_memory_normed: bool = True  #: as the layer's own input; MindSpore only
    is_memory_stopped: bool = True  #: it has no gradient; MindSpore only
    are_segments_averaged: bool = False  #: the loss is the mean of theirs; MindSpore only
    is_shift_gradient_straight: bool = False  #: it is not shifted back; MindSpore only
    is_length_same: bool = False  #: each step sees MEMORY keys; MindSpore only
    embedding_scale: float = HIDDEN**0.5  #: PyTorch only
    is_memory_in_mask: bool = True  #: else its diagonal is that without memory; PyTorch only
    has_cluster_term: bool = True  #: in a tail word's log probability; PyTorch only
    bias_gradient: float = 1.0  #: factor of the gradient of u and v; PyTorch only
    are_tables_cloned: bool = False  #: and the projection, for the softmax; PyTorch only
    second_order: tuple[int, ...] = tuple(range(BATCH))  #: of the texts, in the second segment

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return tokens and the tokens behind them, int32 (BATCH, STEPS)."""
        rng = np.random.default_rng(SEED + 1)
        shape = (BATCH, STEPS + 1)
        is_tail = rng.random(shape) < 0.4
        tail_words = rng.integers(HEAD_WORDS, HEAD_WORDS + TAIL_WORDS, shape)
        words = np.where(is_tail, tail_words, rng.integers(PAD + 1, HEAD_WORDS, shape))
        words[np.arange(STEPS + 1) > np.array(LENGTHS)[:, None]] = PAD
        tokens, targets = words[:, :-1].copy(), words[:, 1:].copy()
        for values in (tokens, targets):
            values[:, SEGMENT:] = values[list(self.second_order), SEGMENT:]
        return tokens.astype(np.int32), targets.astype(np.int32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_table("head", HEAD_WORDS, HIDDEN, deviation=HIDDEN**-0.5)
    weights.add_table("tail", TAIL_WORDS, TAIL_DIM, deviation=TAIL_DIM**-0.5)
    weights.add_matrix("projection", HIDDEN, TAIL_DIM)
    weights["projection.weight"] *= np.float32((TAIL_DIM / HIDDEN) ** 0.5)
    weights.add_table("cluster", 1, HIDDEN, deviation=HIDDEN**-0.5)
    for name, length in (("cluster", 1), ("head", HEAD_WORDS), ("tail", TAIL_WORDS)):
        weights.add_bias(name, length)
    for name in ("content", "position"):
        values = 0.6 * weights.rng.standard_normal((HEADS, HEAD_DIM))
        weights[f"{name}.bias"] = values.astype(np.float32)
    for n in range(LAYERS):
        path = f"layers.{n}"
        weights.add_norm(f"{path}.attention.norm", HIDDEN)
        weights.add_matrix(f"{path}.attention.qkv", 3 * HEADS * HEAD_DIM, HIDDEN)
        weights.add_matrix(f"{path}.attention.position", HEADS * HEAD_DIM, HIDDEN)
        weights.add_matrix(f"{path}.attention.o", HIDDEN, HEADS * HEAD_DIM)
        weights.add_norm(f"{path}.mlp.norm", HIDDEN)
        weights.add_linear(f"{path}.mlp.up", INNER, HIDDEN)
        weights.add_linear(f"{path}.mlp.down", HIDDEN, INNER)
    return Model("transfoxl", weights)
