"""Lists of norms as the other side may list them: fused parameters, decayed parameters first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from ...rulebook import Rules
from ..parameter_path import LAST_IN_BACKWARD, compute_depth, strip_layer
from .match import Item, ItemLists, combine_items

#: If only sizes are known, each size is tried as the largest size of a vector; lists of more
#: distinct sizes are not tried.
_MAX_SIZES = 40
#: Kinds of fused parameters of which every combination is tried; further kinds stay split.
_MAX_FUSED_KINDS = 4

#: Modules in the order in which most models list their parameters.
_COMMON_ORDER = (
    "embedding", "position_embedding", "input_norm",
    "attention.q", "attention.k", "attention.v", "attention.qkv",
    "attention.q_norm", "attention.k_norm", "attention.out", "post_attention_norm",
    "mlp.router", "mlp.gate_proj", "mlp.up_proj", "mlp.gate_up_proj", "mlp.down_proj",
    "final_norm", "head",
)  # fmt: skip
#: The order of megatron-core: its Attention creates linear_proj before a subclass creates
#: linear_qkv.
_MEGATRON_ORDER = (
    *_COMMON_ORDER[:3],
    "attention.out",
    *(module for module in _COMMON_ORDER[3:] if module != "attention.out"),
)


def generate_arrangements(lists: ItemLists, rules: Rules) -> Iterator[ItemLists]:
    """Yield both lists unchanged, then with one side arranged as the other side may list it."""
    yield lists
    for side in (0, 1):
        for fused_items in _arrange_as_model(lists[side], rules):
            arrangements = list(_arrange_decayed_first(fused_items))
            if fused_items is not lists[side]:
                arrangements.insert(0, fused_items)
            for arrangement in arrangements:
                if side == 0:
                    yield arrangement, lists[1]
                else:
                    yield lists[0], arrangement


def _arrange_as_model(items: list[Item], rules: Rules) -> Iterator[list[Item]]:
    """Yield the list; if all items have names, also in the order of a model and with parts fused.

    The order of a model is needed because a graph lists parameters in its own order.
    """
    if not all(item.path for item in items):
        yield items
        return
    orders = [items]
    for module_order in (_COMMON_ORDER, _MEGATRON_ORDER):
        sorted_items = _sort_by_module(items, module_order)
        if sorted_items not in orders:
            orders.append(sorted_items)
    for ordered_items in orders:
        yield from _fuse_combinations(ordered_items, rules)


def _sort_by_module(items: list[Item], module_order: Sequence[str]) -> list[Item]:
    """Sort items by layer, and within a layer by the given order of modules."""

    def compute_position(item: Item) -> tuple[int, int]:
        depth = compute_depth(item.path)
        if depth is None:
            depth = LAST_IN_BACKWARD
        module = strip_layer(item.path).rpartition(".")[0]
        if module in module_order:
            return depth, module_order.index(module)
        return depth, len(module_order)

    return sorted(items, key=compute_position)


def _arrange_decayed_first(items: list[Item]) -> Iterator[list[Item]]:
    """Yield the list with vectors after matrices.

    If only sizes are known, each size may be the largest size of a vector.
    """
    if min(item.vector_flag for item in items) >= 0:
        yield sorted(items, key=lambda item: item.vector_flag)
        return
    sizes = sorted({item.size for item in items})
    sizes_known = sizes[0] >= 0
    if not sizes_known or len(sizes) > _MAX_SIZES:
        return
    for largest_vector in sizes[:-1]:
        yield sorted(items, key=lambda item: item.size <= largest_vector)


def _fuse_combinations(items: list[Item], rules: Rules) -> Iterator[list[Item]]:
    """Yield the list with each combination of fused parameters (QKV, gate and up).

    A fused parameter takes the position of its first part.
    """
    yield items
    groups = _find_fused_groups(items, rules)
    fused_kinds = sorted(groups)[:_MAX_FUSED_KINDS]
    for count in range(1, len(fused_kinds) + 1):
        for selected_kinds in combinations(fused_kinds, count):
            yield _fuse_groups(items, {kind: groups[kind] for kind in selected_kinds})


def _find_fused_groups(items: list[Item], rules: Rules) -> dict[str, list[list[int]]]:
    """Return the groups of positions that each kind of fused parameter would join."""
    groups: dict[str, list[list[int]]] = defaultdict(list)
    positions = {item.path: position for position, item in enumerate(items)}
    for path in positions:
        stem, _, leaf = path.rpartition(".")
        module, _, last_part = stem.rpartition(".")
        for fused_kind, part_sequences in rules.parameter_parts.items():
            for part_names in part_sequences:
                if last_part != part_names[0]:
                    continue
                members = [_join_path(module, part, leaf) for part in part_names]
                if all(member in positions for member in members):
                    groups[fused_kind].append([positions[member] for member in members])
    return groups


def _fuse_groups(items: list[Item], groups: Mapping[str, list[list[int]]]) -> list[Item]:
    """Replace each group of parts by one item; of overlapping groups, the first counts."""
    fused_items: dict[int, Item] = {}
    fused_positions: set[int] = set()
    for fused_kind, kind_groups in groups.items():
        for group in kind_groups:
            if fused_positions.intersection(group):
                continue
            fused_positions.update(group)
            stem, _, leaf = items[group[0]].path.rpartition(".")
            path = _join_path(stem.rpartition(".")[0], fused_kind, leaf)
            parts = [items[position] for position in group]
            fused_items[min(group)] = combine_items(parts, path)
    arranged_items = []
    for position, item in enumerate(items):
        if position in fused_items:
            arranged_items.append(fused_items[position])
        elif position not in fused_positions:
            arranged_items.append(item)
    return arranged_items


def _join_path(*parts: str) -> str:
    return ".".join(filter(None, parts))
