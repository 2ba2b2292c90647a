"""Matrices that no file holds: their rows are worked out from those of others when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass

from ..arrays import AnyArray, Ints
from ..dtypes import unit_roundoff
from .matrix import Matrix


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
        total: AnyArray = factor * first.values(rows) + self.constant
        for factor, matrix in others:
            total += factor * matrix.values(rows)
        return total

    def rows(self, start: int, stop: int) -> _Sum:
        """Consecutive rows."""
        return _Sum(tuple((factor, matrix.rows(start, stop)) for factor, matrix in self.terms), self.constant)


def total(*terms: tuple[float, Matrix], constant: float = 0.0) -> Matrix:
    """Factors times matrices of one shape, plus a constant: float64, as exact as the coarsest of them."""
    coarsest = max((matrix.precision for _, matrix in terms), key=unit_roundoff)
    return Matrix((_Sum(terms, constant),), "float64", computed_from=coarsest)
