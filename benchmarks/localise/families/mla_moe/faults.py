"""Faults of latent attention and of the mixture of experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from claims import Anywhere, Claim, Ratio, Values, Words

from families.fault import Fault, change_model, change_weight
from families.mla_moe.architecture import HEADS, LAYERS, NOPE_DIM, Model

EXCHANGED = (1, 4)  #: experts


def _say(injected: str, clean: str = "") -> Callable[[Any, Any], Sequence[Claim]]:
    return lambda faulty, clean_model: [Words(injected, clean)]


def _exchange_experts(model: Model) -> Model:
    """Give each of two experts the weights of the other."""
    weights = dict(model.weights)
    first, second = (f"layers.1.mlp.experts.{expert}" for expert in EXCHANGED)
    for part in ("gate", "up", "down"):
        names = [f"{path}.{part}.weight" for path in (first, second)]
        weights[names[0]], weights[names[1]] = model.weights[names[1]], model.weights[names[0]]
    return replace(model, weights=weights)


def _join_ranks(model: Model) -> Model:
    """Join the rows of gate and up of two tensor-parallel ranks, (gate, up, gate, up), as they are.

    What is read as gate has the gate and the up of the first rank.
    """
    path = "layers.0.mlp"
    gate, up = (np.split(model.weights[f"{path}.{part}.weight"], 2) for part in ("gate", "up"))
    first, second = (np.concatenate(parts) for parts in zip(gate, up, strict=True))
    weights = {**model.weights, f"{path}.gate.weight": first, f"{path}.up.weight": second}
    return replace(model, weights=weights)


def _claim_score_scale(faulty: Any, clean: Any) -> Sequence[Claim]:
    injected, expected = faulty.score_dim**-0.5, clean.score_dim**-0.5
    return [Ratio(injected / expected), Values(injected, expected)]


FAULTS: Mapping[str, Fault] = {
    "rope_layout": Fault(
        "rotary halves for weights of interleaved pairs",
        "rope-layout",
        change_model(is_rope_interleaved=False),
        _say("halves", "interleaved"),
    ),
    "latent_eps": Fault(
        "the norm of the latent has eps 1e-2 for 1e-6",
        "epsilon",
        change_model(latent_eps=1e-2),
        lambda faulty, clean: [Values(faulty.latent_eps, clean.latent_eps)],
    ),
    "score_scale": Fault(
        "scores divided by the root of the dimensions without positions",
        "scale",
        change_model(score_dim=NOPE_DIM),
        _claim_score_scale,
    ),
    "values_first": Fault(
        "keys and values exchanged when their projection is split",
        "split-order",
        change_model(are_values_first=True),
    ),
    "bias_in_weights": Fault(
        "the balancing bias counts in the experts' weights",
        "router-bias",
        change_model(is_bias_in_weights=True),
        lambda faulty, clean: [Anywhere("bias")],
    ),
    "groups_ignored": Fault(
        "experts chosen from all groups",
        "router-groups",
        change_model(is_grouped=False),
        lambda faulty, clean: [Anywhere("group")],
    ),
    "not_normalized": Fault(
        "the weights of a token's experts not normalized",
        "router-normalisation",
        change_model(is_normalized=False),
        _say("not normalized", "are normalized"),
    ),
    "softmax_scores": Fault(
        "softmax scores for sigmoid",
        "router-normalisation",
        change_model(scoring="softmax"),
        _say("softmax", "sigmoid"),
    ),
    "routed_scale": Fault(
        "the routed experts' scaling factor left out",
        "constant-factor",
        change_model(routed_scale=1.0),
        lambda faulty, clean: [Ratio(faulty.routed_scale / clean.routed_scale)],
    ),
    "shared_missing": Fault(
        "the shared expert left out",
        "expert-missing",
        change_model(has_shared_expert=False),
        lambda faulty, clean: [Anywhere("shared")],
    ),
    "router_stopped": Fault(
        "no gradient reaches the router",
        "gradient-stopped",
        change_model(is_router_detached=True),
    ),
    "top_k": Fault(
        "a token has two experts for three",
        "router-top-k",
        change_model(top_k=2),
        lambda faulty, clean: [Values(faulty.top_k, clean.top_k)],
    ),
    "position_scale": Fault(
        "positions divided by 4, as for a longer context",
        "rope-scaling",
        change_model(position_scale=0.25),
        lambda faulty, clean: [Ratio(faulty.position_scale / clean.position_scale)],
    ),
    "expert_gradient": Fault(
        "the gradient of the routed experts is summed over two ranks that have the same",
        "gradient-scaled",
        change_model(expert_gradient=2.0),
        lambda faulty, clean: [Ratio(faulty.expert_gradient / clean.expert_gradient)],
        row="20",
    ),
    "query_norm": Fault(
        "no norm of the compressed queries",
        "norm-missing",
        change_model(has_query_norm=False),
        lambda faulty, clean: [Anywhere("norm")],
    ),
    "gelu_for_silu": Fault(
        "gelu for silu in the first feed-forward",
        "activation-kind",
        change_model(activation="gelu"),
        _say("gelu", "silu|swish"),
    ),
    "experts_exchanged": Fault(
        "the weights of two experts exchanged on load",
        "experts-permuted",
        _exchange_experts,
        lambda faulty, clean: [Anywhere(rf"expert.*\b{expert}\b") for expert in EXCHANGED],
        equivalents=("weight-swapped",),
    ),
    "shared_scaled": Fault(
        "the routed experts' scaling factor multiplies the shared expert too",
        "constant-factor",
        change_model(is_shared_scaled=True),
        lambda faulty, clean: [Ratio(clean.routed_scale)],
        equivalents=("scale", "residual-scale"),
    ),
    "positions_first": Fault(
        "the rows of a query are split as positions, then contents",
        "split-order",
        change_model(are_positions_first=True),
        equivalents=("input-order", "heads-permuted", "input-source"),
    ),
    "rope_direction": Fault(
        "the minus sign is at the other half when queries and keys are turned",
        "rope-direction",
        change_model(is_rope_reversed=True),
        lambda faulty, clean: [Anywhere("sign|direction|sin|negat|minus|-1")],
        equivalents=("constant-factor", "scale"),
    ),
    "key_not_turned": Fault(
        "the key that all heads share is not turned by its positions",
        "rope-missing",
        change_model(is_key_turned=False),
        equivalents=("missing-step", "input-source", "position-offset"),
    ),
    "residual_after": Fault(
        "the experts are added to what the norm gives, not to what it reads",
        "residual-order",
        change_model(residual="after"),
        equivalents=("input-source", "skip-source", "layer-order"),
    ),
    "router_unnormed": Fault(
        "the router reads the hidden state from before the norm",
        "input-source",
        change_model(is_router_unnormed=True),
        equivalents=("norm-missing", "missing-step", "layer-order"),
    ),
    "mask_shifted": Fault(
        "a token sees the next one",
        "mask-shifted",
        change_model(mask_diagonal=2),
        equivalents=("mask-kind", "mask-missing", "missing-step"),
    ),
    "router_half": Fault(
        "the router's logits are computed in float16",
        "low-precision",
        change_model(is_router_half=True),
        lambda *_: [Words("float16|half")],
    ),
    "group_best": Fault(
        "a group's score is that of its best expert, as in DeepSeek-V2, not of its best two",
        "router-groups",
        change_model(group_top_k=1),
        lambda *_: [Anywhere("group")],
        equivalents=("router-top-k", "missing-step", "input-source", "argument"),
    ),
    "float8_halved": Fault(
        "the float8 numbers of a weight are read as e4m3fnuz, whose numbers are half of e4m3fn's",
        "weight-scaled",
        change_weight(f"layers.{LAYERS - 1}.attention.kv_b.weight", lambda weight: weight / 2),
        lambda *_: [Ratio(0.5)],
        equivalents=("constant-factor", "scale"),
    ),
    "balance_gradient": Fault(
        "the router gets the gradient of a loss that balances the experts, which the loss has not: "
        "Megatron-LM adds it in the backward pass",
        "missing-term",
        change_model(has_balance_gradient=True),
        equivalents=("missing-step", "constant-offset", "skip-missing", "z-loss", "loss-weight"),
    ),
    "ranks_joined": Fault(
        "gate and up of two tensor-parallel ranks joined rank by rank: half of each is the other's",
        "weight-rows",
        _join_ranks,
        lambda *_: [Anywhere(r"(?i)\brows?\b|gate|\bup\b|w1|w3|order")],
        equivalents=(
            "gate-up-swapped",
            "weight-swapped",
            "heads-permuted",
            "split-order",
            "row-shift",
        ),
    ),
    "inputs_weighted": Fault(
        "a token is multiplied by an expert's weight before the expert reads it, as in Llama 4",
        "layer-order",
        change_model(are_inputs_weighted=True),
        equivalents=("input-source", "missing-step", "constant-factor", "scale"),
    ),
    "key_gradient": Fault(
        "the key that all heads share gets no gradient from the heads of the other tensor-parallel "
        "rank: it is not summed over ranks",
        "gradient-stopped",
        change_model(key_gradient_heads=HEADS // 2),
        equivalents=("missing-term", "gradient-scaled", "missing-step"),
    ),
    "labels_rolled": Fault(
        "labels are rolled tokens: that of a row's last token is its first one",
        "loss-target",
        change_model(are_labels_rolled=True),
        equivalents=("batch", "label-shift", "input-source"),
    ),
    "heads_unmoved": Fault(
        "heads are joined as they are, in front of the tokens: the second transposition is missing",
        "axes-swapped",
        change_model(are_heads_moved=False),
        equivalents=("missing-step", "heads-permuted", "input-order"),
    ),
    "router_bias_lost": Fault(
        "the router's balancing bias is zero, as it was initialized: it is a buffer, which the "
        "checkpoint's parameters do not hold",
        "zeroed",
        change_weight("layers.1.mlp.router.bias", np.zeros_like),
        lambda *_: [Anywhere(r"(?i)bias|zero")],
        equivalents=("router-bias", "bias-missing", "missing-term", "missing-step"),
    ),
    "key_late": Fault(
        "the key is turned by the position behind its own: the cache's length is read when the "
        "token is in it already",
        "position-offset",
        change_model(key_offset=1),
        lambda *_: [Anywhere(r"shift|offset|position|-?\b1\b")],
        equivalents=("row-shift", "input-source", "argument"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("rope_layout", "mindspore"),
    ("latent_eps", "mindspore"),
    ("score_scale", "pytorch"),
    ("values_first", "mindspore"),
    ("values_first", "pytorch"),
    ("bias_in_weights", "mindspore"),
    ("bias_in_weights", "pytorch"),
    ("groups_ignored", "pytorch"),
    ("groups_ignored", "mindspore"),
    ("not_normalized", "mindspore"),
    ("softmax_scores", "pytorch"),
    ("routed_scale", "pytorch"),
    ("shared_missing", "mindspore"),
    ("shared_missing", "pytorch"),
    ("router_stopped", "pytorch"),
    ("router_stopped", "mindspore"),
    ("top_k", "pytorch"),
    ("position_scale", "pytorch"),
    ("expert_gradient", "mindspore"),
    ("query_norm", "pytorch"),
    ("gelu_for_silu", "mindspore"),
    ("experts_exchanged", "pytorch"),
    ("shared_scaled", "mindspore"),
    ("positions_first", "pytorch"),
    ("rope_direction", "mindspore"),
    ("router_unnormed", "pytorch"),
    ("key_not_turned", "pytorch"),
    ("residual_after", "mindspore"),
    ("mask_shifted", "pytorch"),
    ("router_half", "mindspore"),
    ("group_best", "mindspore"),
    ("float8_halved", "pytorch"),
    ("balance_gradient", "mindspore"),
    ("ranks_joined", "pytorch"),
    ("inputs_weighted", "mindspore"),
    ("key_gradient", "pytorch"),
    ("labels_rolled", "mindspore"),
    ("heads_unmoved", "pytorch"),
    ("router_bias_lost", "mindspore"),
    ("key_late", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "stacked": ("stacked", ""),
    "layouts": ("pairs", "fused"),
    "dense": ("", "dense"),
    "pairs_dense": ("pairs", "dense"),
    "stacked_dense": ("stacked", "dense"),
    "joined": ("joined", ""),
}
