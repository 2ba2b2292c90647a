"""A hybrid language model as Qwen3-Next: sizes, knobs, weights, batch.

Most layers mix tokens by the gated delta rule (https://arxiv.org/abs/2412.06464, section 3.1): q, k
and v pass a causal depthwise convolution and SiLU, q and k are divided by their length, and a state
S (KEY_DIM, VALUE_DIM) for each head of values is

    S = exp(g) S;  S = S + k (beta (v - S^T k))^T;  y = S^T q / sqrt(KEY_DIM)

with g = -exp(A_log) softplus(a(x) + dt_bias) and beta = sigmoid(b(x)). Heads of values share a head
of keys, neighbours the same one. The output is norm(y) * silu(z(x)). The last layer is attention
with groups of queries, norms of queries and keys, rotation of the first ROTARY_DIM dimensions and
a sigmoid gate on what it returns. Norms multiply by 1 + w, only that of the delta rule by w.

Layer MOE_LAYER has experts: the best TOP_K by softmax, their shares divided by their sum, and a
shared one times a sigmoid. A second head (https://arxiv.org/abs/2412.19437, section 2.2) joins the
state of a token, before the last norm, with the embedding of the next one and predicts the token
after that; its loss counts MTP_WEIGHT. Weights are float32, linear ones (out, in):

    embedding norm head
    layers.N.  norm1 norm2
               delta.{q, k, v, z, b, a, o}, delta.conv.{q, k, v} (channels, 1, KERNEL),
               delta.A_log, delta.dt_bias (V_HEADS,), delta.norm (VALUE_DIM,), or
               attention.{q, k, v, gate, o}, attention.{q_norm, k_norm} (HEAD_DIM,)
               mlp.{gate, up, down}, or
               moe.router, moe.experts.E.{gate, up, down}, moe.shared.{...}, moe.shared_gate
    mtp.  embedding_norm hidden_norm, join (HIDDEN, of the embedding, then of the state), norm
          layer.  as an attention layer
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

VOCAB, HIDDEN, LAYERS, SEQ, BATCH, SEED = 60, 32, 3, 8, 2, 241
K_HEADS, V_HEADS, KEY_DIM, VALUE_DIM, KERNEL = 2, 4, 8, 8, 4
KEYS, VALUES = K_HEADS * KEY_DIM, V_HEADS * VALUE_DIM
HEADS, KV_HEADS, HEAD_DIM, ROTARY_DIM = 4, 2, 8, 4
ROPE_THETA = 10000.0
FFN, EXPERT_FFN, EXPERTS, TOP_K, MOE_LAYER = 48, 20, 4, 2, 1
EPS = 1e-6
MTP_WEIGHT = 0.3
IGNORED = -100  #: label of a token of the prompt
PROMPTS = (3, 5)  #: tokens whose prediction has no loss


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first: the delta rule step by step; 'parallel' (MindSpore): all steps
    #: at once by the inverse of a triangular matrix, stacked experts, mint; 'chunked' (PyTorch): in
    #: chunks, fused attention and norms; 'separate' (PyTorch): a layer for each projection, all
    #: experts on all tokens, einsum
    variant: str = ""
    are_heads_joined: bool = False  #: q and k divided by the length of all heads; MindSpore only
    beta_factor: float = 1.0  #: MindSpore only
    frequency_dim: int = ROTARY_DIM  #: divisor of the exponents of frequencies; MindSpore only
    is_next_embedded: bool = True  #: the second head reads the next token; MindSpore only
    is_recall_early: bool = False  #: v is compared with the state before its decay; PyTorch only
    has_gated_one: bool = False  #: the norm of the delta rule multiplies by 1 + w; PyTorch only
    is_decay_half: bool = False  #: g is computed in bfloat16; PyTorch only
    is_mtp_mean_of_all: bool = False  #: its losses are divided by all tokens; PyTorch only
    is_total_detached: bool = False  #: no gradient through the sum of shares; PyTorch only
    decay_gradient: float = 1.0  #: factor of the gradient of g; MindSpore only
    is_mtp_detached: bool = False  #: no gradient from the second head to states; MindSpore only
    is_beta_derived: bool = True  #: its gradient is multiplied by the sigmoid's; PyTorch only
    are_heads_tiled: bool = False  #: heads of keys take turns with heads of values; MindSpore only
    is_state_stopped: bool = False  #: no gradient from the second half to the first; PyTorch only
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(
            learning_rate=2e-3, beta2=0.95, weight_decay=0.1, clip=0.5
        )
    )

    def frequencies(self) -> np.ndarray:
        """Return the angles between two tokens, float32 (ROTARY_DIM // 2,)."""
        exponents = -np.arange(0, ROTARY_DIM, 2) / self.frequency_dim
        return (ROPE_THETA**exponents).astype(np.float32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return tokens and labels, int32 (BATCH, SEQ + 1): the second head needs one more."""
        rng = np.random.default_rng(SEED + 1)
        tokens = rng.integers(0, VOCAB, (BATCH, SEQ + 2)).astype(np.int32)
        is_prompt = np.arange(SEQ + 1) < np.array(PROMPTS)[:, None]
        labels = np.where(is_prompt, IGNORED, tokens[:, 1:]).astype(np.int32)
        return tokens[:, :-1].copy(), labels


def is_attention(layer: int) -> bool:
    """Return whether a layer is attention, not the delta rule."""
    return layer == LAYERS - 1


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_table("embedding", VOCAB, HIDDEN)
    for n in range(LAYERS):
        _add_zero_norm(weights, f"layers.{n}.norm1", HIDDEN)
        _add_zero_norm(weights, f"layers.{n}.norm2", HIDDEN)
        if is_attention(n):
            _add_attention(weights, f"layers.{n}.attention")
        else:
            _add_delta(weights, f"layers.{n}.delta")
        if n == MOE_LAYER:
            _add_experts(weights, f"layers.{n}.moe")
        else:
            _add_feed_forward(weights, f"layers.{n}.mlp", FFN)
    _add_zero_norm(weights, "norm", HIDDEN)
    weights.add_matrix("head", VOCAB, HIDDEN)
    for name in ("embedding_norm", "hidden_norm", "norm", "layer.norm1", "layer.norm2"):
        _add_zero_norm(weights, f"mtp.{name}", HIDDEN)
    weights.add_matrix("mtp.join", HIDDEN, 2 * HIDDEN)
    _add_attention(weights, "mtp.layer.attention")
    _add_feed_forward(weights, "mtp.layer.mlp", FFN)
    return Model("deltanet", weights)


def _add_zero_norm(weights: Weights, name: str, length: int) -> None:
    values = 0.2 * weights.rng.standard_normal(length)
    weights[f"{name}.weight"] = values.astype(np.float32)


def _add_delta(weights: Weights, path: str) -> None:
    for name, width in (("q", KEYS), ("k", KEYS), ("v", VALUES)):
        weights.add_matrix(f"{path}.{name}", width, HIDDEN)
        weights.add_matrix(f"{path}.conv.{name}", width, 1, KERNEL)
    weights.add_matrix(f"{path}.z", VALUES, HIDDEN)
    weights.add_matrix(f"{path}.b", V_HEADS, HIDDEN)
    weights.add_matrix(f"{path}.a", V_HEADS, HIDDEN)
    decay = weights.rng.uniform(0.3, 2.0, V_HEADS)
    weights[f"{path}.A_log"] = np.log(decay).astype(np.float32)
    dt_bias = -1 + 0.5 * weights.rng.standard_normal(V_HEADS)
    weights[f"{path}.dt_bias"] = dt_bias.astype(np.float32)
    weights.add_norm(f"{path}.norm", VALUE_DIM, has_bias=False)
    weights.add_matrix(f"{path}.o", HIDDEN, VALUES)


def _add_attention(weights: Weights, path: str) -> None:
    for name, heads in (("q", HEADS), ("gate", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        weights.add_matrix(f"{path}.{name}", heads * HEAD_DIM, HIDDEN)
    _add_zero_norm(weights, f"{path}.q_norm", HEAD_DIM)
    _add_zero_norm(weights, f"{path}.k_norm", HEAD_DIM)
    weights.add_matrix(f"{path}.o", HIDDEN, HEADS * HEAD_DIM)


def _add_experts(weights: Weights, path: str) -> None:
    weights.add_matrix(f"{path}.router", EXPERTS, HIDDEN)
    for expert in range(EXPERTS):
        _add_feed_forward(weights, f"{path}.experts.{expert}", EXPERT_FFN)
    _add_feed_forward(weights, f"{path}.shared", EXPERT_FFN)
    weights.add_matrix(f"{path}.shared_gate", 1, HIDDEN)


def _add_feed_forward(weights: Weights, path: str, width: int) -> None:
    weights.add_matrix(f"{path}.gate", width, HIDDEN)
    weights.add_matrix(f"{path}.up", width, HIDDEN)
    weights.add_matrix(f"{path}.down", HIDDEN, width)
