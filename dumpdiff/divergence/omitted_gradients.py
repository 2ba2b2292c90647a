"""Gradients that one side does not pass on: the op that has none, the sum that lacks one.

A gradient that is stopped leaves no value. What the other side computes from it has no partner, and
the first value that can be compared may be many ops further on. Where it was stopped is known all
the same: both sides have what it would be computed from, or added to.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..model.trace import BACKWARD
from ..model.verdict import AGREEING
from .joint_graph import GraphSide, JointGraph
from .states import States

#: Kind of an op that adds up the gradients of branches.
_SUM_KIND = "add"
#: Ops that are named of those that read a gradient which lacks a branch.
_MAX_READERS = 2


def find_omitting_ops(
    graph: JointGraph, states: States, node: int, unpaired_nodes: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the ops of both sides that leave out a gradient which the other side passes on.

    ``node`` is the gradient that differs, ``unpaired_nodes`` are those between it and agreement.
    """
    omitting_ops: tuple[list[int], list[int]] = ([], [])
    if graph.phase[node] != BACKWARD:
        return omitting_ops
    for i, own in enumerate(graph.sides):
        other = graph.sides[1 - i]
        surplus_nodes = [
            unpaired
            for unpaired in unpaired_nodes
            if other.classes[unpaired] >= 0 and own.classes[unpaired] < 0
        ]
        for surplus in surplus_nodes:
            omitting_ops[i].extend(_find_call_without_gradient(graph, states, own, other, surplus))
        omitting_ops[i].extend(_find_readers_of_branch(graph, states, own, other, surplus_nodes))
        has_own_values = any(own.classes[unpaired] >= 0 for unpaired in unpaired_nodes)
        if surplus_nodes and not has_own_values:
            omitting_ops[i].extend(_find_incomplete_sum(graph, states, own, other, node))
    return omitting_ops


def _find_call_without_gradient(
    graph: JointGraph, states: States, own: GraphSide, other: GraphSide, surplus: int
) -> list[int]:
    """Return the backward record that reads what a surplus gradient is computed from, if one does.

    That is an agreeing gradient, and agreeing values that its forward call read.
    """
    producer = other.find_producer(surplus)
    if producer < 0:
        return []
    values = [value for value in other.flow.reads[producer] if other.flow.sizes[value] > 1]
    nodes = [int(other.nodes[value]) for value in values]
    if not all(states.state[node] == AGREEING and own.classes[node] >= 0 for node in nodes):
        return []
    gradients = [int(own.classes[node]) for node in nodes if graph.phase[node] == BACKWARD]
    factors = {int(own.classes[node]) for node in nodes if graph.phase[node] != BACKWARD}
    if len(gradients) != 1 or not factors:
        return []
    records = []
    for op in own.flow.consumers[gradients[0]]:
        call = own.flow.calls[op]
        if call >= 0 and factors <= set(own.flow.reads[call]):
            records.append(op)
    return records if len(records) == 1 else []


def _find_readers_of_branch(
    graph: JointGraph,
    states: States,
    own: GraphSide,
    other: GraphSide,
    surplus_nodes: Sequence[int],
) -> list[int]:
    """Return the first ops that read one branch of a gradient, if the other side adds another one.

    The sum and the other branch have no partner, and the sum is the first of its kind.
    """
    for surplus in sorted(surplus_nodes, key=lambda node: graph.ranks[node]):
        adding_op = other.find_producer(surplus)
        if adding_op < 0 or other.kinds[adding_op] != _SUM_KIND:
            continue
        addends = {int(other.nodes[value]) for value in other.flow.reads[adding_op]}
        shared = [
            node for node in addends if states.state[node] == AGREEING and own.classes[node] >= 0
        ]
        if len(shared) != 1 or not addends & set(surplus_nodes):
            continue
        readers = own.flow.consumers[int(own.classes[shared[0]])]
        return [op for op in readers if own.flow.phases[op] == BACKWARD][:_MAX_READERS]
    return []


def _find_incomplete_sum(
    graph: JointGraph, states: States, own: GraphSide, other: GraphSide, node: int
) -> list[int]:
    """Return the sum of gradients that the op which computes a node reads, if it lacks a branch.

    The sum agrees with a value that the other side adds something to before it goes on.
    """
    producer, other_producer = own.find_producer(node), other.find_producer(node)
    if producer < 0 or other_producer < 0:
        return []
    sums = []
    for value in own.flow.reads[producer]:
        sum_node = int(own.nodes[value])
        adding_op = own.find_producer(sum_node)
        if adding_op < 0 or graph.phase[sum_node] != BACKWARD or states.state[sum_node] != AGREEING:
            continue
        other_value = int(other.classes[sum_node])
        is_read = other_value in other.flow.reads[other_producer]
        if own.kinds[adding_op] == _SUM_KIND and other_value >= 0 and not is_read:
            sums.append(adding_op)
    return sums
