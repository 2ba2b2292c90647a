"""Values that no recorded op produced, and that together are one recorded value.

A router's weights are indexed, ``weights[tokens, places]``: each expert reads those of its own
tokens, and no recorder shows the indexing. But all of them together are the weights. So are the
single numbers of a vector, ``weights[0] * x + weights[1] * y``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..model.arrays import Ints
from ..model.dtypes import is_floating
from ..model.int_lists import IntLists
from ..model.trace import FORWARD, flag_words

#: Relative difference of the sum of squares of the same numbers, summed in another order.
_SUMMATION_ERROR = 4e-6
_MIN_PARTS = 2
#: Single numbers of one group that are tried, and the longest vector that they may be of.
_MAX_NUMBERS, _MAX_VECTOR = 64, 8


def find_partitions(
    classes: pd.DataFrame,
    consumers: IntLists,
    ops: pd.DataFrame,
    slots: Sequence[str],
) -> dict[int, int]:
    """Return part -> whole, by class.

    ``consumers`` are the ops that read a class, ``slots`` the slot of its first tensor. The parts
    are read in one slot by ops of one kind in one module call of the forward pass, single numbers
    one after the other. They have as many elements as the whole, its extremes, and the sum of their
    squares is its own.
    """
    groups = _group_leaves(classes, consumers, ops, slots)
    if not groups:
        return {}
    groups += _cut_numbers(groups, classes["size"].to_numpy(), consumers)
    highs, lows, norms = (classes[name].to_numpy(dtype=float) for name in ("max", "min", "norm"))
    sizes, producers = classes["size"].to_numpy(), classes["producer"].to_numpy()
    all_parts = np.concatenate(groups)
    starts = np.append(0, np.cumsum([len(parts) for parts in groups])[:-1])
    # what a whole has to have: the number of elements of its parts, and their extremes
    group_keys = [
        np.add.reduceat(sizes[all_parts], starts),
        np.maximum.reduceat(highs[all_parts], starts),
        np.minimum.reduceat(lows[all_parts], starts),
    ]
    is_possible = producers >= 0
    for column, wanted_numbers in zip((sizes, highs, lows), group_keys, strict=True):
        is_possible &= np.isin(column, wanted_numbers)
    wholes = np.flatnonzero(is_possible)
    wholes = wholes[np.argsort(producers[wholes], kind="stable")]
    wholes_of: defaultdict[tuple[int, float, float], list[int]] = defaultdict(list)
    whole_keys = zip(*(column[wholes].tolist() for column in (sizes, highs, lows)), strict=True)
    for key, whole in zip(whole_keys, wholes.tolist(), strict=True):
        wholes_of[key].append(whole)
    whole_of: dict[int, int] = {}
    keys = zip(*(key.tolist() for key in group_keys), strict=True)
    for parts, key in zip(groups, keys, strict=True):
        candidates: Ints = np.array(wholes_of.get(key, ()), dtype=np.int64)
        if not len(candidates):
            continue
        square_sum = float(np.sum(norms[parts] ** 2))
        is_whole = producers[candidates] < consumers[parts[0]][0]
        is_whole &= np.abs(norms[candidates] ** 2 - square_sum) <= _SUMMATION_ERROR * square_sum
        if square_sum > 0 and is_whole.any() and whole_of.keys().isdisjoint(parts):
            whole_of.update(dict.fromkeys(parts, int(candidates[is_whole][-1])))
    return whole_of


def _cut_numbers(
    groups: Sequence[Sequence[int]], sizes: Ints, consumers: IntLists
) -> list[list[int]]:
    """Return the runs of single numbers within groups that may be a vector: several are read."""
    runs: list[list[int]] = []
    for group in groups:
        numbers = sorted((value for value in group if sizes[value] == 1), key=consumers.__getitem__)
        if _MIN_PARTS < len(numbers) <= _MAX_NUMBERS:
            for length in range(_MIN_PARTS, min(len(numbers), _MAX_VECTOR + 1)):
                runs += [
                    numbers[start : start + length] for start in range(len(numbers) - length + 1)
                ]
    return runs


def _group_leaves(
    classes: pd.DataFrame,
    consumers: IntLists,
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
