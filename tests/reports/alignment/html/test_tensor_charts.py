"""Histograms and difference maps as paths."""

from __future__ import annotations

import re

import pytest

from dumpdiff.model.finding_context import DifferenceMap, Histogram
from dumpdiff.reports.alignment.html.tensor_charts import draw_difference_map, draw_histogram

NAN = float("nan")


def read_heights(path: str) -> list[float]:
    """Return the height of each step above the axis, left to right."""
    return [120 - float(y) for y in re.findall(r"L[\d.]+ ([\d.]+)L", path)]


def test_the_highest_bin_fills_the_drawing_and_an_empty_one_lies_on_the_axis() -> None:
    chart = draw_histogram(Histogram((-1.0, 0.0, 1.0, 3.0), (0, 9, 99), (99, 0, 0)))
    assert read_heights(chart.target) == pytest.approx([0, 60, 120], abs=0.1)
    assert read_heights(chart.reference) == pytest.approx([120, 0, 0], abs=0.1)
    assert (chart.low, chart.high, chart.largest_count) == ("-1", "3", 99)
    assert chart.zero == pytest.approx(80)


def test_zero_is_marked_only_where_it_lies_inside() -> None:
    assert draw_histogram(Histogram((1.0, 2.0), (1,), (1,))).zero is None


def test_a_histogram_without_width_or_counts_is_flat() -> None:
    chart = draw_histogram(Histogram((2.0, 2.0), (0,), (0,)))
    assert read_heights(chart.target) == [0]


def test_blocks_are_classed_by_their_share_of_the_largest() -> None:
    chart = draw_difference_map(
        DifferenceMap(((1.0, 0.2, 0.02), (1e-9, 0.0, NAN)), "axis 0 (2)", "axis 1 (3)", 0.5)
    )
    assert {name: path for name, path, _ in chart.paths} == {
        "d0": "M0 0h1v1h-1z",
        "d1": "M1 0h1v1h-1z",
        "d3": "M2 0h1v1h-1z",
        "d5": "M0 1h1v1h-1z",
        "same": "M1 1h1v1h-1z",
        "nonfinite": "M2 1h1v1h-1z",
    }
    assert (chart.n_rows, chart.n_columns, chart.largest, chart.scale) == (2, 3, "1.0e0", "5.0e-1")
    labels = {name: label for name, _, label in chart.paths}
    assert labels["d0"] == "3.2e-1 to 1.0e0"
    assert labels["d5"] == "up to 3.2e-3"


def test_equal_tensors_have_one_shade() -> None:
    chart = draw_difference_map(DifferenceMap(((0.0, 0.0),), "", "", 1.0))
    assert [name for name, _, _ in chart.paths] == ["same"]
