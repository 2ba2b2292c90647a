"""Lists of whole numbers, one for each row, in two arrays instead of a Python object for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise

import numpy as np

from .arrays import Flags, Ints, view_numbers


@dataclass(frozen=True)
class IntLists:
    """A list of whole numbers for each row: the compressed sparse row form of a set of edges."""

    starts: Ints  #: (rows + 1,) where the list of each row begins in ``values``
    values: Ints  #: the lists of all rows, one after the other

    @staticmethod
    def from_pairs(n_rows: int, rows: Ints, values: Ints) -> IntLists:
        """Return the lists of pairs (row, value); values of one row keep their order."""
        order = np.argsort(rows, kind="stable")
        counts = np.bincount(rows, minlength=n_rows)
        return IntLists(np.append(0, np.cumsum(counts)), values[order])

    @staticmethod
    def from_lists(lists: Iterable[Iterable[int]]) -> IntLists:
        """Return the same lists."""
        rows = [list(row) for row in lists]
        starts = np.append(0, np.cumsum(np.array([len(row) for row in rows], dtype=np.int64)))
        return IntLists(starts, np.fromiter(chain.from_iterable(rows), np.int64, int(starts[-1])))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> tuple[int, ...]:
        starts, values = self._views
        return tuple(values[starts[row] : starts[row + 1]])

    @cached_property
    def _views(self) -> tuple[memoryview, memoryview]:
        """``starts`` and ``values`` for loops."""
        return view_numbers(self.starts), view_numbers(self.values)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        values = self.values.tolist()
        for start, end in pairwise(self.starts.tolist()):
            yield tuple(values[start:end])

    @property
    def counts(self) -> Ints:
        """(rows,) how long each list is."""
        return np.diff(self.starts)

    @property
    def rows(self) -> Ints:
        """(values,) the row of each value."""
        return np.repeat(np.arange(len(self)), self.counts)

    @property
    def first_values(self) -> Ints:
        """(rows,) the first value of each list, -1 for an empty one."""
        first_values = np.full(len(self), -1)
        is_filled = self.counts > 0
        first_values[is_filled] = self.values[self.starts[:-1][is_filled]]
        return first_values

    def take(self, rows: Ints) -> IntLists:
        """Return the lists of these rows."""
        counts = self.counts[rows]
        ends = np.cumsum(counts)
        # where the list of each row begins here, less where it begins in the result
        offsets = np.repeat(self.starts[rows] - (ends - counts), counts)
        return IntLists(np.append(0, ends), self.values[offsets + np.arange(len(offsets))])

    def remove_repeats(self) -> IntLists:
        """Return the lists with the first of equal values of a row only."""
        if not len(self.values):
            return self
        rows = self.rows
        pairs = rows * (int(self.values.max()) + 1) + self.values
        first = np.sort(np.unique(pairs, return_index=True)[1])
        return IntLists.from_pairs(len(self), rows[first], self.values[first])

    def flag_members(self, rows: Ints, values: Ints) -> Flags:
        """Return (values,) whether the list of each row holds the value, which may be -1."""
        n_values = int(max(self.values.max(initial=-1), values.max(initial=-1))) + 2
        own_places = self.rows * n_values + self.values + 1
        flags: Flags = np.isin(rows * n_values + values + 1, own_places)
        return flags

    def invert(self, n_values: int) -> IntLists:
        """Return for each value below ``n_values`` the rows that have it, in order."""
        return IntLists.from_pairs(n_values, self.values, self.rows)
