"""The heat map: the class of a cell, and the layer and column of a scope."""

from __future__ import annotations

import numpy as np
import pytest
from results import make_pairs

from dumpdiff.model.result import Result
from dumpdiff.reports.alignment.html.heat_map import Cell, HeatMap, build_heat_maps


def make_row(
    scope: str, error: float, state: str = "propagated", phase: str = "forward"
) -> dict[str, object]:
    return {"scope": scope, "error": error, "tolerance": 1e-6, "state": state, "phase": phase}


def find_cell(heat_map: HeatMap, layer: str, column: str) -> Cell | None:
    return dict(heat_map.rows)[layer][heat_map.columns.index(column)]


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
    (heat_map,) = build_heat_maps(make_pairs(*(make_row(scope, 1e-5) for scope in scopes)))
    assert [layer for layer, _ in heat_map.rows] == ["", "layers.0", "layers.2", "layers.10"]
    assert heat_map.columns == ("norm", "attention.q", "", "embedding", "head")
    assert find_cell(heat_map, "layers.0", "") is None
    assert find_cell(heat_map, "layers.2", "") is not None


@pytest.mark.parametrize(
    ("error", "css_class"),
    [
        (0, "a0"),
        (1e-8, "a0"),
        (9e-7, "a1"),
        (2e-6, "p1"),
        (9e-5, "p2"),
        (9e-4, "p3"),
        (9e-3, "p4"),
        (9e-2, "p5"),
        (2, "p6"),
        (np.inf, "p6"),
        (np.nan, "none"),
    ],
)
def test_a_cell_is_as_dark_as_its_worst_pair(error: float, css_class: str) -> None:
    (heat_map,) = build_heat_maps(
        make_pairs(make_row("layers.0.norm", 0.0, "agreeing"), make_row("layers.1.norm", error))
    )
    cell = find_cell(heat_map, "layers.1", "norm")
    assert cell is not None
    assert cell.css_class == css_class


def test_a_cell_says_what_it_shows() -> None:
    (heat_map,) = build_heat_maps(
        make_pairs(
            make_row("layers.0.norm", 2e-3, "introduced"),
            make_row("layers.0.norm", 0.0, "agreeing"),
        )
    )
    assert find_cell(heat_map, "layers.0", "norm") == Cell(
        "p4", True, "1 of 2 pairs diverge, at worst 2.0e3 × tolerance"
    )


def test_every_phase_has_its_own_grid(demo: Result) -> None:
    forward, backward = build_heat_maps(demo.pairs)
    assert (forward.phase, backward.phase) == ("forward", "backward")
    begins = [
        f"{layer}.{column}"
        for layer, cells in forward.rows
        for column, cell in zip(forward.columns, cells, strict=True)
        if cell is not None and cell.begins_divergence
    ]
    assert begins == ["layers.1.post_attention_norm"]
