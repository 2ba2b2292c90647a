"""Pairs that the dataflow excludes.

If c follows from a on one side, and on the other side the partner of a follows from the partner of
c, one of the two pairs is wrong: a value would follow from itself. Two decompositions of one
formula have values of equal shape and kind, which the structure around them pairs crosswise.

If one side computes a value several times, as a mask for each of its readers, and one copy has its
partner, no other copy belongs to what another op computes of other values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..graph import Flow
from ..model.arrays import Ints
from .confidence import GUESSES
from .matches import Matching
from .values import Fingerprints


def separate_circles(matching: Matching) -> None:
    """Unpair values that differ and would follow from themselves, the least certain ones first."""
    targets = _list_uncertain_targets(matching)
    if not len(targets):
        return
    edges_t = _list_edges(matching.target)
    edges_r = _list_edges(matching.reference)
    while len(targets):
        circles = _number_circles(matching, edges_t, edges_r)[targets]
        _, firsts = np.unique(circles, return_index=True)
        firsts = firsts[circles[firsts] >= 0]
        if not len(firsts):
            return
        for t in targets[firsts].tolist():
            matching.unpair(t, int(matching.classes_t[t]))
        targets = np.delete(targets, firsts)


def separate_copies(matching: Matching) -> None:
    """Unpair guesses of which one value is a copy of another one that has its partner.

    They may look alike: masks of two steps have equal statistics if they keep equally many.
    """
    for t in _list_results_of_other_values(matching):
        r = int(matching.classes_t[t])
        copies_t = _iterate_copies(matching.target, matching.prints_t, matching.kinds_t, t)
        copies_r = _iterate_copies(matching.reference, matching.prints_r, matching.kinds_r, r)
        if any(_has_agreeing_partner(matching, copy) for copy in copies_t) or any(
            _has_agreeing_partner(matching, int(matching.classes_r[copy])) for copy in copies_r
        ):
            matching.unpair(t, r)


def _list_results_of_other_values(matching: Matching) -> list[int]:
    """Return the values of guessed pairs whose ops read nothing in common.

    All operands of both ops have partners, and no operand is the partner of another one.
    """
    targets = np.flatnonzero(matching.classes_t >= 0)
    ops_t = matching.target.producers[targets]
    ops_r = matching.reference.producers[matching.classes_t[targets]]
    first_operands_t = np.where(ops_t >= 0, matching.target.operands.first_values[ops_t], -1)
    first_operands_r = np.where(ops_r >= 0, matching.reference.operands.first_values[ops_r], -1)
    partners = np.where(first_operands_t >= 0, matching.classes_t[first_operands_t], -1)
    has_other_operand = (partners >= 0) & (first_operands_r >= 0) & (partners != first_operands_r)
    candidates = zip(
        targets[has_other_operand].tolist(),
        ops_t[has_other_operand].tolist(),
        ops_r[has_other_operand].tolist(),
        strict=True,
    )
    return [
        t
        for t, op_t, op_r in candidates
        if matching.evidence[t] in GUESSES and _read_other_values(matching, op_t, op_r)
    ]


def _read_other_values(matching: Matching, op_t: int, op_r: int) -> bool:
    """Return whether all operands of two ops have partners, none of which the other op reads."""
    operands_r = matching.reference.operands[op_r]
    partners = {int(matching.classes_t[value]) for value in matching.target.operands[op_t]}
    has_partners = -1 not in partners and all(matching.classes_r[r] >= 0 for r in operands_r)
    return has_partners and partners.isdisjoint(operands_r)


def _iterate_copies(
    flow: Flow, prints: Fingerprints, kinds: Sequence[str], value: int
) -> Iterator[int]:
    """Yield the values that ops of its kind computed of its operands, equal in statistics."""
    op = int(flow.producers[value])
    columns = (prints.size, prints.high, prints.low, prints.norm)
    for other_op in flow.users[flow.operands[op][0]]:
        if other_op == op or kinds[other_op] != kinds[op]:
            continue
        if flow.operands[other_op] == flow.operands[op]:
            for copy in flow.writes[other_op]:
                if copy != value and all(column[copy] == column[value] for column in columns):
                    yield copy


def _has_agreeing_partner(matching: Matching, t: int) -> bool:
    r = int(matching.classes_t[t]) if t >= 0 else -1
    return r >= 0 and matching.compute_distance(t, r) <= matching.tolerance


def _list_uncertain_targets(matching: Matching) -> Ints:
    """Return the values of guessed pairs that differ, the least certain and the farthest first."""
    targets, distances = matching.measure_guesses()
    confidences = np.array([matching.confidence[t] for t in targets.tolist()], dtype=float)
    order = np.lexsort((-distances, confidences))
    uncertain_targets: Ints = targets[order[distances[order] > matching.tolerance]]
    return uncertain_targets


def _list_edges(flow: Flow) -> tuple[Ints, Ints]:
    """Return (operand, result) of all ops that computed the result after the operand."""
    results_of = flow.writes.take(flow.operands.rows)
    parents, children = flow.operands.values[results_of.rows], results_of.values
    ops = flow.operands.rows[results_of.rows]
    is_edge = (flow.producers[children] == ops) & ~flow.is_module[ops]
    is_edge &= flow.producers[parents] < ops
    return parents[is_edge], children[is_edge]


def _number_circles(
    matching: Matching, edges_t: tuple[Ints, Ints], edges_r: tuple[Ints, Ints]
) -> Ints:
    """Return (target classes,) the circle that each pair is in, -1 for none."""
    # takes 0.1 s to import, and few dumps need it
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n_t, n_r = len(matching.classes_t), len(matching.classes_r)
    nodes_r = np.where(matching.classes_r >= 0, matching.classes_r, n_t + np.arange(n_r))
    parents = np.concatenate([edges_t[0], nodes_r[edges_r[0]]])
    children = np.concatenate([edges_t[1], nodes_r[edges_r[1]]])
    graph = coo_array(
        (np.ones(len(parents), dtype=np.int8), (parents, children)), shape=(n_t + n_r,) * 2
    )
    _, components = connected_components(graph, directed=True, connection="strong")
    is_circle = np.bincount(components) > 1
    numbers: Ints = np.where(is_circle[components], components, -1)[:n_t]
    return numbers
