"""Ops that should contain a factor which only the other side applies as an op of its own.

One side multiplies the number of rows by that of columns, the other one adds up all elements at
once. One side divides by a probability and multiplies by a mask, the other one multiplies by the
mask divided by the probability. If the sum lacks the columns, or the factor the mask, its result
agrees with that before the other side's factor. What is wrong is in the op that computed it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..model.trace import FORWARD
from ..model.verdict import AGREEING
from .joint_graph import GraphSide, JointGraph
from .states import States

#: Kinds that apply a factor, which is an operand.
_SCALING_KINDS = frozenset({"mul", "div"})
#: Kinds whose result may contain a factor: that of an operand, or the number of what they add up.
_CONTAINING_KINDS = _SCALING_KINDS | {"sum", "mean"}


def find_ops_without_factor(
    graph: JointGraph,
    states: States,
    unpaired_nodes: Sequence[int],
    ops_of_sides: tuple[list[int], list[int]],
) -> tuple[list[int], list[int]]:
    """Return the ops of each side before which, or in which, a factor of the other side is missing.

    ``unpaired_nodes`` and ``ops_of_sides`` are those between agreement and a value that differs.
    Where the other side reads an agreeing value times a factor, this side has an op of the same
    kind that reads the agreeing value as it is. With the op that computed this value come those
    that computed its own factors, where these have no partner.
    """
    ops_without_factor: tuple[list[int], list[int]] = ([], [])
    for i, own in enumerate(graph.sides):
        other, other_ops = graph.sides[1 - i], ops_of_sides[1 - i]
        for product in unpaired_nodes:
            factored_value = _find_factored_value(graph, states, own, other, product)
            if factored_value < 0:
                continue
            reading_kinds = {
                other.kinds[op]
                for op in other_ops
                if int(other.classes[product]) in other.flow.operands[op]
            }
            has_reader = any(
                own.kinds[op] in reading_kinds and factored_value in own.flow.operands[op]
                for op in ops_of_sides[i]
            )
            producer = int(own.flow.producers[factored_value])
            if has_reader and own.kinds[producer] in _CONTAINING_KINDS:
                ops_without_factor[i].extend([producer, *_list_factor_ops(own, other, producer)])
    return ops_without_factor


def _find_factored_value(
    graph: JointGraph, states: States, own: GraphSide, other: GraphSide, product: int
) -> int:
    """Return the own class of the one agreeing value that the other side scales, -1 if none is.

    ``product`` is the node of the scaled value, in the forward pass. All factors are values that
    this side does not have, or numbers.
    """
    scaling_op = other.find_producer(product)
    is_scaled = scaling_op >= 0 and other.kinds[scaling_op] in _SCALING_KINDS
    if not is_scaled or graph.phase[product] != FORWARD:
        return -1
    shared_nodes = [
        node
        for node in other.nodes[list(other.flow.operands[scaling_op])].tolist()
        if own.classes[node] >= 0
    ]
    if len(shared_nodes) != 1 or states.state[shared_nodes[0]] != AGREEING:
        return -1
    is_computed = own.find_producer(shared_nodes[0]) >= 0
    return int(own.classes[shared_nodes[0]]) if is_computed else -1


def _list_factor_ops(own: GraphSide, other: GraphSide, op: int) -> list[int]:
    """Return the ops that computed those factors of an op which have no partner."""
    if own.kinds[op] not in _SCALING_KINDS:
        return []
    unpaired_values = [
        value for value in own.flow.operands[op] if other.classes[own.nodes[value]] < 0
    ]
    producers = [int(own.flow.producers[value]) for value in unpaired_values]
    return [producer for producer in producers if producer >= 0]
