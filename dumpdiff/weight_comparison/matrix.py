"""Matrices put together from mapped pieces: their rows are read when they are asked for, and never all at once.

Whatever a checkpoint does to a weight (shards, fused parts, stacked experts, transposes) is a matrix of views here,
so that comparing needs one thing alone: some rows of this beside some rows of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, TypeAlias

import numpy as np

from ..checkpoints.elements import RAW_DTYPES, decode
from ..model.arrays import AnyArray, Floats, Ints

#: Elements that are held in memory at a time, of one side: 4 million float32 are 16 MB.
CHUNK = 1 << 22


class Computed(Protocol):
    """(rows, columns) elements that are worked out when they are asked for, see :mod:`.computed`."""

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""

    @property
    def T(self) -> Computed:
        """The transpose."""

    def take(self, rows: slice | Ints) -> AnyArray:
        """(count, columns) raw elements of some rows."""

    def rows(self, start: int, stop: int) -> Computed:
        """Consecutive rows."""


Block: TypeAlias = AnyArray | Computed


@dataclass(frozen=True, eq=False)
class Matrix:
    """(rows, columns) elements of ``dtype``, as the blocks one below the other (axis 0) or side by side (axis 1).

    Blocks are raw (see :mod:`dumpdiff.checkpoints.elements`): two-dimensional views of mapped files, matrices, or what
    is computed from some.
    """

    blocks: tuple[Block, ...]
    dtype: str
    axis: int = 0
    computed_from: str = (
        ""  #: the dtype that the elements were last rounded to, where they are computed from others
    )

    @property
    def precision(self) -> str:
        """The dtype that says how exact the elements are."""
        return self.computed_from or self.dtype

    @staticmethod
    def from_array(array: AnyArray, dtype: str) -> Matrix:
        """An array of any rank: its first axis are the rows; a vector is a column. Complex numbers are two each."""
        if array.dtype.kind == "c":
            dtype = "float32" if dtype == "complex64" else "float64"
            array = np.ascontiguousarray(array)[..., None].view(dtype)
        rows = array.shape[0] if array.ndim else 1
        return Matrix(
            (array.reshape(rows, -1) if array.size else np.zeros((rows, 0), array.dtype),), dtype
        )

    @cached_property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        lengths = sum(block.shape[self.axis] for block in self.blocks)
        other = self.blocks[0].shape[1 - self.axis]
        return (lengths, other) if self.axis == 0 else (other, lengths)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.shape[0] * self.shape[1]

    @cached_property
    def T(self) -> Matrix:
        """The transpose, a view."""
        return replace(self, blocks=tuple(block.T for block in self.blocks), axis=1 - self.axis)

    @cached_property
    def _bounds(self) -> Ints:
        return np.cumsum([0, *(block.shape[0] for block in self.blocks)])

    def read_raw(self, rows: slice | Ints) -> AnyArray:
        """(count, columns) raw elements of some rows, in the order asked for; a view where it can be one."""
        if len(self.blocks) == 1:
            return _rows(self.blocks[0], rows)
        if self.axis == 1:
            return np.concatenate([_rows(block, rows) for block in self.blocks], axis=1)
        if isinstance(rows, slice):
            return self._consecutive(rows)
        owner = np.searchsorted(self._bounds, rows, side="right") - 1
        found = np.empty((len(rows), self.shape[1]), RAW_DTYPES[self.dtype])
        for number in np.unique(owner).tolist():
            mine = owner == number
            found[mine] = _rows(self.blocks[number], rows[mine] - self._bounds[number])
        return found

    def _consecutive(self, rows: slice) -> AnyArray:
        start, stop, _ = rows.indices(self.shape[0])
        parts = []
        for block, begin, end in zip(
            self.blocks, self._bounds[:-1].tolist(), self._bounds[1:].tolist(), strict=True
        ):
            if begin < stop and start < end:
                parts.append(_rows(block, slice(max(start - begin, 0), min(stop, end) - begin)))
        return (
            parts[0]
            if len(parts) == 1
            else np.concatenate(parts)
            if parts
            else _rows(self.blocks[0], slice(0, 0))
        )

    def read_values(self, rows: slice | Ints) -> Floats:
        """(count, columns) float64 values of some rows."""
        return decode(self.read_raw(rows), self.dtype).astype(np.float64)

    def slice_rows(self, start: int, stop: int) -> Matrix:
        """The matrix of consecutive rows."""
        if len(self.blocks) == 1 or self.axis == 1:
            return replace(self, blocks=tuple(_part(block, start, stop) for block in self.blocks))
        parts = [
            _part(block, max(start - begin, 0), min(stop, end) - begin)
            for block, begin, end in zip(
                self.blocks, self._bounds[:-1].tolist(), self._bounds[1:].tolist(), strict=True
            )
            if begin < stop and start < end
        ]
        return replace(self, blocks=tuple(parts))

    @property
    def rows_per_chunk(self) -> int:
        """How many rows to read at a time."""
        return max(1, CHUNK // max(1, self.shape[1]))


def stack_rows(matrices: Sequence[Matrix]) -> Matrix:
    """Matrices of equal width, one below the other."""
    return (
        matrices[0] if len(matrices) == 1 else replace(matrices[0], blocks=tuple(matrices), axis=0)
    )


def stack_columns(matrices: Sequence[Matrix]) -> Matrix:
    """Matrices of equal height, side by side."""
    return (
        matrices[0] if len(matrices) == 1 else replace(matrices[0], blocks=tuple(matrices), axis=1)
    )


def _rows(block: Block, rows: slice | Ints) -> AnyArray:
    return block[rows] if isinstance(block, np.ndarray) else block.take(rows)


def _part(block: Block, start: int, stop: int) -> Block:
    return block[start:stop] if isinstance(block, np.ndarray) else block.rows(start, stop)
