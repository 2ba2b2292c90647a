"""How much of a value's error what is computed from it shows, or carries on: its share of a sum."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable

import numpy as np

from ..model.arrays import Floats
from ..model.dtypes import MASK_MAGNITUDE
from .cancellation import SUM_KINDS, average_class_column, flag_records
from .joint_graph import GraphSide, JointGraph

#: Kinds that take elements out of a tensor, each at most once.
_PART_KINDS = frozenset({"slice", "split"})
#: A single number shows at least this share of the error that is expected of it in 97 of 100 cases:
#: a normal variable is below 1/30 of its deviation with a probability of 2.7 %. Without it the loss
#: of a batch norm with another epsilon agreed by chance, and excused the whole forward pass.
_SHOWN_SHARE = 1 / 30


def build_visibility_function(graph: JointGraph) -> Callable[[int, int], float]:
    """Return a function of (node, child): how much of a node's relative error the child shows.

    It is a lower bound. A single number computed from n terms with errors of random sign shows one
    part in sqrt(n) of their relative error on average (Higham and Mary, SIAM J. Sci. Comput. 41,
    2019, theorem 2.4), and often less: the errors cancel by chance, see _SHOWN_SHARE. An addition
    shows the node's share of the result. Sums of rows that are used with the rows again, as in a
    norm, are taken to show everything: a judgment call.
    """
    sizes = _pack(np.fmax(1.0, average_class_column(graph, lambda flow: flow.sizes)))
    compute_share = build_share_function(graph)

    def compute_visibility(node: int, child: int) -> float:
        reduction = 1.0
        if sizes[child] == 1 < sizes[node]:
            reduction = _SHOWN_SHARE / math.sqrt(sizes[node])
        return compute_share(node, child) * reduction

    return compute_visibility


def build_share_function(graph: JointGraph) -> Callable[[int, int], float]:
    """Return a function of (node, child): the node's share of a child that is a sum, at most 1.

    The share is a ratio of root mean squares; 1 where the child is no sum. The relative error of a
    sum is that of its terms times their shares: a new weight differs by little of what a step
    differs by. The gradient of a term is no sum of terms, although its record names the operator.
    """
    rms = _pack(average_class_column(graph, lambda flow: np.array(flow.rms, dtype=float)))
    is_sum_node = np.zeros(graph.n_nodes, dtype=bool)
    for side in graph.sides:
        is_sum_op = np.append(side.op_kinds.flag(SUM_KINDS.__contains__), False)
        is_sum_op &= ~flag_records(side)
        is_sum_node |= is_sum_op[side.producers]
    is_sum = is_sum_node.tolist()

    def compute_share(node: int, child: int) -> float:
        has_share = is_sum[child] and rms[child] > 0
        if not has_share:
            return 1.0
        share: float = rms[node] / rms[child]
        if not math.isfinite(share):
            return 1.0
        return min(1.0, share)

    return compute_share


def build_carried_share_function(graph: JointGraph) -> Callable[[int, int], float]:
    """Return a function of (node, child): how much larger the child's relative error may be.

    In a sum it is the node's share. A part of a tensor may have all of its error: the errors of
    elements are those of the whole, which are divided by the norm of the part. Nothing else is
    enlarged here. The error of a value with masking constants is relative to its other elements,
    whose norm no record has: they are taken to be as large as those of the part.
    """
    compute_share = build_share_function(graph)
    norms = _pack(average_class_column(graph, lambda flow: np.asarray(flow.norms, dtype=float)))
    sizes = _pack(average_class_column(graph, lambda flow: flow.sizes))
    lowest = average_class_column(graph, lambda flow: flow.classes["min"].to_numpy(dtype=float))
    is_masked = (lowest < -MASK_MAGNITUDE).tolist()

    def compute_carried_share(node: int, child: int) -> float:
        share = compute_share(node, child)
        if share < 1 or not 1 < sizes[child] < sizes[node] or not 0 < norms[child] < norms[node]:
            return share
        is_part = all(
            _is_part(side, int(side.classes[node]), int(side.classes[child]))
            for side in graph.sides
            if side.classes[child] >= 0 and side.classes[node] >= 0
        )
        if is_part and is_masked[node] and not is_masked[child]:
            return math.sqrt(sizes[node] / sizes[child])
        return norms[node] / norms[child] if is_part else share

    return compute_carried_share


def _pack(column: Floats) -> array[float]:
    """Return numbers that are read one by one: as fast as those of a list, in a quarter of it."""
    return array("d", column.tobytes())


def _is_part(side: GraphSide, value: int, child: int) -> bool:
    """Return whether a smaller value may be a part of another one.

    An op takes elements out of that one, or no op is recorded, and the extremes are within its own.
    """
    flow, producer = side.flow, int(side.flow.producers[child])
    if producer >= 0 and side.kinds[producer] not in _PART_KINDS:
        return False
    highs, lows = flow.list_column("max"), flow.list_column("min")
    return bool(highs[child] <= highs[value] and lows[child] >= lows[value])
