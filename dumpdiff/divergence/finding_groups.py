"""Locations that show one difference: they are one finding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from ..graph.module_paths import find_common_path
from ..model.finding import Kind
from ..model.trace import BACKWARD, OPTIMIZER
from .finding_kinds import COMPUTED_KINDS, count_computing_kinds
from .finding_words import describe_scalars
from .joint_graph import GraphSide, JointGraph
from .locations import Location

#: What is compared of two values that nothing computed.
_NUMBERS = ("size", "max", "min", "mean", "norm", "dtype")
#: Counts of the kinds of both sides' ops, and sentences on scalar arguments that differ.
_UpdateKey: TypeAlias = tuple[
    frozenset[tuple[str, int]], frozenset[tuple[str, int]], tuple[str, ...]
]


def group_locations(
    graph: JointGraph, locations: Iterable[tuple[Kind, Location]]
) -> list[tuple[Kind, Location, list[Location]]]:
    """Return (kind, location, further locations of the same difference), in order.

    Regions that share a value without a partner are one: it leads to several results. So are
    constant tables whose products are computed with each other, such as cosines and sines, results
    of one module that an op computes with each other, such as the terms of a rotation, steps of a
    module that ops of one kind compute from one value, and what one layer computes in a coarser
    dtype. So are gradients that are computed from one gradient: those of a layer's input and of its
    weight. So are the updates of weights that differ in the same way, see :func:`_describe_update`,
    and a batch that an op reads and the module call around it does, too.
    """
    groups: list[tuple[Kind, Location, list[Location]]] = []
    groups_of_updates: dict[_UpdateKey, list[Location]] = {}
    for kind, location in locations:
        if location.phase == OPTIMIZER:  # every weight is a result of its own
            update_key = _describe_update(graph, kind, location)
            if update_key in groups_of_updates:
                groups_of_updates[update_key].append(location)
                continue
            groups.append((kind, location, []))
            if update_key is not None:
                groups_of_updates[update_key] = groups[-1][2]
            continue
        for first_kind, first, others in groups:
            has_related_kind = kind == first_kind or {kind, first_kind} <= COMPUTED_KINDS
            if has_related_kind and any(
                _is_one_difference(graph, kind, place, location) for place in (first, *others)
            ):
                others.append(location)
                break
        else:
            groups.append((kind, location, []))
    return groups


def _describe_update(graph: JointGraph, kind: Kind, location: Location) -> _UpdateKey | None:
    """Return what is equal for all weights whose updates differ in one way, None if unknown.

    The ops that compute the update say so: other numbers among their arguments, or ops that only
    one side has. An update that differs with equal ops, or as another decomposition, may have any
    cause.
    """
    scalars = tuple(describe_scalars(graph, location))
    kinds_t = count_computing_kinds(location.target)
    kinds_r = count_computing_kinds(location.reference)
    has_surplus = kinds_t != kinds_r and (kinds_t <= kinds_r or kinds_r <= kinds_t)
    if kind not in COMPUTED_KINDS or not (scalars or has_surplus):
        return None
    return frozenset(kinds_t.items()), frozenset(kinds_r.items()), scalars


def _is_one_difference(graph: JointGraph, kind: Kind, first: Location, other: Location) -> bool:
    """Return whether two locations are parts of one region, table or composite."""
    results_of_first = _list_results(graph, {first.node})
    results_of_other = _list_results(graph, {other.node})
    if kind == "constant":
        return not _list_results(graph, results_of_first).isdisjoint(
            _list_results(graph, results_of_other)
        )
    if kind == "input":
        return all(_has_equal_numbers(side, first.node, other.node) for side in graph.sides)
    has_one_scope = bool(first.scope) and first.scope == other.scope
    if kind == "dtype":  # all projections of a block that was cast
        return has_one_scope or bool(find_common_path([first.scope, other.scope]))
    is_computed = kind in COMPUTED_KINDS
    if not is_computed or not set(first.unpaired_nodes).isdisjoint(other.unpaired_nodes):
        return is_computed
    if first.phase == other.phase == BACKWARD:
        parents = set(graph.parents[first.node]) & set(graph.parents[other.node])
        if any(graph.phase[parent] == BACKWARD for parent in parents):
            return True
    return has_one_scope and (
        not results_of_first.isdisjoint(results_of_other) or _is_repeated_step(graph, first, other)
    )


def _has_equal_numbers(side: GraphSide, first_node: int, other_node: int) -> bool:
    """Return whether all that is recorded of two values of one side is equal."""
    rows = side.flow.classes[list(_NUMBERS)].iloc[
        [int(side.classes[first_node]), int(side.classes[other_node])]
    ]
    return bool(rows.duplicated().iat[1])


def _is_repeated_step(graph: JointGraph, first: Location, other: Location) -> bool:
    """Return whether ops of one kind compute two locations from one value, as a scan its steps."""
    has_same_kinds = (
        first.target.kinds[-1:] == other.target.kinds[-1:]
        and first.reference.kinds[-1:] == other.reference.kinds[-1:]
    )
    return has_same_kinds and not set(graph.parents[first.node]).isdisjoint(
        graph.parents[other.node]
    )


def _list_results(graph: JointGraph, nodes: Iterable[int]) -> set[int]:
    """Return what is computed from some nodes directly."""
    return {child for node in nodes for child in graph.children[node]}
