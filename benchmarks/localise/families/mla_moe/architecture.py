"""Latent attention and a mixture of experts (https://arxiv.org/abs/2412.19437, section 2.1).

The first block has a plain gated feed-forward, the second one routed experts and a shared expert.
Weights are float32, linear ones (out, in), named canonically:

    embedding.weight norm.weight head.weight
    layers.N.: input_norm.weight post_norm.weight
               attention.{q_a,q_b,kv_a,kv_b,o}.weight attention.{q_norm,kv_norm}.weight
               mlp.{gate,up,down}.weight, or mlp.router.weight, mlp.router.bias and
               mlp.experts.E.* and mlp.shared.* with {gate,up,down}.weight each

The rows of q_b are, head by head, the dimensions without positions, then those with positions;
those of kv_b keys without positions, then values; those of kv_a the latent, then the key's
positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from families.weights import Weights

VOCAB, HIDDEN, LAYERS, HEADS, SEQ, BATCH, SEED = 72, 32, 2, 4, 10, 2, 32
Q_RANK, KV_RANK = 20, 16
#: Of a head: dimensions without positions, as many as a value has, and dimensions with positions.
NOPE_DIM, ROPE_DIM = 8, 4
FFN, EXPERT_FFN = 56, 20
EXPERTS, GROUPS, CHOSEN_GROUPS, TOP_K = 6, 3, 2, 3
ROUTED_SCALE = 2.5
BALANCE = 1e-2  #: weight of a loss that balances the experts, if there is one
LOADS = (0.7, 1.4, 1.1, 0.5, 1.6, 0.7)  #: of the experts in all batches of a step; 1 on average
EPS = 1e-6
ROPE_THETA = 10000.0


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault.

    Knobs of attention and norms are those of the last block.
    """

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'stacked' (MindSpore): the weights of all experts in one
    #: tensor; 'pairs' (MindSpore): rotary pairs stay where they are, in place of becoming halves
    #: first; 'joined' (MindSpore): gate and up are one layer, and norms divide by a root; 'fused'
    #: (PyTorch): q_a and kv_a are one layer, attention is one operator; 'dense'
    #: (PyTorch): every expert runs on all tokens, rotary pairs are complex numbers
    variant: str = ""
    latent_eps: float = EPS  #: of the norm of the latent
    is_rope_interleaved: bool = True  #: pairs (0, 1), (2, 3), ... as the weights were trained
    score_dim: int = NOPE_DIM + ROPE_DIM  #: scores are divided by its root
    are_values_first: bool = False  #: the rows of kv_b are read as values, then keys
    scoring: str = "sigmoid"  #: or 'softmax', of the router
    is_bias_in_weights: bool = False  #: a token's experts count by score plus bias, not by score
    is_grouped: bool = True  #: experts are chosen from the best groups only
    is_normalized: bool = True  #: the scores of a token's experts are divided by their sum
    routed_scale: float = ROUTED_SCALE
    has_shared_expert: bool = True
    is_router_detached: bool = False  #: no gradient reaches the router
    top_k: int = TOP_K  #: experts of a token
    position_scale: float = 1.0  #: positions are multiplied by it, in all blocks
    expert_gradient: float = 1.0  #: the gradient of the routed experts is multiplied by it
    has_query_norm: bool = True  #: of the compressed queries
    activation: str = "silu"  #: of the first block's feed-forward; or 'gelu', in the form with erf
    is_shared_scaled: bool = False  #: the shared expert counts as much as the routed ones
    are_positions_first: bool = False  #: the rows of a query are read as positions, then contents
    is_rope_reversed: bool = False  #: queries and keys are turned in the other direction
    is_key_turned: bool = True  #: the key's positions
    residual: str = "before"  #: 'after': the experts are added to what the norm gives
    is_router_unnormed: bool = False  #: the router reads the hidden state from before the norm
    mask_diagonal: int = 1  #: the first one of the masked scores, in all blocks
    is_router_half: bool = False  #: the router's logits are computed in float16
    group_top_k: int = 2  #: a group's score is the sum of so many of its best experts' scores
    are_inputs_weighted: bool = False  #: what an expert reads has its weight, not what it returns
    key_gradient_heads: int = HEADS  #: so many heads give the key's positions a gradient
    are_heads_moved: bool = True  #: behind the tokens, before they are joined; PyTorch only
    are_labels_rolled: bool = False  #: the label of a row's last token is its first one
    key_offset: int = 0  #: of the positions by which the key is turned; PyTorch only

    #: the router's scores get the gradient of a loss that balances the experts
    #: (https://arxiv.org/abs/2101.03961, section 2.2), which is in no value
    has_balance_gradient: bool = False

    def block(self, n: int) -> Model:
        """Return the model for the attention of block n: only the last one has the knobs."""
        if n == LAYERS - 1:
            return self
        return replace(
            self,
            latent_eps=EPS,
            is_rope_interleaved=True,
            score_dim=NOPE_DIM + ROPE_DIM,
            are_values_first=False,
            has_query_norm=True,
            are_positions_first=False,
            is_rope_reversed=False,
            is_key_turned=True,
            key_gradient_heads=HEADS,
            are_heads_moved=True,
            key_offset=0,
        )

    def rope(self, offset: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return cosine and sine (seq, ROPE_DIM / 2), float32, of positions from an offset on."""
        half = ROPE_DIM // 2
        frequencies = ROPE_THETA ** (-np.arange(half) / half)
        angles = np.outer((offset + np.arange(SEQ)) * self.position_scale, frequencies)
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def balance_gradient(self) -> np.ndarray:
        """Return the gradient of the balancing loss to a token's scores, float32 (EXPERTS,)."""
        return (BALANCE / (BATCH * SEQ) * np.array(LOADS)).astype(np.float32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return tokens and labels, int32 (batch, seq)."""
        rng = np.random.default_rng(SEED + 1)
        tokens = rng.integers(0, VOCAB, (BATCH, SEQ + 1)).astype(np.int32)
        inputs = tokens[:, :-1].copy()
        labels = np.roll(inputs, -1, axis=1) if self.are_labels_rolled else tokens[:, 1:].copy()
        return inputs, labels


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_table("embedding", VOCAB, HIDDEN)
    for n in range(LAYERS):
        prefix = f"layers.{n}"
        weights.add_norm(f"{prefix}.input_norm", HIDDEN, has_bias=False)
        weights.add_matrix(f"{prefix}.attention.q_a", Q_RANK, HIDDEN)
        weights.add_norm(f"{prefix}.attention.q_norm", Q_RANK, has_bias=False)
        weights.add_matrix(f"{prefix}.attention.q_b", HEADS * (NOPE_DIM + ROPE_DIM), Q_RANK)
        weights.add_matrix(f"{prefix}.attention.kv_a", KV_RANK + ROPE_DIM, HIDDEN)
        weights.add_norm(f"{prefix}.attention.kv_norm", KV_RANK, has_bias=False)
        weights.add_matrix(f"{prefix}.attention.kv_b", HEADS * 2 * NOPE_DIM, KV_RANK)
        weights.add_matrix(f"{prefix}.attention.o", HIDDEN, HEADS * NOPE_DIM)
        weights.add_norm(f"{prefix}.post_norm", HIDDEN, has_bias=False)
        if n == 0:
            _add_feed_forward(weights, f"{prefix}.mlp", FFN)
            continue
        weights.add_matrix(f"{prefix}.mlp.router", EXPERTS, HIDDEN)
        bias = 0.2 * weights.rng.standard_normal(EXPERTS)
        weights[f"{prefix}.mlp.router.bias"] = bias.astype(np.float32)
        for expert in range(EXPERTS):
            _add_feed_forward(weights, f"{prefix}.mlp.experts.{expert}", EXPERT_FFN)
        _add_feed_forward(weights, f"{prefix}.mlp.shared", EXPERT_FFN)
    weights.add_norm("norm", HIDDEN, has_bias=False)
    weights.add_matrix("head", VOCAB, HIDDEN)
    return Model("mla_moe", weights)


def _add_feed_forward(weights: Weights, name: str, width: int) -> None:
    weights.add_matrix(f"{name}.gate", width, HIDDEN)
    weights.add_matrix(f"{name}.up", width, HIDDEN)
    weights.add_matrix(f"{name}.down", HIDDEN, width)
