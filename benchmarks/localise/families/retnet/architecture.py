"""A language model of retention in NumPy: sizes, knobs, weights, constant tables and batch.

Multi-scale retention (https://arxiv.org/abs/2307.08621, section 2) in its parallel form: queries
and keys are rotated by their positions, each head has its own decay, scores are normalized by the
decays and by their own sum, each head of the result has its own norm (a group norm), and a swish
gate multiplies it. Both sublayers begin with an RMS norm. The feed-forward is gated too. The head
is the embedding. Labels are smoothed. Weights, linear ones (out, in) without bias:

    embedding.weight (VOCAB, HIDDEN)
    layers.N.: norm1, retention.{q,k,v,g,o}, retention.norm, norm2, mlp.{gate,up,down}
    norm                              RMS norms have a weight, the group norm also a bias
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

VOCAB, HIDDEN, HEADS, FFN, LAYERS = 64, 32, 4, 48, 2
VALUE = 2 * HIDDEN  #: numbers of all values of a token
KEY_DIM, VALUE_DIM = HIDDEN // HEADS, VALUE // HEADS  #: of a head
LENGTHS = (14, 11, 14, 8)  #: tokens of each sequence
BATCH, SEQ = len(LENGTHS), max(LENGTHS)
PADDING, IGNORED = 0, -100  #: a token; its label
BASE = 10000.0  #: of the rotation
FIRST_DECAY, LAST_DECAY = 5, 9  #: exponents of two; the last one is that of another library
MAX_SUM = 5e4  #: of a row of scores that it is divided by; at least 1
SMOOTHING = 0.1
EMBEDDING_SCALE = HIDDEN**0.5
EPS = 1e-6
PEAK_RATE, WARMUP_STEPS, ALL_STEPS, STEP = 6e-3, 10, 100, 40
SEED = 181


def get_linear_rate() -> float:
    """Return the learning rate of STEP, which falls to zero along a line."""
    return PEAK_RATE * (ALL_STEPS - STEP) / (ALL_STEPS - WARMUP_STEPS)


def get_cosine_rate() -> float:
    """Return the learning rate of STEP, which falls to zero along a cosine."""
    share = (STEP - WARMUP_STEPS) / (ALL_STEPS - WARMUP_STEPS)
    return PEAK_RATE * (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'fused' (PyTorch): one projection for queries, keys, values and
    #: gate, one for gate and up, retention by einsum, the framework's RMS norm, weighted losses;
    #: 'written' (MindSpore): norms, swish and losses in plain arithmetic, decays from positions
    variant: str = ""
    are_decays_spread: bool = False  #: exponents are equally spaced up to LAST_DECAY
    has_last_frequency: bool = True  #: the last one is 1 / BASE
    norm_groups: int = HEADS  #: of the result of retention
    is_head_norm_rms: bool = False  #: each head is divided by its root mean square, not centered
    residual_scale: float = 1.0  #: what a sublayer's result is added to is multiplied by it
    is_gate_early: bool = False  #: the gate multiplies the result before its norm
    are_products_half: bool = False  #: those of the last layer's retention in float16
    #: the smoothed share belongs to the other classes only, not to the label
    are_others_smoothed: bool = False
    loss_reduction: str = "tokens"  #: or 'sequences': the mean of the means of sequences
    loss_base: float = math.e  #: of the logarithms in the loss
    are_scores_stopped: bool = False  #: no gradient through the normalized scores
    embedding_gradient: float = 1.0  #: of the embedded tokens is multiplied by it
    is_swish_gate_constant: bool = False  #: the sigmoid is, for the gradient; MindSpore only
    are_decays_by_example: bool = False  #: an example has one decay, not a head; PyTorch only
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(learning_rate=get_linear_rate(), weight_decay=0.05)
    )

    def frequencies(self) -> np.ndarray:
        """Return the frequencies of the pairs of a query or key, float32 (KEY_DIM / 2,)."""
        half = KEY_DIM // 2
        divisor = half - 1 if self.has_last_frequency else half
        return (BASE ** (-np.arange(half) / divisor)).astype(np.float32)

    def log_decays(self) -> np.ndarray:
        """Return the logarithms of the decays of the heads, float32 (HEADS,)."""
        exponents = FIRST_DECAY + np.arange(HEADS)
        if self.are_decays_spread:
            exponents = np.linspace(FIRST_DECAY, LAST_DECAY, HEADS)
        return np.log(1 - 2.0**-exponents).astype(np.float32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return tokens and labels, the tokens behind them, int32 (batch, SEQ)."""
        rng = np.random.default_rng(SEED + 1)
        tokens = np.full((BATCH, SEQ), PADDING, np.int32)
        labels = np.full((BATCH, SEQ), IGNORED, np.int32)
        for row, length in enumerate(LENGTHS):
            words = rng.integers(PADDING + 1, VOCAB, length + 1)
            tokens[row, :length], labels[row, :length] = words[:-1], words[1:]
        return tokens, labels


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_table("embedding", VOCAB, HIDDEN, deviation=HIDDEN**-0.5)
    for n in range(LAYERS):
        path = f"layers.{n}"
        weights.add_norm(f"{path}.norm1", HIDDEN, has_bias=False)
        weights.add_matrix(f"{path}.retention.q", HIDDEN, HIDDEN)
        weights.add_matrix(f"{path}.retention.k", HIDDEN, HIDDEN)
        weights.add_matrix(f"{path}.retention.v", VALUE, HIDDEN)
        weights.add_matrix(f"{path}.retention.g", VALUE, HIDDEN)
        weights.add_matrix(f"{path}.retention.o", HIDDEN, VALUE)
        weights.add_norm(f"{path}.retention.norm", VALUE)
        weights.add_norm(f"{path}.norm2", HIDDEN, has_bias=False)
        weights.add_matrix(f"{path}.mlp.gate", FFN, HIDDEN)
        weights.add_matrix(f"{path}.mlp.up", FFN, HIDDEN)
        weights.add_matrix(f"{path}.mlp.down", HIDDEN, FFN)
    weights.add_norm("norm", HIDDEN, has_bias=False)
    return Model("retnet", weights)
