"""A querying transformer in NumPy: sizes, knobs, weights, masks and batch.

The first stage of https://arxiv.org/abs/2301.12597 (section 3.2): learned queries and the tokens of
a text are one sequence of a small BERT, queries first. Both share embedding norm and
self-attention; the feed-forward layers are their own. In every second layer, from the first one on,
queries also attend to the features of a frozen image encoder behind a layer norm. Norms come after
the residual sum. The loss is the sum of three, each from a pass with another mask:

    contrast   queries and text do not see each other. The similarity of an image and a text is the
               largest one of its queries' features, divided by a learned temperature; smoothed
               cross entropy of images and of texts, their mean
    matching   all see each other. BATCH true pairs, then BATCH texts with another image, then BATCH
               images with another text; the classes of the queries' states are averaged
    language   a token sees the queries and what comes before it, queries see queries. The first
               token is DECODE, not CLASSIFY. Padding is no label

Weights, linear ones (out, in), all with bias:

    image_norm, queries (QUERIES, HIDDEN)
    embeddings.{words, positions, norm}
    layers.N.  attention.{q, k, v, o, norm}
               cross.{q, k, v, o, norm}             if has_cross_attention(N); k, v (HIDDEN, VISION)
               {query, text}.{up, down, norm}       feed-forward layers
    image_projection, text_projection               to EMBED
    temperature ()
    matching                                        to 2 classes: 1 is a match
    language.{transform, norm, bias}                its output weight is embeddings.words
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

LENGTHS = (9, 6, 8, 5)  #: tokens of each text, without padding
BATCH, TEXT, QUERIES = len(LENGTHS), max(LENGTHS), 5
SEQ = QUERIES + TEXT
PATCHES, VISION = 11, 17
HIDDEN, HEADS, FFN, LAYERS, EMBED = 21, 3, 30, 2, 13
HEAD_DIM = HIDDEN // HEADS
VOCAB, POSITIONS = 37, 16
PAD, CLASSIFY, SEPARATE, DECODE = 0, 1, 2, VOCAB - 1
IGNORED = -100  #: label of padding
TEMPERATURE, SMOOTHING = 0.07, 0.1
EPS, IMAGE_EPS = 1e-12, 1e-5  #: of the layer norms
SEED = 2301


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault.

    Knobs of a layer are those of the last one that has the part.
    """

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first: each of the three losses has a pass over queries and text;
    #: 'cached' (PyTorch): queries and text apart, as in LAVIS, the text of the language loss reads
    #: cached keys and values of the queries; 'fused' (PyTorch): Hugging Face's names, joined
    #: projections, fused attention, einsum; 'written' (MindSpore): other names, norms, softmax,
    #: gelu and losses in plain arithmetic, sums of masked parts where parts are joined
    variant: str = ""
    are_queries_averaged: bool = False  #: the mean of the similarities of queries; PyTorch only
    is_cross_for_all: bool = False  #: tokens attend to the image, too; MindSpore only
    has_query_feed_forward: bool = True  #: else queries take that of the text; PyTorch only
    is_temperature_factor: bool = False  #: similarities are multiplied by it; MindSpore only
    are_queries_normed: bool = True  #: by the norm of the embeddings; PyTorch only
    do_queries_see_text: bool = False  #: in the pass of the language loss; MindSpore only
    are_matches_last: bool = False  #: the labels of true pairs are behind the others; PyTorch only
    are_negatives_detached: bool = False  #: no gradient to other images' features; PyTorch only
    is_gradient_of_all: bool = False  #: all queries have the gradient of the best; PyTorch only
    #: the language loss has no gradient to the keys of queries; MindSpore only
    are_cached_keys_detached: bool = False
    first_position: int = 0  #: of the text in the pass of the language loss; MindSpore only
    #: other texts have the padding mask of those in whose place they are; MindSpore only
    is_other_mask_own: bool = False
    #: similarities have a gradient to what has their rows, not to all others; PyTorch only
    are_gathered_stopped: bool = False
    are_padding_labels_counted: bool = False  #: in the language loss; MindSpore only
    are_queries_causal: bool = False  #: in the pass of the language loss; PyTorch only

    def list_visible(self, mask: str) -> np.ndarray:
        """Return which rows see which columns in a mask, bool (SEQ, SEQ), padding apart."""
        is_query = np.arange(SEQ) < QUERIES
        if mask == "separate":
            return is_query[:, None] == is_query
        if mask == "both":
            return np.ones((SEQ, SEQ), bool)
        visible = np.tril(np.ones((SEQ, SEQ), bool))
        if self.are_queries_causal:
            return visible
        visible |= is_query
        visible[:QUERIES] = is_query | self.do_queries_see_text
        return visible

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return features of images, float32 (BATCH, PATCHES, VISION), tokens, int32 (BATCH, TEXT).

        And int32 (BATCH,) twice: the number of another image for each text, and of another text for
        each image.
        """
        rng = np.random.default_rng(SEED + 1)
        features = 0.3 + 1.6 * rng.standard_normal((BATCH, PATCHES, VISION))
        tokens = rng.integers(SEPARATE + 1, DECODE, (BATCH, TEXT)).astype(np.int32)
        tokens[:, 0] = CLASSIFY
        for row, length in zip(tokens, LENGTHS, strict=True):
            row[length - 1] = SEPARATE
            row[length:] = PAD
        other_images = np.array([2, 3, 3, 1], np.int32)
        other_texts = np.array([1, 0, 1, 2], np.int32)
        return features.astype(np.float32), tokens, other_images, other_texts


def has_cross_attention(layer: int) -> bool:
    """Return whether queries attend to the image in a layer."""
    return layer % 2 == 0


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_norm("image_norm", VISION)
    weights.add_table("queries", QUERIES, HIDDEN, deviation=0.5)
    weights.add_table("embeddings.words", VOCAB, HIDDEN)
    weights.add_table("embeddings.positions", POSITIONS, HIDDEN, deviation=0.4)
    weights.add_norm("embeddings.norm", HIDDEN)
    for n in range(LAYERS):
        _add_attention(weights, f"layers.{n}.attention", HIDDEN)
        if has_cross_attention(n):
            _add_attention(weights, f"layers.{n}.cross", VISION)
        for name in ("query", "text"):
            path = f"layers.{n}.{name}"
            weights.add_linear(f"{path}.up", FFN, HIDDEN)
            weights.add_linear(f"{path}.down", HIDDEN, FFN)
            weights.add_norm(f"{path}.norm", HIDDEN)
    weights.add_linear("image_projection", EMBED, HIDDEN)
    weights.add_linear("text_projection", EMBED, HIDDEN)
    weights["temperature"] = np.array(TEMPERATURE, np.float32)
    weights.add_linear("matching", 2, HIDDEN)
    weights.add_linear("language.transform", HIDDEN, HIDDEN)
    weights.add_norm("language.norm", HIDDEN)
    weights.add_bias("language", VOCAB)
    return Model("blip", weights)


def _add_attention(weights: Weights, path: str, width: int) -> None:
    """Add an attention to vectors of a width."""
    for name in "qkvo":
        weights.add_linear(f"{path}.{name}", HIDDEN, width if name in "kv" else HIDDEN)
    weights.add_norm(f"{path}.norm", HIDDEN)
