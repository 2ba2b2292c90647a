"""What each family reads in a fused or stacked weight: the layouts that are right there, so that another is a mistake.

Sources, by family: Megatron-core megatron/core/transformer/{attention,mlp}.py and moe/experts.py; MindSpore
Transformers mindformers/parallel_core/training_graph/transformer (both layouts, by a flag of the configuration) and
models/llama; Hugging Face transformers models/{phi3,gpt2,gpt_oss}/modeling_*.py and pytorch_utils.py (Conv1D).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

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

#: (family, last part of the canonical name) -> the turns in which a fused weight's parts may lie.
_TURNS: Mapping[tuple[str, str], frozenset[str]] = {
    (MEGATRON, "qkv"): frozenset({"grouped"}),
    (MEGATRON_LEGACY, "qkv"): frozenset({"grouped", "concatenated", "interleaved"}),  # depends on checkpoint_version
    (MINDFORMERS, "qkv"): frozenset({"grouped", "concatenated"}),  # use_contiguous_weight_layout_attention
    (MINDFORMERS_LEGACY, "qkv"): frozenset({"grouped", "concatenated"}),  # weights by group, Llama's bias is not
    (HUGGINGFACE, "qkv"): frozenset({"concatenated"}),
    (GPT2, "qkv"): frozenset({"concatenated"}),
    (MEGATRON, "gate_up_proj"): frozenset({"concatenated"}),
    (MEGATRON_LEGACY, "gate_up_proj"): frozenset({"concatenated"}),
    (MINDFORMERS, "gate_up_proj"): frozenset({"concatenated", "interleaved"}),  # use_interleaved_weight_layout_mlp
    (MINDFORMERS_LEGACY, "gate_up_proj"): frozenset({"interleaved", "concatenated"}),
    (HUGGINGFACE, "gate_up_proj"): frozenset({"concatenated"}),
    **{(family, part): frozenset({"grouped"}) for family in (MEGATRON, MINDFORMERS, HUGGINGFACE)
       for part in ("kv_b", "q_b")},
    **{(family, "kv_a"): frozenset({"concatenated"}) for family in (MEGATRON, MINDFORMERS, HUGGINGFACE)},
}  # fmt: skip

#: Families that keep q and k in the order in which RoPE rotates pairs of neighbours; all others in halves.
_PAIRS = frozenset({META})
#: Parts whose rope rows MindSpore Transformers' legacy converter reorders from pairs to halves.
_REORDERED = frozenset({"q_b_rope", "kv_a_rope"})
_CONV1D = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")


def is_stored_transposed(family: str, name: str) -> bool:
    """Whether a matrix lies as [in, out]: the four linears of GPT-2 in transformers."""
    return family == GPT2 and _CONV1D.search(name) is not None


def has_transposed_experts(family: str) -> bool:
    """Whether stacked experts lie as [experts, in, out] (Megatron's and MindSpore's), not [experts, out, in]."""
    return family in (MEGATRON, MINDFORMERS, MINDFORMERS_LEGACY)


def list_expected_orders(part: str, family: str, sizes: Sequence[int], numbers: ModelConfig) -> Iterable[Ints]:
    """Orders that a fused weight of this family may have over its parts, those to try first first."""
    turns = _TURNS.get((family, part), frozenset({"grouped", "concatenated", "interleaved"}))
    if part == "qkv" and len(sizes) == 2:  # MLA's fused down projection
        turns = frozenset({"concatenated"})
    groups = {"concatenated": 1, "interleaved": min(sizes)}
    if part in ("q_b", "kv_b"):
        groups["grouped"] = numbers.heads or 0
    elif part == "qkv":
        groups["grouped"] = numbers.groups or 0
    for kind in ("grouped", "concatenated", "interleaved"):
        if kind in turns and groups.get(kind):
            order = build_fused_order(sizes, groups[kind])
            if order is not None:
                yield order


def check_layout(
    part: str, families: tuple[str, str], names: Sequence[str], layout: RowLayout, numbers: ModelConfig
) -> bool | None:
    """Whether this layout of a fused weight is right in its family, the first of two; None where nobody knows.

    ``names`` are those of the parts, which the second family has.
    """
    family = families[0]
    turns = _TURNS.get((family, part))
    if part == "qkv" and len(layout.part_orders) == 2:
        turns = frozenset({"concatenated"})
    for name, order in zip(names, layout.part_orders, strict=True):
        if order.kind != "same" and not (order.kind == "rope" and differs_in_rope_order(name, *families)):
            return False
    if turns is None or family == OTHER:
        return None
    kind, groups = layout.part_arrangement.key
    if (
        kind in ("concatenated", "interleaved")
        and "grouped" in turns
        and part in ("qkv", "q_b", "kv_b")
    ):
        # one group, or groups of one row, are groups too
        kind = "grouped"
    if kind == "grouped" and "grouped" in turns:
        known = numbers.heads if part in ("q_b", "kv_b") else numbers.groups
        # where nobody says how many groups: one alone would be a model with a single key, no wider than a head
        right = groups == known if known is not None else groups > 1
        return right or ("concatenated" in turns and groups == 1)
    return kind in turns


def differs_in_rope_order(part: str, one: str, other: str) -> bool:
    """Whether two families keep the rows of this part in different RoPE orders, and rightly so."""
    if part in ("q", "k"):
        return (one in _PAIRS) != (other in _PAIRS)
    return part in _REORDERED and (one == MINDFORMERS_LEGACY) != (other == MINDFORMERS_LEGACY)
