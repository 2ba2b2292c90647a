"""Ops that put the numbers of a value in another order before a difference.

All tensors that hold the same numbers are one value, in whatever order. So a roll, a flip or a cut
and join that only one side makes is no value of its own. It shows where an op computes with the
rearranged numbers, and belongs to the difference there.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..comparison.layouts import has_common_order
from ..model.arrays import AnyArray
from ..model.recorded_shapes import load_readable_tensor
from .joint_graph import GraphSide, JointGraph

#: Elements of a tensor that is read. A larger one would take seconds.
_MAX_ELEMENTS = 1 << 22


def find_rearranging_ops(
    graph: JointGraph, ancestors: Sequence[int], ops: tuple[Sequence[int], Sequence[int]]
) -> tuple[list[int], list[int]]:
    """Return the ops of both sides that rearranged what ``ops`` read of agreeing values.

    ``ancestors`` are the nodes of these values. None are returned for a value that the ops of both
    sides read in one order, or of which one side has no whole tensor.
    """
    rearranging_ops: tuple[list[int], list[int]] = ([], [])
    pairs = graph.comparison.pairs
    for node in ancestors:
        if node >= len(pairs) or pairs["metric"].iat[node] != "relative_l2":
            continue
        rows = [
            _find_read_row(side, int(side.classes[node]), side_ops)
            for side, side_ops in zip(graph.sides, ops, strict=True)
        ]
        arrays = [_load(side, row) for side, row in zip(graph.sides, rows, strict=True)]
        if not _are_rearranged(arrays[0], arrays[1]):
            continue
        for side, row, found_ops in zip(graph.sides, rows, rearranging_ops, strict=True):
            op = _find_first_rearrangement(side, int(side.classes[node]), row)
            if op >= 0 and op not in found_ops:
                found_ops.append(op)
    return rearranging_ops


def _find_read_row(side: GraphSide, value: int, ops: Sequence[int]) -> int:
    """Return the first tensor by which one of the ops reads a value, -1 if none does."""
    slot_kinds = side.flow.tensors["slot_kind"]
    for op in ops:
        for row in side.flow.get_tensor_ids(op).tolist():
            if side.flow.tensor_class[row] == value and slot_kinds.iat[row] != "output":
                return int(row)
    return -1


def _find_first_rearrangement(side: GraphSide, value: int, read_row: int) -> int:
    """Return the first op before a read that gives a value in another order than its producer.

    -1 if none does.
    """
    flow = side.flow
    written = _load(side, int(flow.list_column("tensor")[value]))
    ops = flow.tensors["op"].to_numpy()
    is_candidate = flow.is_computed & (flow.tensor_class == value) & (ops < ops[read_row])
    is_candidate &= ops != flow.producers[value]
    rows = is_candidate.nonzero()[0]
    for row in rows[ops[rows].argsort(kind="stable")].tolist():
        if _are_rearranged(_load(side, row), written):
            return int(ops[row])
    return -1


def _are_rearranged(first: AnyArray | None, second: AnyArray | None) -> bool:
    """Return whether two whole tensors of one value hold its numbers in different orders.

    False if one is missing, or is a part of a fused tensor.
    """
    if first is None or second is None or first.size != second.size:
        return False
    return not has_common_order(first, second)


def _load(side: GraphSide, row: int) -> AnyArray | None:
    """Return a whole tensor in its recorded shape, None if there is none or it is too large."""
    if row < 0 or side.flow.tensors["size"].iat[row] > _MAX_ELEMENTS:
        return None
    return load_readable_tensor(side.flow.trace, row)
