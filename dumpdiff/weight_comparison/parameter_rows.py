"""One parameter in the middle of a comparison: the rows of both sides that should be the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.arrays import Floats, Ints
from .distance import compute_noise
from .matrix import CHUNK, Matrix

_SAMPLE = CHUNK // 8  #: elements that a guess is tried on


@dataclass(frozen=True)
class ParameterRows:
    """Rows ``target_rows`` of the target's matrix, which should be rows ``reference_rows`` of the reference's."""

    path: str  #: canonical
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
        """Relative distance that rounding alone can cause."""
        return compute_noise(self.target.precision, self.reference.precision)

    def sample(self, among: Ints | None = None) -> Ints:
        """Rows of this part, spread evenly, as many as a guess is tried on."""
        rows = np.arange(self.shape[0]) if among is None else among
        count = max(16, _SAMPLE // max(1, self.shape[1]))
        return (
            rows
            if len(rows) <= count
            else rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]
        )

    def values(self, rows: Ints) -> tuple[Floats, Floats]:
        """What target and reference hold in some rows of this part."""
        return self.target.read_values(self.target_rows[rows]), self.reference.read_values(
            self.reference_rows[rows]
        )

    def matrices(self) -> tuple[Matrix, Matrix] | None:
        """Both as matrices of their own; None where the rows of one do not follow each other."""
        found = []
        for matrix, rows in (
            (self.target, self.target_rows),
            (self.reference, self.reference_rows),
        ):
            if len(rows) == 0 or not np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
                return None
            found.append(matrix.slice_rows(int(rows[0]), int(rows[-1]) + 1))
        return found[0], found[1]
