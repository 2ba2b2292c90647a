"""A masked language model with disentangled attention, in NumPy: sizes, knobs, weights and batch.

The encoder of https://arxiv.org/abs/2006.03654: attention scores are the sum of content to content,
content to position and position to content (equation 4), and the mask decoder applies the last
layer twice to queries that also have absolute positions (section 3.2). Relative positions have
buckets of growing width, and their table has a norm, as in the second version of the model. The
second loss tells replaced tokens from original ones (https://arxiv.org/abs/2111.09543, section
3.1).
Weights:

    words (VOCAB, HIDDEN), positions (SEQ, HIDDEN), relative (2 * SPAN, HIDDEN)    tables
    words.norm, relative.norm         layer norms
    layers.N.: q, k, v, o, position_k (no bias), position_q, norm1, up, down, norm2
    transform, transform.norm         linear; layer norm
    decoder.bias (VOCAB,)             its matrix is the table of words
    replaced.dense, replaced.classes  linear; linear, to one logit
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

VOCAB, HIDDEN, HEADS, FFN, LAYERS = 60, 32, 4, 56, 3
HEAD_DIM = HIDDEN // HEADS
PADDING, BEGIN, END, MASK, FIRST_WORD = 0, 1, 2, 3, 4
LENGTHS = (14, 10, 12, 9)  #: tokens of each sequence
BATCH, SEQ = len(LENGTHS), max(LENGTHS)
MASKED_TOKENS, REPLACED_TOKENS = 2, 2  #: of each sequence
SPAN, MAX_POSITION = 6, 16  #: buckets in each direction; distance that the last one begins at
SCORE_TERMS = 3  #: content to content, content to position, position to content
DECODER_STEPS = 2  #: how many times the mask decoder applies the last layer
IGNORED = -100  #: label of tokens that are not masked
REPLACED_WEIGHT = 5.0  #: of the second loss
EPS = 1e-7
PEAK_RATE, WARMUP_STEPS = 1e-2, 10
SEED = 171


def get_warmup_rate(step: int) -> float:
    """Return the learning rate of a step of the warm-up; the first step is 1."""
    return PEAK_RATE * step / WARMUP_STEPS


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'fused' (PyTorch): one projection, fused attention with a bias
    #: from einsum, gelu in plain arithmetic, weighted losses; 'written' (MindSpore): norms and
    #: softmax from reductions, positions read by products with ones, losses written out
    variant: str = ""
    score_terms: int = SCORE_TERMS  #: scores are divided by the root of HEAD_DIM times it
    #: scores of positions to contents are computed by key and query, then exchanged
    are_position_scores_transposed: bool = True
    has_log_buckets: bool = True  #: else distances are only limited to the SPAN
    has_relative_norm: bool = True
    decoder_keys: str = "contents"  #: of the mask decoder; 'positions': with absolute positions too
    are_labels_ignored: bool = True  #: tokens that are not masked do not count in the first loss
    are_position_scores_half: bool = False  #: both scores with positions in float16
    is_key_table_stopped: bool = False  #: no gradient from position keys to the table
    decoder_gradient: float = 1.0  #: of the table of words from the decoder is multiplied by it
    are_decoder_keys_stopped: bool = False  #: no gradient from the mask decoder's keys and values
    are_positions_early: bool = False  #: words have absolute positions, too, before their norm
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(learning_rate=get_warmup_rate(1), eps=1e-6, clip=1.0)
    )

    def relative_positions(self) -> np.ndarray:
        """Return the signed buckets (query, key), int32, of query less key.

        Up to half of SPAN each distance has one; the others grow with the logarithm.
        """
        distances = np.arange(SEQ)[:, None] - np.arange(SEQ)[None, :]
        if not self.has_log_buckets:
            return distances.astype(np.int32)
        middle = SPAN // 2
        lengths = np.maximum(np.abs(distances), middle)
        shares = np.log(lengths / middle) / np.log((MAX_POSITION - 1) / middle)
        buckets = np.ceil(shares * (middle - 1)) + middle
        is_near = np.abs(distances) <= middle
        return np.where(is_near, distances, np.sign(distances) * buckets).astype(np.int32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return tokens, mask (1 where a token is no padding) and labels, int32 (batch, SEQ), and
        1 where a token is replaced, float32 (batch, SEQ).
        """
        rng = np.random.default_rng(SEED + 1)
        tokens, mask = (np.zeros((BATCH, SEQ), np.int32) for _ in range(2))
        labels = np.full((BATCH, SEQ), IGNORED, np.int32)
        replaced = np.zeros((BATCH, SEQ), np.float32)
        for row, length in enumerate(LENGTHS):
            words = rng.integers(FIRST_WORD, VOCAB, length - 2)
            tokens[row, :length] = [BEGIN, *words, END]
            mask[row, :length] = 1
            n_changed = MASKED_TOKENS + REPLACED_TOKENS
            changed = 1 + rng.choice(length - 2, n_changed, replace=False)
            masked, exchanged = changed[:MASKED_TOKENS], changed[MASKED_TOKENS:]
            labels[row, changed] = tokens[row, changed]
            tokens[row, masked] = MASK
            tokens[row, exchanged] = rng.integers(FIRST_WORD, VOCAB, REPLACED_TOKENS)
            replaced[row, exchanged] = 1
        return tokens, mask, labels, replaced


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_table("words", VOCAB, HIDDEN, deviation=0.15)
    weights.add_table("positions", SEQ, HIDDEN, deviation=0.3)
    weights.add_table("relative", 2 * SPAN, HIDDEN, deviation=0.3)
    weights.add_norm("words.norm", HIDDEN)
    weights.add_norm("relative.norm", HIDDEN)
    for n in range(LAYERS):
        path = f"layers.{n}"
        for projection in "qkvo":
            weights.add_linear(f"{path}.{projection}", HIDDEN, HIDDEN)
        weights.add_matrix(f"{path}.position_k", HIDDEN, HIDDEN)
        weights.add_linear(f"{path}.position_q", HIDDEN, HIDDEN)
        weights.add_norm(f"{path}.norm1", HIDDEN)
        weights.add_linear(f"{path}.up", FFN, HIDDEN)
        weights.add_linear(f"{path}.down", HIDDEN, FFN)
        weights.add_norm(f"{path}.norm2", HIDDEN)
    weights.add_linear("transform", HIDDEN, HIDDEN)
    weights.add_norm("transform.norm", HIDDEN)
    weights.add_bias("decoder", VOCAB)
    weights.add_linear("replaced.dense", HIDDEN, HIDDEN)
    weights.add_linear("replaced.classes", 1, HIDDEN)
    return Model("deberta", weights)
