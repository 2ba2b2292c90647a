"""Parts whose names differ only in a number: experts, tables or layers that one side stacks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from ..graph import Flow
from .values import Fingerprints, compute_distances

#: A component of a name that is a number: the 3 of ``mlp.experts.3.weight``.
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def find_numbered_parts(
    whole_flow: Flow,
    wholes: Sequence[int],
    part_flow: Flow,
    leaves: Sequence[int],
    tolerance: float,
) -> dict[int, tuple[int, ...]]:
    """Return for each leaf among ``wholes`` the numbered ``leaves`` that make it up, in order.

    They have one size, their numbers are 0, 1, 2 and so on, and as one tensor they have its
    statistics. A whole that several series would make up is left out.
    """
    prints_w = Fingerprints.from_table(whole_flow.classes)
    prints_p = Fingerprints.from_table(part_flow.classes)
    wholes_by_size: defaultdict[int, list[int]] = defaultdict(list)
    for value in wholes:
        wholes_by_size[int(whole_flow.sizes[value])].append(value)
    series_of: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
    for parts in _list_series(part_flow, leaves):
        joined = prints_p.join(parts)
        if joined.high[0] == joined.low[0]:
            continue  # all biases that are 0 look the same
        candidates = np.array(wholes_by_size.get(int(joined.size[0]), []), dtype=np.int64)
        rows = np.zeros(len(candidates), dtype=np.int64)
        distances = compute_distances(prints_w, candidates, joined, rows)
        for value in candidates[distances <= tolerance].tolist():
            series_of[value].append(parts)
    return {value: series[0] for value, series in series_of.items() if len(series) == 1}


def _list_series(flow: Flow, leaves: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the leaves whose names differ in one number only, sorted by it."""
    names = flow.list_column("parameter")
    members: defaultdict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    for value in leaves:
        name = str(names[value])
        for number in _NUMBER.finditer(name):
            members[name[: number.start()], name[number.end() :]][int(number.group())] = value
    return [
        tuple(series[number] for number in range(len(series)))
        for series in members.values()
        if len(series) > 1 and _is_complete(flow, series)
    ]


def _is_complete(flow: Flow, series: Mapping[int, int]) -> bool:
    """Return whether the numbers start at 0 without a gap, and all leaves have one known size."""
    sizes = flow.sizes[list(series.values())]
    return series.keys() == set(range(len(series))) and sizes.min() == sizes.max() > 0
