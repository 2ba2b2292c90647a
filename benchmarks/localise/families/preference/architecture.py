"""Preference training of a small Qwen in NumPy: sizes, knobs, weights and batch.

A Qwen 2 (https://arxiv.org/abs/2407.10671, section 2): x + f(norm(x)) with RMS norms, attention
with biases of queries, keys and values, HEADS // KV_HEADS queries that read the same key and value,
rotary halves, and down(silu(gate(x)) * up(x)). All its weights are frozen. Queries, values and the
down projection have adapters (https://arxiv.org/abs/2106.09685, section 4): SCALING * B(A(x)) is
added to what they give.

A row of a batch is a prompt, padded on its left, and an answer, padded on its right: those of all
chosen answers, then those of all rejected ones. A token sees itself and all earlier tokens that are
no padding. The policy is the model with its adapters, the reference policy the model without them,
and without gradient. With the sums of the logarithms of an answer's likelihoods, the margin is what
the policy prefers the chosen answer by, less what the reference does. The loss is that of DPO with
smoothed labels (https://arxiv.org/abs/2305.18290, equation 7; for labels that are wrong in
SMOOTHING of the pairs), plus SFT_WEIGHT times the cross entropy of the chosen answers' tokens
(https://arxiv.org/abs/2404.19733, equation 1). Weights:

    embedding.weight (VOCAB, HIDDEN)
    layers.N.  attention_norm, ffn_norm      norms
               q, k, v                       linear
               o, gate, up, down             linear without bias
               q, v, down  .a (RANK, in), .b (out, RANK)
    norm, head
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

VOCAB, HIDDEN, HEADS, KV_HEADS, FFN, LAYERS = 64, 48, 4, 2, 80, 2
HEAD_DIM, GROUP = HIDDEN // HEADS, HEADS // KV_HEADS
RANK, ALPHA = 6, 12
SCALING = ALPHA / RANK
ADAPTED = ("q", "v", "down")
ROPE_BASE, EPS = 1e6, 1e-6
BETA, SMOOTHING, SFT_WEIGHT = 0.2, 0.1, 0.2
PADDING = 0
PROMPT_LENGTHS, CHOSEN_LENGTHS, REJECTED_LENGTHS = (6, 4, 5), (9, 6, 7), (5, 8, 9)
PAIRS, PROMPT = len(PROMPT_LENGTHS), max(PROMPT_LENGTHS)
ANSWER = max(CHOSEN_LENGTHS + REJECTED_LENGTHS)
SEQ = PROMPT + ANSWER
SEED = 263


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'fused' (PyTorch): the framework's attention, norm and cross
    #: entropies; 'merged' (PyTorch): adapters are added to the weights, the loss is a softplus;
    #: 'written' (MindSpore): groups of queries as an axis, halves exchanged by a matrix, silu,
    #: norms and the logarithm of the sigmoid written out, labels one-hot
    variant: str = ""
    scaling: float = SCALING  #: of the adapters
    reduction: str = "sum"  #: of the logarithms of an answer's likelihoods; or 'mean'
    smoothing_kind: str = "conservative"  #: or 'robust'
    is_sft_stopped: bool = False  #: no gradient from the cross entropy
    is_answer_mask_late: bool = False  #: the mask of answers is that of the tokens that are read
    is_padding_masked: bool = True  #: in attention
    query_gradient: float = 1.0  #: factor of the gradient of what the B of queries reads
    is_reference_adapted: bool = False  #: the down projections of the reference have adapters
    are_pairs_adjacent: bool = False  #: chosen and rejected rows are read in turn, not by halves
    is_prompt_trained: bool = False  #: tokens of prompts count in the cross entropy, too
    rope_base: float = ROPE_BASE
    is_first_layer_stopped: bool = False  #: no gradient to the first layer
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(learning_rate=2e-2, weight_decay=0.1)
    )

    def angles(self) -> np.ndarray:
        """Return angles of all positions, float32 (SEQ, HEAD_DIM // 2)."""
        frequencies = self.rope_base ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        return np.outer(np.arange(SEQ), frequencies).astype(np.float32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return int32 prompts (PAIRS, PROMPT), chosen and rejected answers (PAIRS, ANSWER)."""
        rng = np.random.default_rng(SEED + 1)

        def draw(lengths: tuple[int, ...], longest: int) -> np.ndarray:
            is_token = np.arange(longest) < np.array(lengths)[:, None]
            return (rng.integers(1, VOCAB, is_token.shape) * is_token).astype(np.int32)

        prompts = draw(PROMPT_LENGTHS, PROMPT)[:, ::-1].copy()
        return prompts, draw(CHOSEN_LENGTHS, ANSWER), draw(REJECTED_LENGTHS, ANSWER)


def build_clean() -> Model:
    """Return the model without a fault; the adapters have been trained for a while."""
    weights = Weights(SEED)
    weights.add_table("embedding", VOCAB, HIDDEN)
    for n in range(LAYERS):
        path = f"layers.{n}"
        weights.add_norm(f"{path}.attention_norm", HIDDEN, has_bias=False)
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            weights.add_linear(f"{path}.{name}", heads * HEAD_DIM, HIDDEN)
        weights.add_matrix(f"{path}.o", HIDDEN, HIDDEN)
        weights.add_norm(f"{path}.ffn_norm", HIDDEN, has_bias=False)
        weights.add_matrix(f"{path}.gate", FFN, HIDDEN)
        weights.add_matrix(f"{path}.up", FFN, HIDDEN)
        weights.add_matrix(f"{path}.down", HIDDEN, FFN)
        for name in ADAPTED:
            n_out, n_in = weights[f"{path}.{name}.weight"].shape
            weights.add_table(f"{path}.{name}.a", RANK, n_in, deviation=n_in**-0.5)
            weights.add_table(f"{path}.{name}.b", n_out, RANK, deviation=0.08)
    weights.add_norm("norm", HIDDEN, has_bias=False)
    weights.add_matrix("head", VOCAB, HIDDEN)
    return Model("preference", weights)
