"""Values that no recorded op produced, and that together are one recorded value.

A router's weights are indexed, ``weights[tokens, places]``: each expert reads those of its own
tokens, and no recorder shows the indexing. But all of them together are the weights.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..model.dtypes import is_floating
from ..model.trace import FORWARD
from .dataflow import Flow

#: Relative difference of the sum of squares of the same numbers, summed in another order.
_SUMMATION_ERROR = 4e-6
_MIN_PARTS = 2
_CACHE_KEY = "wholes"


def find_partitions(flow: Flow) -> dict[int, int]:
    """Return part -> whole, by class.

    The parts are read in one slot by ops of one kind in one module call of the forward pass. They
    have as many elements as the whole, its extremes, and the sum of their squares is its own.
    """
    if _CACHE_KEY in flow.part_cache:
        return flow.part_cache[_CACHE_KEY]
    whole_of: dict[int, int] = {}
    for (first_op, _), parts in _group_leaves(flow).items():
        whole = _find_whole(flow, parts, first_op)
        if whole >= 0:
            whole_of.update(dict.fromkeys(parts, whole))
    flow.part_cache[_CACHE_KEY] = whole_of
    return whole_of


def _group_leaves(flow: Flow) -> dict[tuple[int, str], list[int]]:
    """Return (first op that reads one, slot) -> unnamed values that nothing recorded produced."""
    names, dtypes = flow.list_column("parameter"), flow.list_column("dtype")
    kinds, parents = flow.trace.ops["kind"].tolist(), flow.trace.ops["parent"].tolist()
    slots = flow.tensors["slot"].to_numpy()
    groups: defaultdict[tuple[str, int, str], list[int]] = defaultdict(list)
    for value in np.flatnonzero(flow.producers < 0).tolist():
        consumers = flow.consumers[value]
        if names[value] or len(consumers) != 1 or not is_floating(dtypes[value]):
            continue
        op = consumers[0]
        if flow.phases[op] != FORWARD or parents[op] < 0:
            continue
        rows = flow.get_tensor_ids(op)
        own_rows = rows[flow.tensor_class[rows] == value]
        groups[kinds[op], parents[op], str(slots[own_rows[0]])].append(value)
    return {
        (flow.consumers[parts[0]][0], slot): parts
        for (_, _, slot), parts in groups.items()
        if len(parts) >= _MIN_PARTS
    }


def _find_whole(flow: Flow, parts: list[int], first_op: int) -> int:
    """Return the last value produced before an op that the parts are together, -1 if none is."""
    highs, lows = flow.classes["max"].to_numpy(), flow.classes["min"].to_numpy()
    square_sum = float(np.sum(flow.norms[parts] ** 2))
    if not square_sum > 0:
        return -1
    is_whole = (flow.producers >= 0) & (flow.producers < first_op)
    is_whole &= flow.sizes == flow.sizes[parts].sum()
    is_whole &= (highs == highs[parts].max()) & (lows == lows[parts].min())
    is_whole &= np.abs(flow.norms**2 - square_sum) <= _SUMMATION_ERROR * square_sum
    wholes = np.flatnonzero(is_whole)
    return int(wholes[np.argmax(flow.producers[wholes])]) if len(wholes) else -1
