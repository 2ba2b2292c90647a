"""Rows of mapped matrices, in the order in which they are written.

They are fused, split, padded and sharded without being read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..model.arrays import AnyArray, Ints
from ..weight_comparison import casts
from ..weight_comparison.matrix import CHUNK, Matrix, concatenate_rows


@dataclass(frozen=True, eq=False)
class Rows:
    """A parameter, or a part of one, as [out, in].

    Row ``i`` is row ``order[i]`` of ``matrix``; -1 is a row of zeros.
    """

    matrix: Matrix
    order: Ints
    vector: bool  #: one axis: a bias, the weight of a norm
    #: Lengths of the axes after the first, if there are several; the columns have their order.
    inner_shape: tuple[int, ...] = ()

    @staticmethod
    def from_matrix(matrix: Matrix, vector: bool, inner_shape: tuple[int, ...] = ()) -> Rows:
        """Return all rows of a matrix in their order."""
        return Rows(matrix, np.arange(matrix.shape[0]), vector, inner_shape)

    @property
    def dtype(self) -> str:
        """dtype of the elements."""
        return self.matrix.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return len(self.order), self.matrix.shape[1]

    def pick_rows(self, order: Ints) -> Rows:
        """Return some rows, in another order; -1 for a row of zeros."""
        return replace(self, order=np.where(order >= 0, self.order[np.maximum(order, 0)], -1))

    def resize(self, n_rows: int) -> Rows:
        """Return the first ``n_rows`` rows, filled up with zeros."""
        order = np.arange(n_rows)
        return self.pick_rows(np.where(order < len(self.order), order, -1))

    def take_share(self, axis: int, index: int, count: int) -> Rows:
        """Return one of ``count`` equal shares along an axis, whose length divides by ``count``."""
        if axis == 0:
            size = len(self.order) // count
            return replace(self, order=self.order[index * size : (index + 1) * size])
        size = self.matrix.shape[1] // count
        columns = self.matrix.T.slice_rows(index * size, (index + 1) * size)
        return replace(self, matrix=columns.T)

    def read_chunks(self, transposed: bool = False) -> Iterator[AnyArray]:
        """Yield raw elements, a few megabytes at a time: rows, or columns if ``transposed``."""
        if transposed:
            yield from self._read_columns()
            return
        step = self.matrix.rows_per_chunk
        for start in range(0, len(self.order), step):
            yield _read_rows(self.matrix, self.order[start : start + step])

    def _read_columns(self) -> Iterator[AnyArray]:
        columns = self.matrix.T
        step = max(1, CHUNK // max(1, len(self.order)))
        for start in range(0, columns.shape[0], step):
            chunk = columns.read_raw(slice(start, start + step))
            yield np.where(self.order >= 0, chunk[:, self.order], chunk.dtype.type(0))


def _read_rows(matrix: Matrix, order: Ints) -> AnyArray:
    is_consecutive = np.array_equal(order, np.arange(order[0], order[0] + len(order)))
    if order[0] >= 0 and is_consecutive:
        return matrix.read_raw(slice(int(order[0]), int(order[-1]) + 1))
    rows = matrix.read_raw(np.maximum(order, 0))
    rows[order < 0] = 0
    return rows


def join_rows(parts: Sequence[Rows], order: Ints) -> Rows:
    """Return parts of one width as one: row ``i`` is row ``order[i]`` of the concatenated parts."""
    joined_orders = []
    start = 0
    for part in parts:
        joined_orders.append(np.where(part.order >= 0, part.order + start, -1))
        start += part.matrix.shape[0]
    matrix = concatenate_rows([part.matrix for part in parts])
    return replace(parts[0], matrix=matrix, order=np.concatenate(joined_orders)[order])


@dataclass(frozen=True, eq=False)
class OutputTensor:
    """A tensor to write: the content of its ``parts``, one after the other."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[Rows, ...]
    transposed: bool = False  #: each part is written as [in, out]
    sources: tuple[str, ...] = ()  #: names of its parts in the source checkpoint

    def read_chunks(self) -> Iterator[AnyArray]:
        """Yield raw elements of ``dtype``, a few megabytes at a time."""
        for part in self.parts:
            for chunk in part.read_chunks(self.transposed):
                yield np.ascontiguousarray(casts.encode_elements(chunk, part.dtype, self.dtype))
