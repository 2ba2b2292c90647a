"""A Gemma 3 (https://arxiv.org/abs/2503.19786, section 2) in NumPy: sizes, knobs, weights, batch.

The table of tokens is also the matrix of the logits; what it gives is multiplied by the root of
HIDDEN. Each sublayer has a norm in front and one behind it, x + norm(f(norm(x))) (Gemma 2,
https://arxiv.org/abs/2408.00118, section 2). All norms are x / sqrt(mean(x ** 2) + EPS) * (1 + w).
Attention norms its queries and keys by head, turns them and divides scores by the root of
QUERY_SCALAR; HEADS // KV_HEADS queries read the same key and value. Even layers see the last WINDOW
tokens and have the rotary base LOCAL_BASE, odd ones see all earlier tokens and have GLOBAL_BASE.
The feed-forward layer is down(gelu_tanh(gate(x)) * up(x)) (https://arxiv.org/abs/2002.05202,
section 2). Logits are LOGIT_CAP * tanh(logits / LOGIT_CAP). The label of a token is the next one;
padding is no label. It is behind all tokens, so nothing that counts reads it. Weights:

    embedding.weight (VOCAB, HIDDEN)
    layers.N.  attention_norm, attention_post_norm, ffn_norm, ffn_post_norm   norms, w
               q, k, v, o           linear without bias; q_norm, k_norm, norms of HEAD_DIM
               gate, up, down       linear without bias
    norm
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer, round_bfloat16

from families.weights import Weights

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS = 64, 40, 4, 2, 12, 72, 4
GROUP = HEADS // KV_HEADS  #: queries of a key
QUERY_SCALAR = HIDDEN // HEADS  #: as the largest Gemma has it, not HEAD_DIM
WINDOW = 4  #: tokens that a sliding layer sees, the own one included
LOCAL_BASE, GLOBAL_BASE = 1e4, 1e6
LOGIT_CAP = 8.0
SCORE_CAP = 50.0  #: of the attention of Gemma 2, which Gemma 3 does not have
PADDING = 0
LENGTHS = (14, 11, 8)
BATCH, SEQ = len(LENGTHS), max(LENGTHS)
EPS = 1e-6
SEED = 191


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'fused' (PyTorch): one projection for q, k and v and one for
    #: gate and up, fused attention and norms, losses masked; 'grouped' (MindSpore): groups of
    #: queries as an axis, scaled queries, norms with a root, gelu and loss written out
    variant: str = ""
    has_query_one: bool = True  #: norms of queries and keys multiply by 1 + w, else by w
    is_scale_rounded: bool = False  #: the root of HIDDEN is a bfloat16
    local_base: float = LOCAL_BASE  #: rotary base of the sliding layers
    window: int = WINDOW
    are_keys_tiled: bool = False  #: keys and values repeated as 0 1 0 1, not as 0 0 1 1
    has_cap: bool = True  #: of the logits
    ignore_index: int = PADDING  #: label that does not count
    is_cap_straight: bool = False  #: the gradient passes the soft cap as it is
    is_statistic_stopped: bool = False  #: no gradient through the root in the last norm
    query_scalar: int = QUERY_SCALAR  #: scores are divided by its root
    is_sum_normed: bool = False  #: the norm behind the feed-forward layer is behind the sum
    activation: str = "gelu_tanh"  #: of the feed-forward layers; or 'gelu_erf'
    is_turned_first: bool = False  #: queries and keys are turned, then normed
    are_scores_capped: bool = False  #: as logits are, by SCORE_CAP
    group_gradient: float = 1.0  #: the gradient of keys and values is multiplied by it
    global_divisor: float = 1.0  #: positions are divided by it in the layers without a window
    is_head_stopped: bool = False  #: no gradient from the logits to the table
    is_turn_repeated: bool = False  #: gradients of queries and keys are turned as these, not back
    are_values_normed: bool = False  #: by head, without a weight
    are_windows_odd: bool = False  #: windows are in the odd layers; PyTorch only
    label_shift: int = 1  #: places from a token to its label; MindSpore only
    are_scores_half: bool = False  #: scores and their softmax in bfloat16; PyTorch only
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(learning_rate=5e-3, beta2=0.95, weight_decay=0.1)
    )

    def embedding_scale(self) -> float:
        """Return the factor of the embedding."""
        scale = np.array([HIDDEN**0.5], dtype=np.float32)
        return float((round_bfloat16(scale) if self.is_scale_rounded else scale)[0])

    def frequencies(self, layer: int) -> np.ndarray:
        """Return the angles between two tokens, float32 (HEAD_DIM // 2,)."""
        base = self.local_base if is_sliding(layer) else GLOBAL_BASE
        divisor = 1.0 if is_sliding(layer) else self.global_divisor
        return (base ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM) / divisor).astype(np.float32)

    def rope(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Return cosine and sine of all positions, float32 (SEQ, HEAD_DIM), the same halves."""
        angles = np.outer(np.arange(SEQ), self.frequencies(layer))
        angles = np.concatenate([angles, angles], axis=1)
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def mask(self, layer: int) -> np.ndarray:
        """Return (SEQ, SEQ) bool, true where a query (row) must not attend."""
        distances = np.arange(SEQ)[:, None] - np.arange(SEQ)
        is_far = distances >= self.window if is_sliding(layer) else False
        return (distances < 0) | is_far

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return tokens, int32 (BATCH, SEQ)."""
        rng = np.random.default_rng(SEED + 1)
        is_token = np.arange(SEQ) < np.array(LENGTHS)[:, None]
        return ((rng.integers(1, VOCAB, (BATCH, SEQ)) * is_token).astype(np.int32),)


def is_sliding(layer: int) -> bool:
    """Return whether a layer has a window."""
    return layer % 2 == 0


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_norm(name: str, length: int) -> None:
        values = 0.3 * weights.rng.standard_normal(length)
        weights[f"{name}.weight"] = values.astype(np.float32)

    weights.add_table("embedding", VOCAB, HIDDEN, deviation=0.5)
    for n in range(LAYERS):
        path = f"layers.{n}"
        for norm in ("attention_norm", "attention_post_norm", "ffn_norm", "ffn_post_norm"):
            add_norm(f"{path}.{norm}", HIDDEN)
        weights.add_matrix(f"{path}.q", HEADS * HEAD_DIM, HIDDEN)
        weights.add_matrix(f"{path}.k", KV_HEADS * HEAD_DIM, HIDDEN)
        weights.add_matrix(f"{path}.v", KV_HEADS * HEAD_DIM, HIDDEN)
        weights.add_matrix(f"{path}.o", HIDDEN, HEADS * HEAD_DIM)
        add_norm(f"{path}.q_norm", HEAD_DIM)
        add_norm(f"{path}.k_norm", HEAD_DIM)
        weights.add_matrix(f"{path}.gate", FFN, HIDDEN)
        weights.add_matrix(f"{path}.up", FFN, HIDDEN)
        weights.add_matrix(f"{path}.down", HIDDEN, FFN)
    add_norm("norm", HIDDEN)
    return Model("gemma", weights)
