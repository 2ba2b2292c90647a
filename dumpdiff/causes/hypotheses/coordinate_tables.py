"""Tables of coordinates: equidistant positions that begin elsewhere, or end elsewhere.

A grid of cells is written down by their centers, by their first corners, or from the first to the
last position. Each column of a table holds the coordinates of one axis.
"""

from __future__ import annotations

from collections.abc import Iterator
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

    def compute(self, first: float, step: float) -> Floats:
        """Return (rows,) the column with another begin and distance."""
        return first + step * self.places


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
            _build_table(faithful, axes, n_steps).reshape(case.faithful.shape),
            f"coordinates shifted by {n_steps:+g} of their distance",
            parameters={"offset": n_steps},
            unchanged=case.faithful,
            cause="position-offset",
        )
    for has_centers, description, contrast in (
        (True, "coordinates of the centers of cells", "has them from the first to the last one"),
        (False, "coordinates from the first to the last one", "has those of the centers of cells"),
    ):
        table = _build_table(faithful, axes, 0.0, has_centers=has_centers)
        yield Candidate(
            table.reshape(case.faithful.shape),
            description,
            contrast,
            unchanged=case.faithful,
            cause="align-corners",
        )


def _find_axis(column: Floats) -> _Axis | None:
    """Return the coordinates of a column, None if they are not at equal distances."""
    coordinates = np.unique(column)
    if len(coordinates) < _MIN_COORDINATES:
        return None
    span = float(coordinates[-1] - coordinates[0])
    # rounding makes several numbers of one
    coordinates = coordinates[
        np.append(True, np.diff(coordinates) > _MAX_ERROR * span / len(column))
    ]
    n_coordinates = len(coordinates)
    step = span / max(1, n_coordinates - 1)
    places = (column - column.min()) / step
    if n_coordinates < _MIN_COORDINATES or np.any(abs(places - np.round(places)) > _MAX_ERROR):
        return None
    return _Axis(float(coordinates[0]), step, n_coordinates, np.round(places))


def _build_table(
    table: Floats, axes: dict[int, _Axis], n_steps: float, has_centers: bool | None = None
) -> AnyArray:
    """Return a table whose coordinates are some steps further on, or of centers or of ends."""
    changed = table.copy()
    for column, axis in axes.items():
        first, step, n_coordinates = axis.first + n_steps * axis.step, axis.step, axis.n_coordinates
        if has_centers is not None:
            span = step * (n_coordinates - 1 if has_centers else n_coordinates)
            step = span / (n_coordinates if has_centers else n_coordinates - 1)
            first = axis.first + (step / 2 if has_centers else -axis.step / 2)
        changed[:, column] = axis.compute(first, step)
    return changed


HYPOTHESES = (Hypothesis("position-offset", suggest_other_grid),)
