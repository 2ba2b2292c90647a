"""The layouts of fused and stacked weights that each family reads; any other layout is a mistake.

Sources: Megatron-core megatron/core/transformer/{attention,mlp}.py and moe/experts.py; MindSpore
Transformers mindformers/parallel_core/training_graph/transformer (both layouts, by a flag of the
configuration) and models/llama; Hugging Face transformers models/{phi3,gpt2,gpt_oss}/modeling_*.py
and pytorch_utils.py (Conv1D).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ..model.arrays import Ints
from .families import (
    GPT2,
    HUGGINGFACE,
    MEGATRON,
    MEGATRON_LEGACY,
    META,
    MINDFORMERS,
    MINDFORMERS_LEGACY,
    OTHER,
    ModelConfig,
)
from .row_permutation import RowLayout, build_fused_order

_GROUPED = frozenset({"grouped"})
_CONCATENATED = frozenset({"concatenated"})
_INTERLEAVED = frozenset({"interleaved"})
_ALL_ARRANGEMENTS = _GROUPED | _CONCATENATED | _INTERLEAVED

#: (family, last module of the canonical name) -> the arrangements of the components that the family
#: reads.
_ARRANGEMENTS: Mapping[tuple[str, str], frozenset[str]] = {
    (MEGATRON, "qkv"): _GROUPED,
    (MEGATRON_LEGACY, "qkv"): _ALL_ARRANGEMENTS,  # depends on checkpoint_version
    (MINDFORMERS, "qkv"): _GROUPED | _CONCATENATED,  # use_contiguous_weight_layout_attention
    (MINDFORMERS_LEGACY, "qkv"): _GROUPED | _CONCATENATED,  # Llama's bias is not by group
    (HUGGINGFACE, "qkv"): _CONCATENATED,
    (GPT2, "qkv"): _CONCATENATED,
    (MEGATRON, "gate_up_proj"): _CONCATENATED,
    (MEGATRON_LEGACY, "gate_up_proj"): _CONCATENATED,
    # use_interleaved_weight_layout_mlp
    (MINDFORMERS, "gate_up_proj"): _CONCATENATED | _INTERLEAVED,
    (MINDFORMERS_LEGACY, "gate_up_proj"): _INTERLEAVED | _CONCATENATED,
    (HUGGINGFACE, "gate_up_proj"): _CONCATENATED,
    **{(family, "kv_b"): _GROUPED for family in (MEGATRON, MINDFORMERS, HUGGINGFACE)},
    **{(family, "q_b"): _GROUPED for family in (MEGATRON, MINDFORMERS, HUGGINGFACE)},
    **{(family, "kv_a"): _CONCATENATED for family in (MEGATRON, MINDFORMERS, HUGGINGFACE)},
}

#: Families that store q and k in the order in which RoPE rotates adjacent pairs; all others store
#: halves.
_ROPE_PAIRS = frozenset({META})
#: Components whose RoPE rows the legacy converter of MindSpore Transformers reorders from pairs to
#: halves.
_REORDERED_PARTS = frozenset({"q_b_rope", "kv_a_rope"})
_CONV1D = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")


def is_stored_transposed(family: str, name: str) -> bool:
    """Whether a matrix is stored as [in, out]: the four linears of GPT-2 in transformers."""
    return family == GPT2 and _CONV1D.search(name) is not None


def has_transposed_experts(family: str) -> bool:
    """Whether stacked experts are stored as [experts, in, out], as in Megatron and MindSpore."""
    return family in (MEGATRON, MINDFORMERS, MINDFORMERS_LEGACY)


def list_expected_orders(
    module: str, family: str, sizes: Sequence[int], config: ModelConfig
) -> Iterator[Ints]:
    """Yield the orders over its components that a fused weight may have, most likely first."""
    arrangements = _ARRANGEMENTS.get((family, module), _ALL_ARRANGEMENTS)
    if _is_mla_down_projection(module, len(sizes)):
        arrangements = _CONCATENATED
    groups = {"concatenated": 1, "interleaved": min(sizes)}
    if module in ("q_b", "kv_b"):
        groups["grouped"] = config.heads or 0
    elif module == "qkv":
        groups["grouped"] = config.groups or 0
    for kind in ("grouped", "concatenated", "interleaved"):
        if kind not in arrangements or not groups.get(kind):
            continue
        order = build_fused_order(sizes, groups[kind])
        if order is not None:
            yield order


def may_share_layout(module: str, families: tuple[str, str]) -> bool:
    """Whether both families may read one arrangement of a fused weight, or one is unknown."""
    first, second = (_ARRANGEMENTS.get((family, module), _ALL_ARRANGEMENTS) for family in families)
    return not first.isdisjoint(second)


def check_layout(
    module: str,
    families: tuple[str, str],
    component_names: Sequence[str],
    layout: RowLayout,
    config: ModelConfig,
) -> bool | None:
    """Whether the first of two families reads this layout of a fused weight; None if unknown.

    The second family is that of the side that stores the components, named ``component_names``.
    """
    for name, order in zip(component_names, layout.component_orders, strict=True):
        is_expected_rope = order.kind == "rope" and differs_in_rope_order(name, *families)
        if order.kind != "same" and not is_expected_rope:
            return False
    family = families[0]
    arrangements = _ARRANGEMENTS.get((family, module))
    if _is_mla_down_projection(module, len(layout.component_orders)):
        arrangements = _CONCATENATED
    if arrangements is None or family == OTHER:
        return None
    kind, groups = layout.component_arrangement.key
    if "grouped" not in arrangements:
        return kind in arrangements
    if kind in ("concatenated", "interleaved") and module in ("qkv", "q_b", "kv_b"):
        kind = "grouped"  # with one group, or with groups of one row
    if kind != "grouped":
        return kind in arrangements
    if groups == 1 and "concatenated" in arrangements:
        return True
    return _is_group_count_valid(module, groups, config)


def _is_group_count_valid(module: str, groups: int, config: ModelConfig) -> bool:
    expected_groups = config.heads if module in ("q_b", "kv_b") else config.groups
    if expected_groups is not None:
        return groups == expected_groups
    # Without a configuration: one group would be a model with a single key of the width of one
    # head.
    return groups > 1


def _is_mla_down_projection(module: str, n_components: int) -> bool:
    """Whether a qkv is the fused down projection of MLA, which has only two components."""
    return module == "qkv" and n_components == 2


def differs_in_rope_order(module: str, family: str, other_family: str) -> bool:
    """Whether two families correctly store the rows of a module in different RoPE orders."""
    if module in ("q", "k"):
        return (family in _ROPE_PAIRS) != (other_family in _ROPE_PAIRS)
    is_reordered = (family == MINDFORMERS_LEGACY) != (other_family == MINDFORMERS_LEGACY)
    return module in _REORDERED_PARTS and is_reordered
