"""Lists of norms as the other side may hold them: fused parameters together, decayed ones first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from ...rulebook import Rules
from ..parameter_place import LAST_BACK, depth_of, kind_of
from .item import Item, Lists, together

_MOST_SIZES = 40  #: sizes of which each is tried as the largest of a vector
_MOST_KINDS = 4  #: kinds of fused parameters of which every choice is tried

#: Modules in the order in which most models list their parameters ...
_USUAL = (
    "embedding", "position_embedding", "input_norm", "attention.q", "attention.k", "attention.v", "attention.qkv",
    "attention.q_norm", "attention.k_norm", "attention.out", "post_attention_norm", "mlp.router", "mlp.gate_proj",
    "mlp.up_proj", "mlp.gate_up_proj", "mlp.down_proj", "final_norm", "head",
)  # fmt: skip
#: ... and as megatron-core does, whose Attention makes linear_proj before its subclass makes linear_qkv.
_CORE = (
    *_USUAL[:3],
    "attention.out",
    *(module for module in _USUAL[3:] if module != "attention.out"),
)


def arrangements(plain: Lists, rules: Rules) -> Iterator[Lists]:
    """Both lists as they stand, then each side as the other may list it."""
    yield plain
    for side in (0, 1):
        for fused in _as_model(plain[side], rules):
            for way in (*([fused] if fused is not plain[side] else []), *_decayed_first(fused)):
                yield (way, plain[1]) if side == 0 else (plain[0], way)


def _as_model(items: list[Item], rules: Rules) -> Iterator[list[Item]]:
    """The list, and if all have names also in the order of either framework's model, with parts fused.

    A graph lists parameters in an order of its own.
    """
    if not all(item.path for item in items):
        yield items
        return
    ways = [items]
    for in_order in (_sorted(items, _USUAL), _sorted(items, _CORE)):
        if in_order not in ways:
            ways.append(in_order)
    for way in ways:
        yield from _fusions(way, rules)


def _sorted(items: list[Item], modules: Sequence[str]) -> list[Item]:
    """As a model lists its parameters that has the modules of a layer in that order."""

    def place(item: Item) -> tuple[int, int]:
        depth = depth_of(item.path)
        module = kind_of(item.path).rpartition(".")[0]
        return LAST_BACK if depth is None else depth, modules.index(
            module
        ) if module in modules else len(modules)

    return sorted(items, key=place)


def _decayed_first(items: list[Item]) -> Iterator[list[Item]]:
    """The list with vectors behind matrices; where only sizes are known, each size may be the largest of a vector."""
    if all(item.vector >= 0 for item in items):
        yield sorted(items, key=lambda item: item.vector)
        return
    sizes = sorted({item.size for item in items})
    if sizes[0] >= 0 and len(sizes) <= _MOST_SIZES:
        for largest in sizes[:-1]:
            yield sorted(items, key=lambda item: item.size <= largest)


def _fusions(items: list[Item], rules: Rules) -> Iterator[list[Item]]:
    """The list with each choice of fused parameters (QKV, gate and up) in the place of their first part."""
    yield items
    wholes: dict[str, list[list[int]]] = defaultdict(list)
    places = {item.path: at for at, item in enumerate(items)}
    for path in places:
        stem, _, leaf = path.rpartition(".")
        module, _, last = stem.rpartition(".")
        for whole, ways in rules.parts.items():
            for way in ways:
                members = [".".join(filter(None, (module, part, leaf))) for part in way]
                if last == way[0] and all(member in places for member in members):
                    wholes[whole].append([places[member] for member in members])
    kinds = sorted(wholes)[:_MOST_KINDS]
    for count in range(1, len(kinds) + 1):
        for chosen in combinations(kinds, count):
            yield _fused(items, {kind: wholes[kind] for kind in chosen})


def _fused(items: list[Item], wholes: Mapping[str, list[list[int]]]) -> list[Item]:
    first: dict[int, Item] = {}
    gone: set[int] = set()
    for whole, groups in wholes.items():
        for places in groups:
            if gone.intersection(places):
                continue
            gone.update(places)
            stem, _, leaf = items[places[0]].path.rpartition(".")
            path = ".".join(filter(None, (stem.rpartition(".")[0], whole, leaf)))
            first[min(places)] = together([items[place] for place in places], path)
    return [first.get(at, item) for at, item in enumerate(items) if at in first or at not in gone]
