"""Tables of coordinates that begin elsewhere, or reach from the first to the last position."""

from __future__ import annotations

import numpy as np
import pytest

from dumpdiff.model.arrays import Floats

from .fault_cases import explain_fault_case, make_fault_case

ROWS, COLUMNS = 4, 5


def make_table(rows: Floats, columns: Floats) -> Floats:
    """Return (ROWS * COLUMNS, 4): two coordinates and zeros."""
    grid = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)
    return np.pad(grid, ((0, 0), (0, 2))).astype(np.float32).astype(np.float64)


CENTERS = make_table((np.arange(ROWS) + 0.5) / ROWS, (np.arange(COLUMNS) + 0.5) / COLUMNS)
CORNERS = make_table(np.arange(ROWS) / ROWS, np.arange(COLUMNS) / COLUMNS)
ENDS = make_table(np.linspace(0, 1, ROWS), np.linspace(0, 1, COLUMNS))


@pytest.mark.parametrize(
    ("faulty", "faithful", "cause", "sentence"),
    [
        (CORNERS, CENTERS, "position-offset", "coordinates shifted by -0.5 of their distance"),
        (CENTERS, CORNERS, "position-offset", "coordinates shifted by +0.5 of their distance"),
        (ENDS, CENTERS, "align-corners", "coordinates from the first to the last one"),
        (CENTERS, ENDS, "align-corners", "coordinates of the centers of cells"),
    ],
)
def test_another_grid_is_named(faulty: Floats, faithful: Floats, cause: str, sentence: str) -> None:
    first_cause = explain_fault_case(make_fault_case(faulty, faithful, {}, kind="constant"))[0]
    assert first_cause.name == cause
    assert sentence in first_cause.text


def test_numbers_at_other_distances_are_no_coordinates() -> None:
    table = np.random.default_rng(2).standard_normal((20, 2))
    causes = explain_fault_case(make_fault_case(table + 0.1, table, {}, kind="constant"))
    assert "position-offset" not in [cause.name for cause in causes]
