"""What the values of sibling ranks make up together, and its statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..model.arrays import AnyArray, Floats, Ints


@dataclass(frozen=True)
class Relation:
    """What the values of sibling ranks make up together: parts, concatenated in this order."""

    #: for each part the ranks whose values are added up, one if the part is what a rank holds
    parts: tuple[tuple[int, ...], ...]
    #: per rank the first rank that holds the same numbers; -1: has none
    pattern: tuple[int, ...]
    factor: float = 1.0  #: the combined value is multiplied by it

    @property
    def is_sum(self) -> bool:
        """Whether values of several ranks are added up."""
        return any(len(part) > 1 for part in self.parts)

    @property
    def is_replicated(self) -> bool:
        """Whether all ranks hold the whole value."""
        return len(self.parts) == 1 and not self.is_sum and self.factor == 1.0


def join_parts(pattern: tuple[int, ...], factor: float = 1.0) -> Relation:
    """Return the concatenation of the different values; one value: replicated.

    >>> join_parts((0, 0, 2, 2)).parts
    ((0,), (2,))
    """
    return Relation(tuple((rank,) for rank in sorted(set(pattern) - {-1})), pattern, factor)


def add_parts(
    pattern: tuple[int, ...], groups: tuple[int, ...], factor: float = 1.0
) -> Relation | None:
    """Return the sums of the different values within groups; None if nothing is added up.

    Groups whose values are the same have the same sum, which is taken once.

    >>> add_parts((0, 1, 2, 3), (0, 0, 2, 2)).parts
    ((0, 1), (2, 3))
    >>> add_parts((0, 0, 2, 2), (0, 1, 0, 1)).parts
    ((0, 2),)
    """
    parts = []
    for group in sorted(set(groups)):
        labels = {label for label, member in zip(pattern, groups, strict=True) if member == group}
        part = tuple(sorted(labels - {-1}))
        if part and part not in parts:
            parts.append(part)
    relation = Relation(tuple(parts), pattern, factor)
    return relation if relation.is_sum else None


def combine_statistics(statistics: Floats, sizes: Ints, relation: Relation) -> tuple[Floats, Ints]:
    """Return (rows, 4) max, min, mean and norm of the combined values, and (rows,) their sizes.

    ``statistics`` is (rows, ranks, 4). Of a sum, only the mean follows from statistics, unless it
    is one of single numbers.
    """
    part_statistics, part_sizes = [], []
    for ranks in relation.parts:
        part_statistics.append(_add_statistics(statistics[:, ranks], sizes[:, ranks]))
        part_sizes.append(sizes[:, ranks].max(axis=1))
    values = np.stack(part_statistics, axis=1)
    counts = np.stack(part_sizes, axis=1)
    totals = counts.sum(axis=1)
    combined = np.full((len(values), 4), np.nan)
    with np.errstate(all="ignore"):
        combined[:, 0] = values[:, :, 0].max(axis=1)
        combined[:, 1] = values[:, :, 1].min(axis=1)
        combined[:, 2] = (values[:, :, 2] * counts).sum(axis=1) / totals
        combined[:, 3] = np.sqrt(np.square(values[:, :, 3]).sum(axis=1))
    return combined * relation.factor, totals


def _add_statistics(statistics: Floats, sizes: Ints) -> Floats:
    """Return (rows, 4) the statistics of the sum over ranks, NaN where they do not follow."""
    if statistics.shape[1] == 1:
        first: Floats = statistics[:, 0]
        return first
    total = statistics.sum(axis=1)
    is_single = sizes.max(axis=1) == 1
    numbers = np.where(is_single, total[:, 0], np.nan)
    return np.stack([numbers, numbers, total[:, 2], np.abs(numbers)], axis=1)


def group_patterns(patterns: Ints, rows: Ints) -> Iterator[tuple[tuple[int, ...], Ints]]:
    """Yield every pattern among some rows, with these rows."""
    if not len(rows):
        return
    unique_patterns, codes = np.unique(patterns[rows], axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    for code, pattern in enumerate(unique_patterns.tolist()):
        yield tuple(pattern), rows[codes == code]


def add_arrays(arrays: Sequence[AnyArray], ranks: Sequence[int]) -> AnyArray:
    """Return the sum of the arrays of some ranks, in their order."""
    total = arrays[ranks[0]]
    for rank in ranks[1:]:
        total = total + arrays[rank]
    return total
