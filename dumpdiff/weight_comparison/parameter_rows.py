"""One parameter during a comparison: the rows of both sides that should be equal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.arrays import Floats, Ints
from .distance import compute_noise
from .matrix import CHUNK, Matrix
from .result import Relation

_SAMPLE_ELEMENTS = CHUNK // 8  #: elements that a hypothesis about a mistake is tested on
_MIN_SAMPLE_ROWS = 16  #: rows of a sample, however wide they are


@dataclass(frozen=True)
class ParameterRows:
    """Rows of the target's matrix that should equal rows of the reference's matrix."""

    path: str  #: canonical name
    target_name: str
    reference_name: str
    target: Matrix
    reference: Matrix
    target_rows: Ints
    reference_rows: Ints

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.target_rows), self.target.shape[1]

    @property
    def noise(self) -> float:
        """Relative distance that rounding can cause."""
        return compute_noise(self.target.precision, self.reference.precision)

    def allows(self, relation: Relation) -> bool:
        """Return whether a relation is no mistake.

        Weights are copied or cast, so what no rounding explains is another value. Only elements
        that were computed, as sums or from scales, may differ by noise.
        """
        if relation == "noise":
            return bool(self.target.computed_from or self.reference.computed_from)
        return relation != "different"

    def sample_rows(self, candidates: Ints | None = None) -> Ints:
        """Return a limited number of evenly spaced rows, of all rows or of ``candidates``."""
        rows = np.arange(self.shape[0]) if candidates is None else candidates
        count = max(_MIN_SAMPLE_ROWS, _SAMPLE_ELEMENTS // max(1, self.shape[1]))
        if len(rows) <= count:
            return rows
        return rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]

    def read_values(self, rows: Ints) -> tuple[Floats, Floats]:
        """Return the values of some rows in target and reference."""
        target_values = self.target.read_values(self.target_rows[rows])
        reference_values = self.reference.read_values(self.reference_rows[rows])
        return target_values, reference_values

    def read_sample(self) -> tuple[Floats, Floats]:
        """Return the values of a sample of all rows in target and reference."""
        return self.read_values(self.sample_rows())

    def get_matrices(self) -> tuple[Matrix, Matrix] | None:
        """Return the rows as two matrices; None if the rows of one side are not consecutive."""
        target = _slice_consecutive(self.target, self.target_rows)
        reference = _slice_consecutive(self.reference, self.reference_rows)
        if target is None or reference is None:
            return None
        return target, reference


def _slice_consecutive(matrix: Matrix, rows: Ints) -> Matrix | None:
    if len(rows) == 0 or not np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
        return None
    return matrix.slice_rows(int(rows[0]), int(rows[-1]) + 1)
