"""How each kind of value is distributed over the ranks, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..model.arrays import Ints
from .kinds import describe_kinds
from .relation import Relation
from .sibling_tensors import Siblings
from .slices import Assembly


@dataclass(frozen=True)
class LayoutRow:
    """How the values of one kind are distributed over the ranks."""

    name: str
    relation: str
    count: int  #: values of the kind


def describe_layout(
    siblings: Siblings,
    kinds: Ints,
    relations: Sequence[Relation | None],
    assemblies: Mapping[int, Assembly],
) -> tuple[LayoutRow, ...]:
    """Return a row for each kind of value, described by its first value."""
    words = describe_kinds(siblings, kinds)
    shapes = siblings.flows[siblings.base].tensors["shape"].tolist()
    first_row: dict[int, int] = {}
    counts: dict[int, int] = {}
    for row, kind in enumerate(kinds.tolist()):
        if siblings.is_constant[row]:
            continue
        first_row.setdefault(kind, row)
        counts[kind] = counts.get(kind, 0) + 1
    return tuple(
        LayoutRow(
            str(words[kind]),
            _describe_relation(relations[row], assemblies.get(row), shapes[row]),
            counts[kind],
        )
        for kind, row in first_row.items()
    )


def _describe_relation(
    relation: Relation | None, assembly: Assembly | None, shape: tuple[int, ...] | None
) -> str:
    """Return words for a relation: ``2 shards: 4 x 16 x 48[2]``."""
    if relation is None:
        return "local to a rank"
    factor = "" if relation.factor == 1.0 else f", times {relation.factor:g}"
    if assembly is not None and assembly.kept is not None:
        factor += f", the first {assembly.kept[1]} of axis {assembly.kept[0]}"
    n_parts = len(relation.parts)
    n_summands = len(relation.parts[0])
    if n_parts == 1:
        return f"sum of {n_summands} ranks{factor}" if relation.is_sum else f"replicated{factor}"
    if relation.is_sum:
        factor = f", each the sum of {n_summands} ranks{factor}"
    if assembly is None or shape is None:
        return f"{n_parts} shards{factor}"
    extents = list(map(str, shape))
    extents[assembly.axis] += f"[{n_parts if not assembly.groups else len(assembly.groups)}]"
    if assembly.groups:
        extents[assembly.inner_axis] += f"[{len(assembly.groups[0])}]"
    blocks = ", in blocks" if assembly.order is not None else ""
    return f"{n_parts} shards: {' x '.join(extents)}{blocks}{factor}"
