"""A bidirectional encoder in pretraining, in NumPy: sizes, knobs, weights and batch.

The encoder of https://arxiv.org/abs/1810.04805 (section 3) with norms behind its residual sums.
Embeddings are narrower than the hidden states, the layers of a group have the same weights, and the
second loss is that of the order of two segments (https://arxiv.org/abs/1909.11942, section 3.1).
The first loss is that of masked tokens: their states are gathered and transformed, and the decoder
has the matrix of the embeddings and a bias of its own. Slots without a masked token have position
0, label 0 and weight 0. Weights:

    embeddings.{words,positions,segments}    tables of EMBED columns
    embeddings.norm, embeddings.mapping      layer norm; linear, to HIDDEN
    groups.N.{q,k,v,o}, groups.N.norm1, groups.N.{up,down}, groups.N.norm2
    pooler                                   linear, (HIDDEN, HIDDEN), of the first token
    order                                    linear, of two classes
    transform, transform.norm                linear, to EMBED; layer norm
    decoder.bias (VOCAB,)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

VOCAB, EMBED, HIDDEN, HEADS, FFN = 60, 20, 32, 4, 64
HEAD_DIM = HIDDEN // HEADS
LAYERS, GROUPS = 6, 2  #: the first half of the layers has the weights of group 0
PADDING, BEGIN, SEPARATOR, MASK, FIRST_WORD = 0, 1, 2, 3, 4
SEGMENT_LENGTHS = ((5, 6), (4, 4), (6, 4), (3, 5))  #: words of both segments, by sequence
MASKED = (3, 2, 3, 1)  #: masked tokens, by sequence
BATCH, SLOTS = len(MASKED), max(MASKED)
SEQ = max(first + second for first, second in SEGMENT_LENGTHS) + 3
RESERVED_POSITIONS = 2  #: rows of the table of positions that nobody reads
EPS = 1e-12
SEED = 151


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'fused' (PyTorch): one projection and fused attention, gelu in
    #: plain arithmetic, slots by index, loss without ignored labels; 'one_hot' (MindSpore): tables
    #: and slots read by products with ones, scaled queries, norm and softmax written out
    variant: str = ""
    are_segments_ignored: bool = False  #: all tokens have the embedding of the first segment
    first_position: int = 0  #: row of the table of positions that the first token reads
    is_mask_added: bool = False  #: ones of visible tokens are added to scores, padding gets zeros
    activation: str = "gelu_erf"  #: of the feed-forward layers; or 'gelu_tanh'
    has_slot_offsets: bool = True  #: slots read their own sequence, else all of them the first one
    is_order_reversed: bool = False  #: labels of the order have the other meaning
    is_norm_first: bool = False  #: norms before attention and feed-forward, not behind the sums
    is_decoder_tied: bool = True  #: else it has a copy of the table of words
    position_gradient: float = 1.0  #: the gradient of the positions is multiplied by it
    pooled_tokens: str = "first"  #: what the pooler reads: the state of the 'first', or the 'mean'
    are_empty_slots_counted: bool = False  #: the first loss is the mean of all slots
    is_feed_forward_half: bool = False  #: the feed-forward layers in bfloat16
    are_groups_interleaved: bool = False  #: layers take turns with the groups, not half by half
    is_gradient_of_last_call: bool = False  #: of a group's layers, only the last one's counts
    are_queries_masked: bool = False  #: padding is masked as query, not as key; MindSpore only
    #: of the softmax of attention: the gradient is not centered; PyTorch only
    is_softmax_gradient_plain: bool = False
    optimizer: Optimizer = field(default_factory=lambda: Optimizer(eps=1e-6))

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return tokens, segments and mask (1 where a token is no padding), int32 (batch, SEQ),
        positions and labels of the masked tokens, int32 (batch, SLOTS), weights of the slots,
        float32 (batch, SLOTS), and the order, int32 (batch,), 1 if the segments are exchanged.
        """
        rng = np.random.default_rng(SEED + 1)
        tokens, segments, mask = (np.zeros((BATCH, SEQ), np.int32) for _ in range(3))
        positions, labels = (np.zeros((BATCH, SLOTS), np.int32) for _ in range(2))
        weights = np.zeros((BATCH, SLOTS), np.float32)
        for row, (first, second) in enumerate(SEGMENT_LENGTHS):
            separators = [first + 1, first + second + 2]
            length = separators[1] + 1
            tokens[row, :length] = rng.integers(FIRST_WORD, VOCAB, length)
            tokens[row, 0], tokens[row, separators] = BEGIN, SEPARATOR
            segments[row, first + 2 : length] = 1
            mask[row, :length] = 1
            words = np.setdiff1d(np.arange(1, length), separators)
            n_masked = MASKED[row]
            masked = np.sort(rng.choice(words, n_masked, replace=False))
            positions[row, :n_masked] = masked
            labels[row, :n_masked] = tokens[row, masked]
            weights[row, :n_masked] = 1
            tokens[row, masked] = MASK
        order = np.array([0, 1, 1, 0], dtype=np.int32)
        return tokens, segments, mask, positions, labels, weights, order

    def layer_groups(self) -> tuple[int, ...]:
        """Return the group whose weights a layer has, layer by layer."""
        if self.are_groups_interleaved:
            return tuple(layer % GROUPS for layer in range(LAYERS))
        return tuple(layer * GROUPS // LAYERS for layer in range(LAYERS))


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    for name, rows in (("words", VOCAB), ("positions", SEQ + RESERVED_POSITIONS), ("segments", 2)):
        weights.add_table(f"embeddings.{name}", rows, EMBED, deviation=0.15)
    weights.add_norm("embeddings.norm", EMBED)
    weights.add_linear("embeddings.mapping", HIDDEN, EMBED)
    for n in range(GROUPS):
        for projection in "qkvo":
            weights.add_linear(f"groups.{n}.{projection}", HIDDEN, HIDDEN)
        weights.add_norm(f"groups.{n}.norm1", HIDDEN)
        weights.add_linear(f"groups.{n}.up", FFN, HIDDEN)
        weights.add_linear(f"groups.{n}.down", HIDDEN, FFN)
        weights.add_norm(f"groups.{n}.norm2", HIDDEN)
    weights.add_linear("pooler", HIDDEN, HIDDEN)
    weights.add_linear("order", 2, HIDDEN)
    weights.add_linear("transform", EMBED, HIDDEN)
    weights.add_norm("transform.norm", EMBED)
    weights.add_bias("decoder", VOCAB)
    return Model("bert", weights)
