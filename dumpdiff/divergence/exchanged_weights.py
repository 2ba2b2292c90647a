"""Two weights that changed places, seen at the ops that read what was computed with them."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np

from ..alignment.fused_groups import CUTTING_KINDS
from ..graph import Flow
from ..graph.missing_edges import find_bridge
from .joint_graph import GraphSide, JointGraph

#: Factor by which rounding may make the squared norm of two parts larger than that of the whole.
_PART_SLACK = 1.0 + 1e-4


def find_exchanged_weight_ops(
    graph: JointGraph, ops_of_sides: tuple[list[int], list[int]]
) -> tuple[list[int], list[int]]:
    """Return the ops that compute what the ops of one side read, and the other side's do not.

    Both sides have the values that either reads, each computed like the other with another weight:
    1 + w of two norms, or q + u and q + v. One side may compute both as one value and cut it, such
    as gate and up. What is wrong begins with the weight.
    """
    exchanged_ops: tuple[list[int], list[int]] = ([], [])
    for nodes in _list_exchanged_operands(graph, ops_of_sides):
        are_weighted = [_differ_by_weight(own, *nodes) for own in graph.sides]
        if not any(are_weighted):
            continue
        wholes = [
            -1 if is_weighted else _find_common_whole(own, *nodes)
            for own, is_weighted in zip(graph.sides, are_weighted, strict=True)
        ]
        if any(
            not is_weighted and whole < 0
            for is_weighted, whole in zip(are_weighted, wholes, strict=True)
        ):
            continue
        for own, read_node, whole, side_ops in zip(
            graph.sides, nodes, wholes, exchanged_ops, strict=True
        ):
            value = int(own.classes[read_node]) if whole < 0 else whole
            side_ops.append(int(own.flow.producers[value]))
    return exchanged_ops


def _list_exchanged_operands(
    graph: JointGraph, ops_of_sides: tuple[list[int], list[int]]
) -> list[tuple[int, int]]:
    """Return (node that the target's ops read, node that the reference's read in its place).

    Of a gated product, the ops of both sides read both factors, but each side reads another one
    behind the activation.
    """
    operand_nodes, gated_factors = [], []
    for own, ops in zip(graph.sides, ops_of_sides, strict=True):
        operands = {value for op in ops for value in own.flow.operands[op]}
        operand_nodes.append({int(own.nodes[value]) for value in operands})
        gated_factors.append(_find_gated_factors(own, set(ops)))
    nodes_t, nodes_r = operand_nodes
    exchanged_nodes = set(product(nodes_t - nodes_r, nodes_r - nodes_t))
    for factor, gate in gated_factors[0]:
        if (gate, factor) in gated_factors[1]:
            exchanged_nodes |= {(factor, gate), (gate, factor)}
    return sorted(exchanged_nodes)


def _find_gated_factors(side: GraphSide, ops: set[int]) -> set[tuple[int, int]]:
    """Return the nodes that ops multiply by what they compute from one other node, which is second.

    A gelu that is written out multiplies a value by what follows from the same value.
    """
    flow = side.flow
    gated_factors: set[tuple[int, int]] = set()
    for op in ops:
        factors = flow.operands[op] if side.kinds[op] == "mul" else ()
        for factor, other in permutations(factors, 2):
            gate = _find_only_source(flow, other, ops)
            if gate not in (-1, factor) and int(flow.producers[factor]) not in ops:
                gated_factors.add((int(side.nodes[factor]), int(side.nodes[gate])))
    return gated_factors


def _find_only_source(flow: Flow, value: int, ops: set[int]) -> int:
    """Return the only value from which ops compute another one, -1 if they read several or none."""
    sources: set[int] = set()
    computed_values = {value}
    todo = [value]
    while todo and len(sources) < 2:
        producer = int(flow.producers[todo.pop()])
        for operand in flow.operands[producer] if producer in ops else ():
            if int(flow.producers[operand]) not in ops:
                sources.add(operand)
            elif operand not in computed_values:
                computed_values.add(operand)
                todo.append(operand)
    return sources.pop() if len(sources) == 1 else -1


def _differ_by_weight(side: GraphSide, node: int, other_node: int) -> bool:
    """Return whether one side computes two values alike, with other parameters."""
    values = int(side.classes[node]), int(side.classes[other_node])
    return min(values) >= 0 and _are_weighted_alike(side, *values)


def _are_weighted_alike(side: GraphSide, value: int, other_value: int) -> bool:
    """Return whether ops of one kind compute two values of one, each with parameters of its own.

    The op that adds a bias may follow the product with the weight.
    """
    producers = int(side.flow.producers[value]), int(side.flow.producers[other_value])
    if min(producers) < 0 or side.kinds[producers[0]] != side.kinds[producers[1]]:
        return False
    names = side.flow.list_column("parameter")
    operands = [set(side.flow.operands[producer]) for producer in producers]
    has_parameter = [any(names[operand] for operand in own) for own in operands]
    if not all(has_parameter) or any(names[operand] for operand in operands[0] & operands[1]):
        return False
    results, other_results = (
        [operand for operand in own - other if not names[operand]]
        for own, other in (operands, operands[::-1])
    )
    if len(results) == len(other_results) == 1:
        return _are_weighted_alike(side, results[0], other_results[0])
    return not results and not other_results


def _find_common_whole(side: GraphSide, node: int, other_node: int) -> int:
    """Return the value that two values are parts of, -1 if one side has no such value.

    The op that cut it need not be recorded. Sizes and squared norms of all parts add up to at most
    those of the value.
    """
    values = side.classes[[node, other_node]]
    if (values < 0).any():
        return -1
    wholes = {_find_whole(side, value) for value in values.tolist()}
    whole = wholes.pop()
    if wholes or whole < 0 or side.flow.producers[whole] < 0:
        return -1
    sizes, norms = side.flow.sizes, side.flow.norms
    squares = np.square(norms[values]).sum()
    is_larger = sizes[whole] >= sizes[values].sum() and norms[whole] ** 2 * _PART_SLACK >= squares
    return whole if is_larger else -1


def _find_whole(side: GraphSide, value: int) -> int:
    """Return the value that one was cut from, -1 if it was not."""
    producer = int(side.flow.producers[value])
    if producer < 0:
        bridge = find_bridge(side.flow, value)
        is_part = bridge is not None and bridge.evidence == "part"
        return bridge.parents[0] if bridge is not None and is_part else -1
    operands = side.flow.operands[producer]
    return operands[0] if side.kinds[producer] in CUTTING_KINDS and len(operands) == 1 else -1
