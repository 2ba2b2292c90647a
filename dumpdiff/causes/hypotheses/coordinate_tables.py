"""Tables of coordinates: equidistant positions that begin elsewhere, or end elsewhere.

A grid of cells is written down by their centers, by their first corners, or from the first to the
last position. Each column of a table holds the coordinates of one axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...model.arrays import AnyArray, Floats
from ..fault_case import FaultCase
from ..hypothesis import Candidate, Hypothesis

#: Fewest different coordinates of an axis, and elements of a table.
_MIN_COORDINATES, _MIN_ELEMENTS = 2, 4
#: Columns that are looked at: coordinates have few.
_MAX_COLUMNS = 64
#: Error of coordinates, relative to their distance: float32 tables have less than this.
_MAX_ERROR = 1e-3


@dataclass(frozen=True, eq=False)
class _Axis:
    """The different coordinates of a column, and which of them each row has."""

    first: float
    step: float
    n_coordinates: int
    places: Floats  #: (rows,) whole numbers from 0 on

    def shift(self, n_steps: float) -> Floats:
        """Return (rows,) the column that begins some steps further on."""
        return self.first + self.step * (self.places + n_steps)

    def take_centers(self) -> Floats:
        """Return (rows,) the centers of cells between the first and the last coordinate."""
        step = self.step * (self.n_coordinates - 1) / self.n_coordinates
        return self.first + step * (self.places + 0.5)

    def take_ends(self) -> Floats:
        """Return (rows,) the coordinates from end to end of the cells that they are centers of."""
        step = self.step * self.n_coordinates / (self.n_coordinates - 1)
        return self.first - self.step / 2 + step * self.places


def suggest_other_grid(case: FaultCase) -> Iterator[Candidate]:
    """Suggest coordinates half a step or some steps further on, or of corners against centers."""
    if case.finding.kind != "constant" or case.faithful.size < _MIN_ELEMENTS:
        return
    faithful, faulty = (
        array.reshape(-1, array.shape[-1] if array.ndim > 1 else 1)
        for array in (case.faithful, case.faulty)
    )
    if faithful.shape[1] > _MAX_COLUMNS or not np.isfinite(faithful).all():
        return
    axes = {
        column: axis
        for column in range(faithful.shape[1])
        if (axis := _find_axis(faithful[:, column])) is not None
    }
    if not axes:
        return
    number, axis = next(iter(axes.items()))
    n_steps = float(np.round(2 * (faulty[0, number] - faithful[0, number]) / axis.step) / 2)
    if n_steps:
        yield Candidate(
            _build_table(case, {column: axis.shift(n_steps) for column, axis in axes.items()}),
            f"coordinates shifted by {n_steps:+g} of their distance",
            parameters={"offset": n_steps},
            unchanged=case.faithful,
            cause="position-offset",
        )
    for take, description, contrast in (
        (
            _Axis.take_centers,
            "coordinates of the centers of cells",
            "has them from the first to the last one",
        ),
        (
            _Axis.take_ends,
            "coordinates from the first to the last one",
            "has those of the centers of cells",
        ),
    ):
        yield Candidate(
            _build_table(case, {column: take(axis) for column, axis in axes.items()}),
            description,
            contrast,
            unchanged=case.faithful,
            cause="align-corners",
        )


def _find_axis(column: Floats) -> _Axis | None:
    """Return the coordinates of a column, None if they are not at equal distances."""
    coordinates = np.unique(column)
    span = float(coordinates[-1] - coordinates[0])
    # rounding makes several numbers of one
    is_other = np.diff(coordinates) > _MAX_ERROR * span / len(column)
    n_coordinates = 1 + int(is_other.sum())
    if n_coordinates < _MIN_COORDINATES:
        return None
    step = span / (n_coordinates - 1)
    places = (column - coordinates[0]) / step
    if np.any(abs(places - np.round(places)) > _MAX_ERROR):
        return None
    return _Axis(float(coordinates[0]), step, n_coordinates, np.round(places))


def _build_table(case: FaultCase, columns: Mapping[int, Floats]) -> AnyArray:
    """Return the faithful side's table with some columns of its last axis replaced."""
    table = np.array(case.faithful, dtype=np.float64, order="C")
    rows = table.reshape(len(next(iter(columns.values()))), -1)
    for number, column in columns.items():
        rows[:, number] = column
    return table


HYPOTHESES = (Hypothesis("position-offset", suggest_other_grid),)
