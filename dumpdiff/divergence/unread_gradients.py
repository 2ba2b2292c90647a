"""Gradients that no recorded op reads: what they are added to, by the forward pass.

A recorder may leave out the op that a gradient flows back through, and the sum of the gradients of
several consumers. Reverse-mode differentiation mirrors the forward pass: what flows back to a value
flows on to what this value was computed from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set

import numpy as np

from ..graph.missing_edges import is_graph_input
from ..model.arrays import Flags
from ..model.trace import BACKWARD, FORWARD
from ..model.verdict import AGREEING
from .joint_graph import JointGraph

#: Values before one that are searched for those whose gradients are known.
_MAX_VALUES = 512


def find_unread_gradients(
    graph: JointGraph, state: Sequence[str], unused_nodes: Set[int], is_asked: Flags
) -> dict[int, dict[int, float]]:
    """Return node -> sum -> the node's share of it, of gradients that no recorded op reads.

    Of all nodes only those that ``is_asked`` (nodes,) flags have an entry.
    The sums are the gradients of the nearest values before, on every way back through the forward
    pass. What flows back through one of several readers of a value is a term of that value's
    gradient. If one of these ways ends at a parameter whose gradient is unknown, there are none. Of
    those that only the order of execution leads to, the agreeing ones count, if there are any; the
    others only if nothing else is known.
    """
    gradients_of: defaultdict[int, set[int]] = defaultdict(set)
    values_of: defaultdict[int, set[int]] = defaultdict(set)
    operands_of: defaultdict[int, set[int]] = defaultdict(set)
    for side, gradients in zip(
        graph.sides, graph.comparison.alignment.gradients or (), strict=False
    ):
        table = np.array([*gradients.by_value.items()], dtype=np.int64).reshape(-1, 2)
        for node, gradient_node in side.nodes[table].tolist():
            gradients_of[node].add(gradient_node)
            values_of[gradient_node].add(node)
        for (_, operand, _), term in gradients.by_edge.items():
            operands_of[int(side.nodes[term])].add(int(side.nodes[operand]))
    sums_of: dict[int, list[int]] = {}
    for node in {**values_of, **operands_of}:
        is_open = is_asked[node] and graph.phase[node] == BACKWARD
        if not is_open or not unused_nodes >= set(graph.children[node]):
            continue
        if node not in values_of:
            starts = [(operand, False) for operand in sorted(operands_of[node])]
        elif all(graph.parents[value] for value in values_of[node]):
            starts = [
                (operand, value in graph.guessed_nodes)
                for value in sorted(values_of[node])
                for operand in graph.parents[value]
            ]
        else:
            continue  # the gradient of a parameter is an end
        sums_of[node] = _find_sums(graph, state, gradients_of, node, starts)
    return {
        node: {end: _compute_share(graph, node, end) for end in sums}
        for node, sums in sums_of.items()
        if sums
    }


def find_gradients_of_inputs(graph: JointGraph) -> set[int]:
    """Return the gradients of what the runs were given, and of what follows from that alone.

    No parameter follows from them: labels and masks made of labels need no gradient.
    """
    # of what the record says how it was computed, nothing is given
    may_be_given = graph.parents.counts == 0
    may_be_given[list(graph.guessed_nodes)] = True
    may_be_given &= graph.phase == FORWARD
    is_given = np.zeros(graph.n_nodes, dtype=bool)
    candidates = np.flatnonzero(may_be_given)
    is_given[candidates] = [_is_given(graph, node) for node in candidates.tolist()]
    needs_gradient = _flag_descendants(graph, may_be_given & ~is_given, is_given)
    gradient_nodes: list[int] = []
    for side, gradients in zip(
        graph.sides, graph.comparison.alignment.gradients or (), strict=False
    ):
        edges = [(value, gradient) for (_, value, _), gradient in gradients.by_edge.items()]
        table = np.array([*gradients.by_value.items(), *edges], dtype=np.int64).reshape(-1, 2)
        is_unused = ~needs_gradient[side.nodes[table[:, 0]]]
        gradient_nodes += side.nodes[table[is_unused, 1]].tolist()
    return set(gradient_nodes)


def _flag_descendants(graph: JointGraph, is_source: Flags, is_barrier: Flags) -> Flags:
    """Return (nodes,) whether a node is a source or follows from one, not through a barrier."""
    is_seen = (is_source | is_barrier).tolist()
    todo = np.flatnonzero(is_source).tolist()
    for node in todo:  # grows while it is read
        for child in graph.children[node]:
            if not is_seen[child]:
                is_seen[child] = True
                todo.append(child)
    flags = np.zeros(graph.n_nodes, dtype=bool)
    flags[todo] = True
    return flags


def _find_sums(
    graph: JointGraph,
    state: Sequence[str],
    gradients_of: Mapping[int, set[int]],
    gradient: int,
    starts: Sequence[tuple[int, bool]],
) -> list[int]:
    """Return the gradients of the nearest of some values and those before them, see above.

    Each of ``starts`` comes with whether only the order of execution leads to it.
    """
    n_pairs = len(graph.comparison.pairs)
    sums: set[int] = set()
    guessed_sums: set[int] = set()
    pending = list(starts)
    seen = {value for value, _ in starts}
    for value, follows_guess in pending:  # grows on the way
        is_guessed = follows_guess or value in graph.guessed_nodes
        other_gradients = gradients_of.get(value, set()) - {gradient}
        if _is_given(graph, value):  # of a parameter without a name both sides have the gradient
            other_gradients = {other for other in other_gradients if other < n_pairs}
        elif not other_gradients:
            operands = list(graph.parents[value])
            if not operands or len(seen) > _MAX_VALUES:
                return []
            if is_guessed:  # what has a gradient is more than a guess
                operands = [o for o in operands if o in gradients_of] or operands
            pending += [(operand, is_guessed) for operand in operands if operand not in seen]
            seen.update(operands)
        (guessed_sums if is_guessed else sums).update(other_gradients)
    agreeing_sums = {node for node in guessed_sums if state[node] == AGREEING}
    return sorted(sums | agreeing_sums or guessed_sums)


def _is_given(graph: JointGraph, node: int) -> bool:
    """Return whether the runs were given a value, and it is no parameter: it needs no gradient.

    Where only the order of execution says what it was computed from, it may be given all the same:
    the other side's record shows that, or that both sides have exactly these numbers, and not of
    most values that they compute.
    """
    sides = [side for side in graph.sides if side.classes[node] >= 0]
    values = [(side.flow, int(side.classes[node])) for side in sides]
    if any(flow.list_column("parameter")[value] for flow, value in values):
        return False
    is_guessed = node in graph.guessed_nodes and len(values) == 2
    if is_guessed and _has_equal_numbers(graph, node):
        return True
    is_leaf = is_guessed or not graph.parents[node]
    return is_leaf and any(is_graph_input(flow, value) for flow, value in values)


def _has_equal_numbers(graph: JointGraph, node: int) -> bool:
    """Return whether a pair is equal: by its elements, or by its extremes, which no sum rounds.

    In runs of one framework computed values are equal, too, which shows nothing.
    """
    if not graph.median_error > 0:
        return False
    pair = graph.comparison.pairs.iloc[node]
    if pair["metric"] != "statistics":
        return bool(pair["error"] == 0)
    extremes = [
        [side.flow.list_column(name)[int(side.classes[node])] for name in ("max", "min")]
        for side in graph.sides
    ]
    return extremes[0] == extremes[1]


def _compute_share(graph: JointGraph, node: int, end: int) -> float:
    """Return the ratio of the norms of a term and its sum, at most 1; the least of both sides."""
    shares = [1.0]
    for side in graph.sides:
        values = side.classes[[node, end]]
        if values.min() < 0:
            continue
        norm, sum_norm = np.asarray(side.flow.norms)[values].tolist()
        if sum_norm > 0:
            shares.append(norm / sum_norm)
    return float(np.fmin.reduce(shares))
