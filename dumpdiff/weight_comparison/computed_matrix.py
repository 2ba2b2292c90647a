"""Matrices that no file holds: their rows are worked out from those of others when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..checkpoints.elements import decode
from ..model.arrays import AnyArray, Ints
from ..model.dtypes import unit_roundoff
from .matrix import Block, Matrix


@dataclass(frozen=True, eq=False)
class _Sum:
    """Matrices of one shape, each times a number, added up in float64; and a number added to every element."""

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

    def take(self, rows: slice | Ints) -> AnyArray:
        """(count, columns) float64."""
        (factor, first), *others = self.terms
        total: AnyArray = factor * first.read_values(rows) + self.constant
        for factor, matrix in others:
            total += factor * matrix.read_values(rows)
        return total

    def rows(self, start: int, stop: int) -> _Sum:
        """Consecutive rows."""
        return _Sum(
            tuple((factor, matrix.slice_rows(start, stop)) for factor, matrix in self.terms),
            self.constant,
        )


def add_matrices(*terms: tuple[float, Matrix], constant: float = 0.0) -> Matrix:
    """Factors times matrices of one shape, plus a constant: float64, as exact as the coarsest of them."""
    coarsest = max((matrix.precision for _, matrix in terms), key=unit_roundoff)
    return Matrix((_Sum(terms, constant),), "float64", computed_from=coarsest)


@dataclass(frozen=True, eq=False)
class _Steps:
    """The scale of each element, where rows and columns share them in blocks."""

    scales: Matrix
    of_row: Ints  #: row of ``scales`` for each row
    of_column: Ints

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return len(self.of_row), len(self.of_column)

    @property
    def T(self) -> _Steps:
        """The transpose."""
        return _Steps(self.scales.T, self.of_column, self.of_row)

    def take(self, rows: slice | Ints) -> AnyArray:
        """(count, columns) float32."""
        found: AnyArray = self.scales.read_values(self.of_row[rows]).astype(np.float32)[
            :, self.of_column
        ]
        return found

    def rows(self, start: int, stop: int) -> _Steps:
        """Consecutive rows."""
        return _Steps(self.scales, self.of_row[start:stop], self.of_column)


@dataclass(frozen=True, eq=False)
class _Scaled:
    """Elements of a narrow dtype, each times its scale."""

    codes: Matrix
    steps: _Steps

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.codes.shape

    @property
    def T(self) -> _Scaled:
        """The transpose."""
        return _Scaled(self.codes.T, self.steps.T)

    def take(self, rows: slice | Ints) -> AnyArray:
        """(count, columns) float32."""
        product: AnyArray = decode(self.codes.read_raw(rows), self.codes.dtype) * self.steps.take(rows)
        return product

    def rows(self, start: int, stop: int) -> _Scaled:
        """Consecutive rows."""
        return _Scaled(self.codes.slice_rows(start, stop), self.steps.rows(start, stop))


def apply_block_scales(codes: Matrix, scales: Matrix, block: tuple[int, int]) -> Matrix:
    """Elements times their scales, one for each ``block`` of rows and columns: float32, as exact as the elements."""
    of_row, of_column = (
        np.arange(length) // size for length, size in zip(codes.shape, block, strict=True)
    )
    return Matrix(
        (_Scaled(codes, _Steps(scales, of_row, of_column)),), "float32", computed_from=codes.dtype
    )


def extract_scales(matrix: Matrix) -> Matrix | None:
    """The scale of each element of a matrix made by :func:`scaled`, or of such ones; None for any other."""
    found = [_steps(block) for block in matrix.blocks]
    known = tuple(block for block in found if block is not None)
    return replace(matrix, blocks=known, computed_from="") if len(known) == len(found) else None


def _steps(block: Block) -> Block | None:
    if isinstance(block, Matrix):
        return extract_scales(block)
    return block.steps if isinstance(block, _Scaled) else None
