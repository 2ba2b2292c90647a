"""The heat map: which class a cell gets, which layer and column a scope is."""

from __future__ import annotations

import numpy as np
import pytest
from results import pairs

from dumpdiff.model.result import Result
from dumpdiff.reports.alignment.html.heat_map import Cell, HeatMap, build_heat_maps


def row(
    scope: str, error: float, state: str = "propagated", phase: str = "forward"
) -> dict[str, object]:
    return {"scope": scope, "error": error, "tolerance": 1e-6, "state": state, "phase": phase}


def cell(grid: HeatMap, layer: str, column: str) -> Cell | None:
    return dict(grid.rows)[layer][grid.columns.index(column)]


def test_rows_are_layers_by_number_and_columns_come_in_order_of_execution() -> None:
    scopes = (
        "embedding",
        "layers.0.norm",
        "layers.0.attention.q",
        "layers.10.norm",
        "layers.2",
        "head",
        "",
    )
    (grid,) = build_heat_maps(pairs(*(row(scope, 1e-5) for scope in scopes)))
    assert [layer for layer, _ in grid.rows] == ["", "layers.0", "layers.2", "layers.10"]
    assert grid.columns == ("norm", "attention.q", "", "embedding", "head")
    assert cell(grid, "layers.0", "") is None
    assert cell(grid, "layers.2", "") is not None


@pytest.mark.parametrize(
    ("error", "level"),
    [(0, "a0"), (1e-8, "a0"), (9e-7, "a1"), (2e-6, "p1"), (9e-5, "p2"), (9e-4, "p3"), (9e-3, "p4"), (9e-2, "p5"),
     (2, "p6"), (np.inf, "p6"), (np.nan, "none")],
)  # fmt: skip
def test_a_cell_is_as_dark_as_its_worst_pair(error: float, level: str) -> None:
    (grid,) = build_heat_maps(pairs(row("layers.0.norm", 0.0, "agreeing"), row("layers.1.norm", error)))
    found = cell(grid, "layers.1", "norm")
    assert found is not None
    assert found.level == level


def test_a_cell_says_what_it_shows() -> None:
    (grid,) = build_heat_maps(
        pairs(row("layers.0.norm", 2e-3, "introduced"), row("layers.0.norm", 0.0, "agreeing"))
    )
    assert cell(grid, "layers.0", "norm") == Cell(
        "p4", True, "1 of 2 pairs part, at worst 2.0e3 × tolerance"
    )


def test_every_phase_has_its_own_grid(demo: Result) -> None:
    forward, backward = build_heat_maps(demo.pairs)
    assert (forward.phase, backward.phase) == ("forward", "backward")
    begins = [
        f"{layer}.{column}"
        for layer, cells in forward.rows
        for column, one in zip(forward.columns, cells, strict=True)
        if one is not None and one.first
    ]
    assert begins == ["layers.1.post_attention_norm"]
