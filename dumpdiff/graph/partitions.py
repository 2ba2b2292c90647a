"""Values that no recorded op produced, and that together are one recorded value.

A router's weights are indexed, ``weights[tokens, places]``: each expert reads those of its own
tokens, and no recorder shows the indexing. But all of them together are the weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..model.arrays import Ints
from ..model.dtypes import is_floating
from ..model.trace import FORWARD, flag_words

#: Relative difference of the sum of squares of the same numbers, summed in another order.
_SUMMATION_ERROR = 4e-6
_MIN_PARTS = 2


def find_partitions(
    classes: pd.DataFrame,
    consumers: Sequence[Sequence[int]],
    ops: pd.DataFrame,
    slots: Sequence[str],
) -> dict[int, int]:
    """Return part -> whole, by class.

    ``consumers`` are the ops that read a class, ``slots`` the slot of its first tensor. The parts
    are read in one slot by ops of one kind in one module call of the forward pass. They have as
    many elements as the whole, its extremes, and the sum of their squares is its own.
    """
    groups = _group_leaves(classes, consumers, ops, slots)
    if not groups:
        return {}
    highs, lows, norms = (classes[name].to_numpy(dtype=float) for name in ("max", "min", "norm"))
    sizes, producers = classes["size"].to_numpy(), classes["producer"].to_numpy()
    computed = np.flatnonzero(producers >= 0)
    computed = computed[np.lexsort((producers[computed], sizes[computed]))]
    sorted_sizes = sizes[computed]
    whole_of: dict[int, int] = {}
    for parts in groups:
        square_sum = float(np.sum(norms[parts] ** 2))
        begin, end = np.searchsorted(sorted_sizes, sizes[parts].sum() + np.array([0, 1]))
        wholes: Ints = computed[begin:end]
        is_whole = producers[wholes] < consumers[parts[0]][0]
        is_whole &= (highs[wholes] == highs[parts].max()) & (lows[wholes] == lows[parts].min())
        is_whole &= np.abs(norms[wholes] ** 2 - square_sum) <= _SUMMATION_ERROR * square_sum
        if square_sum > 0 and is_whole.any():
            whole_of.update(dict.fromkeys(parts, int(wholes[is_whole][-1])))
    return whole_of


def _group_leaves(
    classes: pd.DataFrame,
    consumers: Sequence[Sequence[int]],
    ops: pd.DataFrame,
    slots: Sequence[str],
) -> list[list[int]]:
    """Return the unnamed values that nothing recorded produced, by what reads them."""
    is_leaf = (classes["producer"] < 0) & (classes["parameter"] == "")
    is_chosen = is_leaf.to_numpy() & flag_words(classes["dtype"], is_floating)
    kinds, parents, phases = (ops[name].tolist() for name in ("kind", "parent", "phase"))
    groups: defaultdict[tuple[str, int, str], list[int]] = defaultdict(list)
    for value in np.flatnonzero(is_chosen).tolist():
        if len(consumers[value]) != 1:
            continue
        op = consumers[value][0]
        if phases[op] == FORWARD and parents[op] >= 0:
            groups[kinds[op], parents[op], slots[value]].append(value)
    return [parts for parts in groups.values() if len(parts) >= _MIN_PARTS]
