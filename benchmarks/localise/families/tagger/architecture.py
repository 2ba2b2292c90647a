"""A sequence tagger: convolved characters and words, highway, bidirectional GRU, CRF.

Weights are float32, named canonically:

    char.weight (CHARS, CHAR_WIDTH), conv.weight (FILTERS, CHAR_WIDTH, 3), conv.bias
    word.weight (WORDS, WORD_WIDTH)
    highway.{transform, gate}.{weight, bias}
    gru.{forward, backward}.{weight_ih, weight_hh, bias_ih, bias_hh}: rows of the gates r, z, n
    tag.{weight, bias}, lm.{weight, bias}
    crf.transitions (TAGS, TAGS) from row to column, crf.start, crf.end (TAGS,)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

CHARS, CHAR_WIDTH, LETTERS, FILTERS = 20, 8, 7, 12
WORDS, WORD_WIDTH = 40, 12
WIDTH, HIDDEN, TAGS = FILTERS + WORD_WIDTH, 10, 5
SEQ, BATCH, SEED = 6, 4, 181
LENGTHS = (6, 5, 4, 3)
IGNORED = -100  #: label of a word that was not masked
AUXILIARY = 0.3  #: weight of the loss of masked words
DIRECTIONS = ("forward", "backward")
GRU_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (PyTorch): the GRU in plain arithmetic, the CRF with
    #: its maximum taken out; 'cells' (PyTorch): nn.GRUCell step by step; 'projected' (MindSpore):
    #: the inputs of all steps are projected at once, states are selected; 'joined' (MindSpore):
    #: one product for both halves of the highway, the gold path by one-hot tags
    variant: str = ""
    char_pooling: str = "max"  #: or 'mean'; MindSpore only
    highway_offset: float = 0.0  #: added to the highway's gate before the sigmoid; MindSpore only
    gate_order: tuple[int, ...] = (0, 1, 2)  #: rows read as r, z, n; MindSpore only
    is_reset_first: bool = False  #: r times the state, then the product; MindSpore only
    has_gold_start: bool = True  #: the start score in that of the gold path; MindSpore only
    auxiliary_gradient: float = 1.0  #: of the states, from the words' loss; MindSpore only
    is_end_last: bool = False  #: the end score of the tag in the last column; PyTorch only
    is_packed: bool = True  #: the GRU knows the lengths; PyTorch only
    loss_reduction: str = "sentences"  #: or 'tokens'; PyTorch only
    is_gate_detached: bool = False  #: PyTorch only
    are_words_by_step: bool = False  #: as features of characters are read back; MindSpore only
    is_carry_stopped: bool = False  #: no gradient of what the highway carries; PyTorch only
    optimizer: Optimizer = field(default_factory=lambda: Optimizer(weight_decay=0.0, clip=5.0))

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return words (batch, seq), chars (batch, seq, letters), lengths (batch,), tags and
        labels of masked words (batch, seq), int32.
        """
        rng = np.random.default_rng(SEED + 1)
        words = rng.integers(2, WORDS, (BATCH, SEQ))
        chars = rng.integers(1, CHARS, (BATCH, SEQ, LETTERS))
        n_letters = rng.integers(LETTERS - 2, LETTERS + 1, (BATCH, SEQ, 1))
        chars[np.arange(LETTERS) >= n_letters] = 0
        tags = rng.integers(0, TAGS, (BATCH, SEQ))
        labels = np.full((BATCH, SEQ), IGNORED)
        for row, column in ((0, 1), (0, 4), (1, 3), (2, 0), (2, 2), (3, 1)):
            labels[row, column] = words[row, column]
            words[row, column] = 1
        is_padding = np.arange(SEQ) >= np.array(LENGTHS)[:, None]
        words[is_padding], chars[is_padding], tags[is_padding] = 0, 0, 0
        arrays = (words, chars, np.array(LENGTHS), tags, labels)
        return tuple(values.astype(np.int32) for values in arrays)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_table("char", CHARS, CHAR_WIDTH)
    weights.add_linear("conv", FILTERS, CHAR_WIDTH, 3)
    weights.add_table("word", WORDS, WORD_WIDTH)
    for name in ("transform", "gate"):
        weights.add_linear(f"highway.{name}", WIDTH, WIDTH)
    for direction in DIRECTIONS:
        for name, width in (("ih", WIDTH), ("hh", HIDDEN)):
            matrix = weights.rng.standard_normal((3 * HIDDEN, width)) / np.sqrt(width)
            bias = 0.2 * weights.rng.standard_normal(3 * HIDDEN)
            weights[f"gru.{direction}.weight_{name}"] = matrix.astype(np.float32)
            weights[f"gru.{direction}.bias_{name}"] = bias.astype(np.float32)
    weights.add_linear("tag", TAGS, 2 * HIDDEN)
    weights.add_linear("lm", WORDS, 2 * HIDDEN)
    for name, shape in (("transitions", (TAGS, TAGS)), ("start", (TAGS,)), ("end", (TAGS,))):
        weights[f"crf.{name}"] = (0.7 * weights.rng.standard_normal(shape)).astype(np.float32)
    return Model("tagger", weights)
