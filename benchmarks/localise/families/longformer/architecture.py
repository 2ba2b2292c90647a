"""A document encoder with local and global attention, as Longformer: sizes, knobs, weights, batch.

A sequence is a question and a document. It is filled up with padding to a multiple of two windows.
A token attends to the WINDOW tokens on both sides of it and to the global tokens, by one softmax
over SLOTS + BAND scores (https://arxiv.org/abs/2004.05150, section 3.1). Scores of windows are
products of chunks of two windows that overlap by one. Global tokens are hidden in windows, for they
have a slot of their own; a sequence may leave slots empty. Global tokens attend to all tokens, with
queries, keys and values of other projections; what that returns takes the place of their local
output. Queries are divided by sqrt(HEAD_DIM), padding returns 0, and norms are behind the sums.

Positions count tokens that are no padding, from PAD + 1 on; padding has position PAD. The loss is
the sum of those of masked words (the decoder has the matrix of the words), of the answer (mean of
start and end; a position beyond the text is clipped to LENGTH, which is ignored) and of the kind of
the answer, which the mean of the global tokens' states predicts. Linear weights are (out, in):

    embeddings.{words,positions,types}, embeddings.norm
    layers.N.  {q,k,v,global_q,global_k,global_v,o} norm1 {up,down} norm2
    transform, transform.norm, decoder.bias (VOCAB,)
    answer                                   linear, of start and end
    pooler, kind                             linear, (HIDDEN, HIDDEN) and (KINDS, HIDDEN)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

VOCAB, HIDDEN, HEADS, FFN, LAYERS, KINDS = 50, 28, 4, 36, 2, 5
HEAD_DIM = HIDDEN // HEADS
WINDOW = 5  #: tokens on one side
CHUNK, BAND = 2 * WINDOW, 2 * WINDOW + 1
BATCH, LENGTH, SEQ, SLOTS = 2, 27, 30, 3  #: SEQ with the padding that windows need
BLOCKS = SEQ // WINDOW
BEGIN, PAD, END, MASK, FIRST_WORD = 0, 1, 2, 3, 4
QUESTION = 4  #: longest question
QUESTION_WORDS = (4, 2)  #: words of the question, by sequence; padding follows them
ENDS = (24, LENGTH)  #: position of the last token; the second document goes on behind the text
MASKED = (5, 4)  #: masked words, by sequence
STARTS_OF_ANSWERS, ENDS_OF_ANSWERS = (9, 22), (13, 31)
KINDS_OF_ANSWERS = (1, 3)
HIDDEN_TOKEN, LOCAL_TOKEN, GLOBAL_TOKEN = 0, 1, 2  #: values of the mask
IGNORED = -100  #: label of a token that is not masked
EPS = 1e-5
SEED = 2411


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'blocks' (MindSpore): a block of queries with the three blocks
    #: of keys around it, reads and writes of global tokens by products with ones, norm, gelu and
    #: losses in plain arithmetic; 'dense' (PyTorch): fused attention of all tokens with a mask,
    #: joined projections, other names
    variant: str = ""
    is_global_query_scaled: bool = True  #: MindSpore only
    value_padding: int = WINDOW  #: rows of padding before the values of windows; MindSpore only
    are_global_values_local: bool = False  #: by the projection of local values; MindSpore only
    last_label: int = LENGTH  #: positions of answers are clipped to it; MindSpore only
    are_next_keys_stopped: bool = False  #: of a chunk's second half; MindSpore only
    global_gradient: float = 1.0  #: factor of that of global attention's output; MindSpore only
    is_global_output_added: bool = False  #: to the local output of global tokens; PyTorch only
    are_slots_averaged: bool = False  #: the pooled mean is over all slots; PyTorch only
    are_globals_in_windows: bool = False  #: windows do not hide global tokens; PyTorch only
    is_padding_counted: bool = False  #: positions count padding too; PyTorch only
    is_slot_sum_detached: bool = False  #: no gradient through the slots' sum; PyTorch only
    are_words_averaged: bool = False  #: the loss of words is a mean of all tokens; PyTorch only

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return tokens, types (1 in the document), mask and labels of words, (BATCH, LENGTH),
        then starts, ends and kinds of the answers, (BATCH,); all of them int32.
        """
        rng = np.random.default_rng(SEED + 1)
        tokens, types, mask, labels = (np.zeros((BATCH, LENGTH), np.int32) for _ in range(4))
        tokens[:], labels[:] = PAD, IGNORED
        for row, (n_words, end) in enumerate(zip(QUESTION_WORDS, ENDS, strict=True)):
            document = np.arange(QUESTION + 2, end)
            words = np.concatenate([np.arange(1, n_words + 1), document])
            tokens[row, words] = rng.integers(FIRST_WORD, VOCAB, len(words))
            tokens[row, 0] = BEGIN
            tokens[row, [n for n in (QUESTION + 1, end) if n < LENGTH]] = END
            types[row, QUESTION + 2 : end + 1] = 1
            masked = np.sort(rng.choice(document, MASKED[row], replace=False))
            labels[row, masked] = tokens[row, masked]
            tokens[row, masked] = MASK
        mask[tokens != PAD] = LOCAL_TOKEN
        mask[(tokens == BEGIN) | (tokens == END)] = GLOBAL_TOKEN
        answers = (STARTS_OF_ANSWERS, ENDS_OF_ANSWERS, KINDS_OF_ANSWERS)
        return tokens, types, mask, labels, *(np.array(column, np.int32) for column in answers)


def find_distances() -> np.ndarray:
    """Return how far a token (column) is behind another one (row), (SEQ, SEQ)."""
    return np.arange(SEQ) - np.arange(SEQ)[:, None]


def find_neighbors() -> np.ndarray:
    """Return the positions in a token's window, int32 (SEQ, BAND); some are outside the text."""
    return (np.arange(SEQ)[:, None] + np.arange(-WINDOW, WINDOW + 1)).astype(np.int32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    for name, rows in (("words", VOCAB), ("positions", SEQ + PAD + 1), ("types", 2)):
        weights.add_table(f"embeddings.{name}", rows, HIDDEN, deviation=0.3)
    weights.add_norm("embeddings.norm", HIDDEN)
    for n in range(LAYERS):
        for projection in ("q", "k", "v", "global_q", "global_k", "global_v", "o"):
            weights.add_linear(f"layers.{n}.{projection}", HIDDEN, HIDDEN)
        weights.add_norm(f"layers.{n}.norm1", HIDDEN)
        weights.add_linear(f"layers.{n}.up", FFN, HIDDEN)
        weights.add_linear(f"layers.{n}.down", HIDDEN, FFN)
        weights.add_norm(f"layers.{n}.norm2", HIDDEN)
    weights.add_linear("transform", HIDDEN, HIDDEN)
    weights.add_norm("transform.norm", HIDDEN)
    weights.add_bias("decoder", VOCAB)
    weights.add_linear("answer", 2, HIDDEN)
    weights.add_linear("pooler", HIDDEN, HIDDEN)
    weights.add_linear("kind", KINDS, HIDDEN)
    return Model("longformer", weights)
