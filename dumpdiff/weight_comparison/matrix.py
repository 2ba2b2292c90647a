"""Matrices made of blocks of mapped files; rows are read on demand, never all at once.

Every layout of a weight in a checkpoint (shards, fused parts, stacked experts, transposes) is a
matrix of views here, so that a comparison only needs some rows of one matrix and some rows of
another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, TypeAlias

import numpy as np

from ..checkpoints.elements import RAW_DTYPES, decode
from ..model.arrays import AnyArray, Floats, Ints

#: Elements of one side that are held in memory at a time: 4 million float32 are 16 MB.
CHUNK = 1 << 22


class Computed(Protocol):
    """(rows, columns) elements that are computed on demand, see :mod:`.computed_matrix`."""

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""

    @property
    def T(self) -> Computed:
        """The transpose."""

    def read_raw(self, rows: slice | Ints) -> AnyArray:
        """Return the (count, columns) raw elements of some rows."""

    def slice_rows(self, start: int, stop: int) -> Computed:
        """Return consecutive rows."""


Block: TypeAlias = AnyArray | Computed


@dataclass(frozen=True, eq=False)
class Matrix:
    """(rows, columns) elements: blocks stacked along rows (axis 0) or columns (axis 1).

    Blocks are raw (see :mod:`dumpdiff.checkpoints.elements`): two-dimensional views of mapped
    files, matrices, or computed elements.
    """

    blocks: tuple[Block, ...]
    dtype: str
    axis: int = 0
    computed_from: str = ""  #: dtype of the coarsest source, if the elements are computed

    @property
    def precision(self) -> str:
        """The dtype that limits how exact the elements are."""
        return self.computed_from or self.dtype

    @staticmethod
    def from_array(array: AnyArray, dtype: str) -> Matrix:
        """Return an array of any rank as a matrix.

        The first axis becomes the rows, and a vector becomes a column. A complex number becomes two
        elements.
        """
        if array.dtype.kind == "c":
            dtype = "float32" if dtype == "complex64" else "float64"
            array = np.ascontiguousarray(array)[..., None].view(dtype)
        n_rows = array.shape[0] if array.ndim else 1
        if array.size:
            return Matrix((array.reshape(n_rows, -1),), dtype)
        return Matrix((np.zeros((n_rows, 0), array.dtype),), dtype)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        total = sum(block.shape[self.axis] for block in self.blocks)
        width = self.blocks[0].shape[1 - self.axis]
        return (total, width) if self.axis == 0 else (width, total)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.shape[0] * self.shape[1]

    @cached_property
    def T(self) -> Matrix:
        """The transpose, a view."""
        return replace(self, blocks=tuple(block.T for block in self.blocks), axis=1 - self.axis)

    @property
    def rows_per_chunk(self) -> int:
        """How many rows to read at a time."""
        return max(1, CHUNK // max(1, self.shape[1]))

    @cached_property
    def _bounds(self) -> Ints:
        return np.cumsum([0, *(block.shape[0] for block in self.blocks)])

    def read_raw(self, rows: slice | Ints) -> AnyArray:
        """Return the (count, columns) raw elements of some rows, in order; a view if possible."""
        if len(self.blocks) == 1:
            return _read_block(self.blocks[0], rows)
        if self.axis == 1:
            return np.concatenate([_read_block(block, rows) for block in self.blocks], axis=1)
        if isinstance(rows, slice):
            return self._read_consecutive(rows)
        block_of_row = np.searchsorted(self._bounds, rows, side="right") - 1
        elements = np.empty((len(rows), self.shape[1]), RAW_DTYPES[self.dtype])
        for number in np.unique(block_of_row).tolist():
            is_in_block = block_of_row == number
            local_rows = rows[is_in_block] - self._bounds[number]
            elements[is_in_block] = _read_block(self.blocks[number], local_rows)
        return elements

    def _read_consecutive(self, rows: slice) -> AnyArray:
        start, stop, _ = rows.indices(self.shape[0])
        elements = [
            _read_block(block, slice(first, last)) for block, first, last in self._cut(start, stop)
        ]
        if not elements:
            return _read_block(self.blocks[0], slice(0, 0))
        return elements[0] if len(elements) == 1 else np.concatenate(elements)

    def _cut(self, start: int, stop: int) -> Iterator[tuple[Block, int, int]]:
        """Yield each block with rows between ``start`` and ``stop``, and its first and last row."""
        bounds = self._bounds.tolist()
        for block, begin, end in zip(self.blocks, bounds[:-1], bounds[1:], strict=True):
            if begin < stop and start < end:
                yield block, max(start - begin, 0), min(stop, end) - begin

    def read_values(self, rows: slice | Ints) -> Floats:
        """Return the (count, columns) float64 values of some rows."""
        return decode(self.read_raw(rows), self.dtype).astype(np.float64)

    def slice_rows(self, start: int, stop: int) -> Matrix:
        """Return the matrix of consecutive rows."""
        pieces = self._cut(start, stop)
        if len(self.blocks) == 1 or self.axis == 1:
            pieces = ((block, start, stop) for block in self.blocks)
        return replace(self, blocks=tuple(_slice_block(*piece) for piece in pieces))


def concatenate_rows(matrices: Sequence[Matrix]) -> Matrix:
    """Concatenate matrices of equal width along the rows, one below the other."""
    if len(matrices) == 1:
        return matrices[0]
    return replace(matrices[0], blocks=tuple[Block, ...](matrices), axis=0)


def concatenate_columns(matrices: Sequence[Matrix]) -> Matrix:
    """Concatenate matrices of equal height along the columns, side by side."""
    if len(matrices) == 1:
        return matrices[0]
    return replace(matrices[0], blocks=tuple[Block, ...](matrices), axis=1)


def _read_block(block: Block, rows: slice | Ints) -> AnyArray:
    return block[rows] if isinstance(block, np.ndarray) else block.read_raw(rows)


def _slice_block(block: Block, start: int, stop: int) -> Block:
    return block[start:stop] if isinstance(block, np.ndarray) else block.slice_rows(start, stop)
