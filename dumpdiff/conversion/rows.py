"""Rows of mapped matrices in the order they are to be written: fused, split, padded and cut without being read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..model.arrays import AnyArray, Ints
from ..weight_comparison import casts
from ..weight_comparison.matrix import CHUNK, Matrix, stack_rows


@dataclass(frozen=True, eq=False)
class Rows:
    """A parameter, or a part of one, as [out, in]: row ``i`` is row ``order[i]`` of ``matrix``, zeros where -1."""

    matrix: Matrix
    order: Ints
    vector: bool  #: one axis: a bias, the weight of a norm

    @staticmethod
    def from_matrix(matrix: Matrix, vector: bool) -> Rows:
        """A matrix as it stands."""
        return Rows(matrix, np.arange(matrix.shape[0]), vector)

    @property
    def dtype(self) -> str:
        """Of its elements."""
        return self.matrix.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return len(self.order), self.matrix.shape[1]

    def pick_rows(self, order: Ints) -> Rows:
        """Some rows, in another order; -1 for a row of zeros."""
        return replace(self, order=np.where(order >= 0, self.order[np.maximum(order, 0)], -1))

    def resize(self, rows: int) -> Rows:
        """The first rows, or all and zeros below them."""
        wanted = np.arange(rows)
        return self.pick_rows(np.where(wanted < len(self.order), wanted, -1))

    def take_share(self, axis: int, index: int, count: int) -> Rows:
        """Of ``count`` equal shares along an axis the one of this index. The length must divide by ``count``."""
        if axis == 0:
            size = len(self.order) // count
            return replace(self, order=self.order[index * size : (index + 1) * size])
        size = self.matrix.shape[1] // count
        return replace(self, matrix=self.matrix.T.slice_rows(index * size, (index + 1) * size).T)

    def read_chunks(self, turned: bool = False) -> Iterator[AnyArray]:
        """Raw elements, a few megabytes at a time, row after row; column after column if ``turned``."""
        if turned:
            columns = self.matrix.T
            step = max(1, CHUNK // max(1, len(self.order)))
            for start in range(0, columns.shape[0], step):
                read = columns.read_raw(slice(start, start + step))
                yield np.where(self.order >= 0, read[:, self.order], read.dtype.type(0))
            return
        for start in range(0, len(self.order), self.matrix.rows_per_chunk):
            yield _read(self.matrix, self.order[start : start + self.matrix.rows_per_chunk])


def _read(matrix: Matrix, rows: Ints) -> AnyArray:
    if rows[0] >= 0 and np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
        return matrix.read_raw(slice(int(rows[0]), int(rows[-1]) + 1))
    found = matrix.read_raw(np.maximum(rows, 0))
    found[rows < 0] = 0
    return found


def join_rows(parts: Sequence[Rows], order: Ints) -> Rows:
    """Parts of one width in one: row ``i`` is row ``order[i]`` of the parts, one below the other."""
    starts = np.cumsum([0, *(part.matrix.shape[0] for part in parts[:-1])])
    places = [
        np.where(part.order >= 0, part.order + start, -1)
        for part, start in zip(parts, starts.tolist(), strict=True)
    ]
    return Rows(
        stack_rows([part.matrix for part in parts]), np.concatenate(places)[order], parts[0].vector
    )


@dataclass(frozen=True, eq=False)
class OutputTensor:
    """A tensor to write: what its ``parts`` hold, one after the other."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[Rows, ...]
    transposed: bool = False  #: each part is written as [in, out]
    sources: tuple[str, ...] = ()  #: names of what it is made of, in the checkpoint that is read

    def read_chunks(self) -> Iterator[AnyArray]:
        """Its bytes as raw elements of ``dtype``, a few megabytes at a time."""
        for part in self.parts:
            for read in part.read_chunks(self.transposed):
                yield np.ascontiguousarray(casts.encode_elements(read, part.dtype, self.dtype))
