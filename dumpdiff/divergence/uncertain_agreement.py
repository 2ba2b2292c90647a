"""Agreement that statistics do not show: the order of repeated parts, and what a mask hides."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.dtypes import MASK_MAGNITUDE
from ..model.trace import FORWARD
from .joint_graph import GraphSide, JointGraph

#: Kind of the op that repeats parts.
_REPEATING_KIND = "expand"
#: Ops of each side that make a mask and are named.
_MAX_MASK_OPS = 4


def find_uncertain_ops(
    graph: JointGraph, node: int, ops_of_sides: tuple[list[int], list[int]]
) -> tuple[list[int], list[int]]:
    """Return the ops whose results the ops of a node read, and of which statistics show too little.

    Repeated parts have the same statistics in any order, and a masking constant leaves of the
    scores the largest one. Of the mask, statistics show how much it hides: so the ops that made it
    belong to them. Empty for whole tensors.
    """
    uncertain_ops: tuple[list[int], list[int]] = ([], [])
    if graph.comparison.pairs["metric"].iat[node] != "statistics":
        return uncertain_ops
    for own, ops in zip(graph.sides, ops_of_sides, strict=True):
        is_forward = bool(ops) and own.flow.phases[ops[-1]] == FORWARD
        for value in dict.fromkeys(value for op in ops for value in own.flow.operands[op]):
            read_node = int(own.nodes[value])
            producers = [side.find_producer(read_node) for side in graph.sides]
            is_repeated = any(
                producer >= 0 and side.kinds[producer] == _REPEATING_KIND
                for side, producer in zip(graph.sides, producers, strict=True)
            )
            is_hiding = is_forward and _hides(own, value)
            if not is_repeated and not is_hiding:
                continue
            for side, side_ops, producer in zip(graph.sides, uncertain_ops, producers, strict=True):
                mask_ops = _list_mask_ops(graph, side, read_node) if is_hiding else []
                for op in (*mask_ops, producer):
                    if 0 <= op <= producer and op not in side_ops:
                        side_ops.append(op)
    return uncertain_ops


def _hides(side: GraphSide, value: int) -> bool:
    """Return whether a value is flags, or holds a masking constant: a mask, or what it hides."""
    flow = side.flow
    is_flags = flow.list_column("dtype")[value] == "bool"
    return is_flags or bool(flow.list_column("min")[value] < -MASK_MAGNITUDE)


def _list_mask_ops(graph: JointGraph, side: GraphSide, node: int) -> list[int]:
    """Return the last ops of one side that made a mask, or that of some scores; -1 for none."""
    masks = _list_masks(graph.parents[node], side)
    for mask in masks:  # grows on the way
        if len(masks) < _MAX_MASK_OPS:
            masks += [
                parent for parent in _list_masks(graph.parents[mask], side) if parent not in masks
            ]
    return [side.find_producer(mask) for mask in masks[:_MAX_MASK_OPS]]


def _list_masks(nodes: Sequence[int], side: GraphSide) -> list[int]:
    """Return those of some nodes that are masks on one side: flags, 0 and 1, or added numbers."""
    highs, lows, dtypes = (side.flow.list_column(name) for name in ("max", "min", "dtype"))
    masks = []
    for node in nodes:
        value = int(side.classes[node])
        if value < 0:
            continue
        has_flags = dtypes[value] == "bool" or (highs[value], lows[value]) == (1, 0)
        if has_flags or (highs[value] == 0 and lows[value] < -MASK_MAGNITUDE):
            masks.append(node)
    return masks
