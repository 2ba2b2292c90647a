"""Layers of experts and their router, in the spelling of config.json and of Megatron's arguments.

Sources: megatron-core 0.16.1 transformer/moe/moe_utils.py (``topk_routing_with_score_function``),
models/gpt/gpt_layer_specs.py (``moe_layer_freq``), transformer/moe/shared_experts.py; transformers
models qwen2_moe, qwen3_moe (``mlp_only_layers``), deepseek_v2, deepseek_v3 and glm4_moe
(``first_k_dense_replace``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.errors import DumpError
from ..rulebook import ModelFamily
from ..weight_comparison.families import find_model_family
from .canonical import CanonicalCheckpoint

_EXPERTS = "num_experts"  #: in config.json, unless the family has another name
#: Name of the number of experts in the families that also count dense layers and shared experts.
_ROUTED_EXPERTS = "n_routed_experts"
#: Every model of Megatron with experts has it.
_ROUTER_ARGUMENT = "moe_router_topk"
_SCORES = "moe_router_score_function"
_NO_GROUPS = "greedy"  #: topk_method of DeepSeek V2 that chooses from all experts


def drop_unused_groups(facts: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Remove the numbers of groups of experts that the router of config.json does not read."""
    if settings.get("topk_method") == _NO_GROUPS:
        facts.pop("expert_groups", None)
        facts.pop("chosen_groups", None)


def list_expert_layers(model: CanonicalCheckpoint) -> list[bool]:
    """Return which layers have experts."""
    return [
        f"layers.{layer}.mlp.router.weight" in model.parameters for layer in range(model.n_layers)
    ]


def build_arguments(model: CanonicalCheckpoint) -> dict[str, Any]:
    """Return Megatron's arguments of the layers of experts and their router."""
    arguments = {
        "moe_layer_freq": [int(has_experts) for has_experts in list_expert_layers(model)],
        "moe_router_enable_expert_bias": model.has_parameter(".expert_bias"),
        "moe_shared_expert_gate": model.has_parameter(".mlp.shared_gate.weight"),
    }
    return {**arguments, **_build_router_arguments(model)}


def _build_router_arguments(model: CanonicalCheckpoint) -> dict[str, Any]:
    """Return how Megatron's router computes what the model's class of transformers computes.

    Megatron takes the softmax of the chosen experts, so that their weights add up to one, or with
    ``pre_softmax`` of all of them.
    """
    family = find_model_family(model.settings, model.rules)
    if family is None:
        return {}
    is_normalized = model.settings.get("norm_topk_prob", False)
    arguments: dict[str, Any] = {_SCORES: "softmax"}
    if _SCORES not in family.megatron:
        arguments["moe_router_pre_softmax"] = not is_normalized
    return {**arguments, **family.megatron}


def build_settings(
    model: CanonicalCheckpoint, facts: Mapping[str, Any], family: ModelFamily
) -> dict[str, Any]:
    """Return what config.json says about experts.

    Raises DumpError if the family cannot have dense layers where the model has them.
    """
    name = family.config.get("experts", _EXPERTS)
    settings: dict[str, Any] = {name: facts["experts"]}
    has_experts = list_expert_layers(model)
    n_dense = has_experts.count(False)
    if name == _ROUTED_EXPERTS:
        if not all(has_experts[n_dense:]):
            raise DumpError(f"{family.name} has all dense layers before those of experts")
        settings["first_k_dense_replace"] = n_dense
        settings["n_shared_experts"] = facts.get("shared_ffn", 0) // facts["experts_ffn"]
    elif name == _EXPERTS:
        dense_layers = [layer for layer, flag in enumerate(has_experts) if not flag]
        settings["mlp_only_layers"] = dense_layers
    elif n_dense:
        raise DumpError(f"{family.name} has experts in every layer, and {n_dense} are dense here")
    return {**settings, **_build_router_settings(model, facts, family)}


def _build_router_settings(
    model: CanonicalCheckpoint, facts: Mapping[str, Any], family: ModelFamily
) -> dict[str, Any]:
    """Return what Megatron's arguments say about the router, as config.json says it."""
    if _ROUTER_ARGUMENT not in model.settings:
        return {}
    settings: dict[str, Any] = {}
    if not family.megatron:  # the router of the others is always the same
        settings["norm_topk_prob"] = not model.settings.get("moe_router_pre_softmax")
    if model.has_mla and not model.has_parameter(".expert_bias"):
        has_groups = facts.get("expert_groups", 1) > 1
        settings["topk_method"] = "group_limited_greedy" if has_groups else _NO_GROUPS
    return settings


def list_lost_settings(model: CanonicalCheckpoint) -> list[str]:
    """Return the settings of config.json that Megatron's router contradicts.

    Sigmoid scores of the chosen experts always add up to one there.
    """
    family = find_model_family(model.settings, model.rules)
    is_sigmoid = family is not None and family.megatron.get(_SCORES) == "sigmoid"
    if is_sigmoid and model.settings.get("norm_topk_prob") is False:
        return ["norm_topk_prob False"]
    return []
