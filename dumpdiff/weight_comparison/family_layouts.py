"""The layouts of fused and stacked weights that each family reads; any other layout is a mistake.

Sources: Megatron-core megatron/core/transformer/{attention,mlp}.py and moe/experts.py; MindSpore
Transformers mindformers/parallel_core/training_graph/transformer (both layouts, by a flag of the
configuration) and models/llama. Models of transformers that differ from Llama, Phi-3 and DeepSeek
are described in rules/families.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..model.arrays import Ints
from .families import (
    HUGGINGFACE,
    MEGATRON,
    MEGATRON_LEGACY,
    META,
    MINDFORMERS,
    MINDFORMERS_LEGACY,
    OTHER,
    ModelConfig,
    Naming,
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
    (MEGATRON, "gate_up_proj"): _CONCATENATED,
    (MEGATRON_LEGACY, "gate_up_proj"): _CONCATENATED,
    # use_interleaved_weight_layout_mlp
    (MINDFORMERS, "gate_up_proj"): _CONCATENATED | _INTERLEAVED,
    (MINDFORMERS_LEGACY, "gate_up_proj"): _INTERLEAVED | _CONCATENATED,
    (HUGGINGFACE, "gate_up_proj"): _CONCATENATED,
    **{(family, "kv_b"): _GROUPED for family in (MEGATRON, MINDFORMERS, HUGGINGFACE)},
    **{(family, "q_b"): _GROUPED for family in (MEGATRON, MINDFORMERS, HUGGINGFACE)},
    **{(family, "kv_a"): _CONCATENATED for family in (MEGATRON, MINDFORMERS, HUGGINGFACE)},
    (MEGATRON, "in_proj"): _CONCATENATED,  # of Mamba 2
    (MEGATRON, "conv1d"): _CONCATENATED,
}

#: Families that store q and k in the order in which RoPE rotates adjacent pairs; all others store
#: halves.
_ROPE_PAIRS = frozenset({META})
#: Components whose RoPE rows the legacy converter of MindSpore Transformers reorders from pairs to
#: halves.
_REORDERED_PARTS = frozenset({"q_b_rope", "kv_a_rope"})


def is_stored_transposed(naming: Naming, path: str) -> bool:
    """Whether the matrix of this canonical name is stored as [in, out]."""
    if naming.model is None or not path.endswith(".weight"):
        return False
    module = path.removesuffix(".weight")
    return any(module.endswith("." + name) for name in naming.model.transposed)


def has_transposed_experts(naming: Naming, path: str) -> bool:
    """Whether stacked experts are stored as [experts, in, out], as in Megatron and MindSpore."""
    is_by_framework = naming.family in (MEGATRON, MINDFORMERS, MINDFORMERS_LEGACY)
    return is_by_framework or is_stored_transposed(naming, path)


def get_arrangements(naming: Naming, module: str) -> frozenset[str] | None:
    """Return the arrangements of a fused weight that are read; None if unknown."""
    if naming.model is not None and module in naming.model.rows:
        return frozenset({naming.model.rows[module]})
    return _ARRANGEMENTS.get((naming.family, module))


def list_expected_orders(
    module: str, naming: Naming, sizes: Sequence[int], config: ModelConfig
) -> Iterator[Ints]:
    """Yield the orders over its components that a fused weight may have, most likely first."""
    arrangements = get_arrangements(naming, module) or _ALL_ARRANGEMENTS
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


def may_share_layout(module: str, namings: tuple[Naming, Naming]) -> bool:
    """Whether both sides may read one arrangement of a fused weight, or one is unknown."""
    first, second = (get_arrangements(naming, module) or _ALL_ARRANGEMENTS for naming in namings)
    return not first.isdisjoint(second)


def check_layout(
    module: str,
    namings: tuple[Naming, Naming],
    component_names: Sequence[str],
    layout: RowLayout,
    config: ModelConfig,
) -> bool | None:
    """Whether the first of two sides reads this layout of a fused weight; None if unknown.

    The second is the side that stores the components, named ``component_names``.
    """
    for name, order in zip(component_names, layout.component_orders, strict=True):
        is_expected_rope = order.kind == "rope" and differs_in_rope_order(name, *namings)
        if order.kind != "same" and not is_expected_rope:
            return False
    arrangements = get_arrangements(namings[0], module)
    if _is_mla_down_projection(module, len(layout.component_orders)):
        arrangements = _CONCATENATED
    if arrangements is None or namings[0].family == OTHER:
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


def differs_in_rope_order(module: str, naming: Naming, other: Naming) -> bool:
    """Whether two sides correctly store the rows of a module in different RoPE orders."""
    if module in ("q", "k"):
        return (naming.family in _ROPE_PAIRS) != (other.family in _ROPE_PAIRS)
    is_reordered = (naming.family == MINDFORMERS_LEGACY) != (other.family == MINDFORMERS_LEGACY)
    return module in _REORDERED_PARTS and is_reordered
