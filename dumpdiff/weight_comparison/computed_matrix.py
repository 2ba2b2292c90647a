"""Matrices whose rows are computed on demand from the rows of other matrices."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..checkpoints.elements import decode
from ..model.arrays import AnyArray, Ints
from ..model.dtypes import get_unit_roundoff
from .casts import encode_elements
from .matrix import Block, Matrix


@dataclass(frozen=True, eq=False)
class _Sum:
    """A weighted sum of matrices of one shape plus a constant, computed in float64."""

    terms: tuple[tuple[float, Matrix], ...]
    constant: float

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.terms[0][1].shape

    @property
    def T(self) -> _Sum:
        """The transpose."""
        return _Sum(tuple((factor, matrix.T) for factor, matrix in self.terms), self.constant)

    def read_raw(self, rows: slice | Ints) -> AnyArray:
        """Return (count, columns) float64 elements."""
        (first_factor, first_matrix), *other_terms = self.terms
        total: AnyArray = first_factor * first_matrix.read_values(rows) + self.constant
        for factor, matrix in other_terms:
            total += factor * matrix.read_values(rows)
        return total

    def slice_rows(self, start: int, stop: int) -> _Sum:
        """Return consecutive rows."""
        terms = tuple((factor, matrix.slice_rows(start, stop)) for factor, matrix in self.terms)
        return _Sum(terms, self.constant)


def add_matrices(*terms: tuple[float, Matrix], constant: float = 0.0) -> Matrix:
    """Return the sum of factors times matrices of one shape, plus a constant.

    The elements are float64 and as exact as the coarsest matrix.
    """
    coarsest = max((matrix.precision for _, matrix in terms), key=get_unit_roundoff)
    return Matrix((_Sum(terms, constant),), "float64", computed_from=coarsest)


@dataclass(frozen=True, eq=False)
class _Scales:
    """The scale of each element, if rows and columns share scales in blocks."""

    scales: Matrix
    of_row: Ints  #: row of ``scales`` for each row
    of_column: Ints  #: column of ``scales`` for each column

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return len(self.of_row), len(self.of_column)

    @property
    def T(self) -> _Scales:
        """The transpose."""
        return _Scales(self.scales.T, self.of_column, self.of_row)

    def read_raw(self, rows: slice | Ints) -> AnyArray:
        """Return (count, columns) float32 scales."""
        row_scales = self.scales.read_values(self.of_row[rows]).astype(np.float32)
        scales: AnyArray = row_scales[:, self.of_column]
        return scales

    def slice_rows(self, start: int, stop: int) -> _Scales:
        """Return consecutive rows."""
        return _Scales(self.scales, self.of_row[start:stop], self.of_column)


@dataclass(frozen=True, eq=False)
class _Scaled:
    """Elements of a narrow dtype, each multiplied by its scale."""

    codes: Matrix
    scales: _Scales

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.codes.shape

    @property
    def T(self) -> _Scaled:
        """The transpose."""
        return _Scaled(self.codes.T, self.scales.T)

    def read_raw(self, rows: slice | Ints) -> AnyArray:
        """Return (count, columns) float32 products."""
        values = decode(self.codes.read_raw(rows), self.codes.dtype)
        product: AnyArray = values * self.scales.read_raw(rows)
        return product

    def slice_rows(self, start: int, stop: int) -> _Scaled:
        """Return consecutive rows."""
        return _Scaled(self.codes.slice_rows(start, stop), self.scales.slice_rows(start, stop))


def apply_block_scales(codes: Matrix, scales: Matrix, block: tuple[int, int]) -> Matrix:
    """Multiply elements by their scales, one scale for each ``block`` of rows and columns.

    The products are float32, and as exact as the elements.
    """
    of_row = np.arange(codes.shape[0]) // block[0]
    of_column = np.arange(codes.shape[1]) // block[1]
    products = _Scaled(codes, _Scales(scales, of_row, of_column))
    return Matrix((products,), "float32", computed_from=codes.dtype)


@dataclass(frozen=True, eq=False)
class _Cast:
    """The elements of a matrix in another dtype, rounded to nearest."""

    matrix: Matrix
    dtype: str

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.matrix.shape

    @property
    def T(self) -> _Cast:
        """The transpose."""
        return _Cast(self.matrix.T, self.dtype)

    def read_raw(self, rows: slice | Ints) -> AnyArray:
        """Return (count, columns) raw elements of ``dtype``."""
        return encode_elements(self.matrix.read_raw(rows), self.matrix.dtype, self.dtype)

    def slice_rows(self, start: int, stop: int) -> _Cast:
        """Return consecutive rows."""
        return _Cast(self.matrix.slice_rows(start, stop), self.dtype)


def cast_matrix(matrix: Matrix, dtype: str) -> Matrix:
    """Return the elements of a matrix in another dtype, rounded to nearest when they are read."""
    return Matrix((_Cast(matrix, dtype),), dtype)


def extract_scales(matrix: Matrix) -> Matrix | None:
    """Return the scale of each element of a matrix made by :func:`apply_block_scales`, else None.

    Stacks of such matrices are accepted too.
    """
    blocks: list[Block] = []
    for block in matrix.blocks:
        scales = _extract_block_scales(block)
        if scales is None:
            return None
        blocks.append(scales)
    return replace(matrix, blocks=tuple(blocks), computed_from="")


def _extract_block_scales(block: Block) -> Block | None:
    if isinstance(block, Matrix):
        return extract_scales(block)
    return block.scales if isinstance(block, _Scaled) else None
