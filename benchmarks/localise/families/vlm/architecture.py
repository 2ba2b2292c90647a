"""A multimodal decoder (https://arxiv.org/abs/2409.12191, section 2) in NumPy: sizes, knobs,
weights and batch.

An image is cut into patches by a convolution. Its blocks are x + f(layer_norm(x)), with attention
of all patches and a feed-forward layer of gelu in the tanh form. Queries and keys are turned, half
of the frequencies by the row of a patch, half by its column. The projector joins 2x2 patches, row
by row, and has two linear layers around exact gelu. Its vectors replace the placeholders among the
embedded tokens, which are multiplied by the root of HIDDEN; images are not.

A layer of the decoder has RMS norms before attention and gated feed-forward layer. Queries and keys
are normed by head, then turned by positions of three axes: SECTIONS of the frequencies belong to
time, row and column. HEADS // KV_HEADS queries read the same key and value. A text token has the
same position on all axes, one more than the largest one before it. The vectors of an image are of
one time, and their rows and columns count from it. The mask is causal, for images too. The label of
a token is the next one; placeholders and padding are no labels. Weights:

    vision.patch                      convolution with bias
    vision.blocks.N.   norm1, q, k, v, o, norm2, up, down         all with bias
    vision.norm                       layer norm
    projector.up, projector.down      linear with bias
    embedding.weight (VOCAB, HIDDEN)
    layers.N.  norm1, norm2           RMS norms; q_norm, k_norm, RMS norms of HEAD_DIM
               q, k, v, o, gate, up, down                         linear without bias
    norm, head (VOCAB, HIDDEN) without bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

HEIGHT, WIDTH, PATCH, MERGE = 16, 24, 4, 2
ROWS, COLUMNS = HEIGHT // PATCH, WIDTH // PATCH
PATCHES = ROWS * COLUMNS
MERGED_ROWS, MERGED_COLUMNS = ROWS // MERGE, COLUMNS // MERGE
IMAGE_TOKENS = MERGED_ROWS * MERGED_COLUMNS
VISION, VISION_HEADS, VISION_FFN, BLOCKS = 32, 4, 64, 2
VISION_HEAD_DIM = VISION // VISION_HEADS
PROJECTOR = 64
VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS = 72, 48, 4, 2, 16, 80, 2
GROUP = HEADS // KV_HEADS  #: queries of a key
SECTIONS = (4, 2, 2)  #: frequencies of time, row and column
EMBEDDING_SCALE = HIDDEN**0.5
THETA = 100.0  #: rotary base of patches and tokens
PADDING, PLACEHOLDER = 0, VOCAB - 1
IGNORED = -100
LENGTHS, IMAGE_STARTS = (19, 16, 17), (1, 4, 2)
BATCH, SEQ = len(LENGTHS), max(LENGTHS)
VISION_EPS, EPS = 1e-6, 1e-6  #: of layer norms and RMS norms
SEED = 317


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'packed' (PyTorch): patches of all images in one sequence, in
    #: the order in which they are merged, joined projections, fused attention and norms, a head
    #: for tokens that have a label only; 'sequence_first' (MindSpore): tokens as first axis, joined
    #: projections in groups of a key, attention in batched products, all functions written out
    variant: str = ""
    are_sections_interleaved: bool = False  #: time, row and column take turns in the frequencies
    image_span: int = max(MERGED_ROWS, MERGED_COLUMNS)  #: positions that an image takes up
    are_columns_first: bool = False  #: merged patches column by column
    are_heads_normed_together: bool = False  #: one mean square of all heads of a token
    projector_gelu: str = "erf"  #: or 'tanh'
    are_images_scaled: bool = False  #: multiplied by the root of HIDDEN, too
    are_placeholders_counted: bool = False  #: they are labels, too
    are_images_bidirectional: bool = False  #: the mask compares times, not places in a sequence
    is_cache_detached: bool = False  #: no gradient to keys and values of the last layer
    are_angles_half: bool = False  #: positions times frequencies in bfloat16
    is_gradient_of_last_query: bool = False  #: of the queries of a key, only the last one's counts
    are_features_normed: bool = True  #: by the last norm of the vision tower
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(learning_rate=2e-3, beta2=0.95, weight_decay=0.1)
    )

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Return pixels, float32 (BATCH, 3, HEIGHT, WIDTH), and tokens, int32 (BATCH, SEQ)."""
        rng = np.random.default_rng(SEED + 1)
        pixels = rng.standard_normal((BATCH, 3, HEIGHT, WIDTH)).astype(np.float32)
        tokens = rng.integers(1, PLACEHOLDER, (BATCH, SEQ)).astype(np.int32)
        for row, length, start in zip(tokens, LENGTHS, IMAGE_STARTS, strict=True):
            row[start : start + IMAGE_TOKENS] = PLACEHOLDER
            row[length:] = PADDING
        return pixels, tokens


def get_frequencies(length: int) -> np.ndarray:
    """Return so many angles between two positions, float32."""
    return (THETA ** (-np.arange(length) / length)).astype(np.float32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_linear("vision.patch", VISION, 3, PATCH, PATCH)
    for n in range(BLOCKS):
        path = f"vision.blocks.{n}"
        weights.add_norm(f"{path}.norm1", VISION)
        for projection in "qkvo":
            weights.add_linear(f"{path}.{projection}", VISION, VISION)
        weights.add_norm(f"{path}.norm2", VISION)
        weights.add_linear(f"{path}.up", VISION_FFN, VISION)
        weights.add_linear(f"{path}.down", VISION, VISION_FFN)
    weights.add_norm("vision.norm", VISION)
    weights.add_linear("projector.up", PROJECTOR, MERGE**2 * VISION)
    weights.add_linear("projector.down", HIDDEN, PROJECTOR)
    weights.add_table("embedding", VOCAB, HIDDEN, deviation=0.12)
    for n in range(LAYERS):
        path = f"layers.{n}"
        weights.add_norm(f"{path}.norm1", HIDDEN, has_bias=False)
        weights.add_matrix(f"{path}.q", HEADS * HEAD_DIM, HIDDEN)
        weights.add_matrix(f"{path}.k", KV_HEADS * HEAD_DIM, HIDDEN)
        weights.add_matrix(f"{path}.v", KV_HEADS * HEAD_DIM, HIDDEN)
        weights.add_matrix(f"{path}.o", HIDDEN, HEADS * HEAD_DIM)
        weights.add_norm(f"{path}.q_norm", HEAD_DIM, has_bias=False)
        weights.add_norm(f"{path}.k_norm", HEAD_DIM, has_bias=False)
        weights.add_norm(f"{path}.norm2", HIDDEN, has_bias=False)
        weights.add_matrix(f"{path}.gate", FFN, HIDDEN)
        weights.add_matrix(f"{path}.up", FFN, HIDDEN)
        weights.add_matrix(f"{path}.down", HIDDEN, FFN)
    weights.add_norm("norm", HIDDEN, has_bias=False)
    weights.add_matrix("head", VOCAB, HIDDEN)
    return Model("vlm", weights)
