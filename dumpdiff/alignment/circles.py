"""Pairs that the dataflow excludes: a value would follow from itself.

If c follows from a on one side, and on the other side the partner of a follows from the partner of
c, one of the two pairs is wrong. Two decompositions of one formula have values of equal shape and
kind, which the structure around them pairs crosswise.
"""

from __future__ import annotations

import numpy as np

from ..graph import Flow
from ..model.arrays import Ints
from .confidence import GUESSES
from .matches import Matching
from .values import compute_distances


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


def _list_uncertain_targets(matching: Matching) -> Ints:
    """Return the values of guessed pairs that differ, the least certain and the farthest first."""
    targets = np.flatnonzero(matching.classes_t >= 0)
    targets = targets[[matching.evidence[t] in GUESSES for t in targets.tolist()]]
    references = matching.classes_t[targets]
    distances = compute_distances(matching.prints_t, targets, matching.prints_r, references)
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
