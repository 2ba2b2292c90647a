"""Differences of norms as bars on one logarithmic scale."""

from __future__ import annotations

import math

import pytest

from dumpdiff.gradient_norms import Row
from dumpdiff.reports.triage.norm_chart import WIDTH, draw_norm_chart


def make_row(relative: float, tolerance: float = 1e-3) -> Row:
    state = "differ" if relative > tolerance else "agree"
    return Row(
        "layers.0.mlp.up.weight", "a", "b", 1 + relative, 1.0, relative, tolerance, state, "name"
    )


def test_the_scale_goes_from_one_power_of_ten_to_another() -> None:
    chart = draw_norm_chart([make_row(0.5), make_row(3e-5)])
    assert chart is not None
    assert (chart.low, chart.high) == ("1.0e-5", "1.0e0")
    assert [bar.limit for bar in chart.bars] == [pytest.approx(WIDTH * 2 / 5)] * 2
    assert chart.bars[0].length == pytest.approx(WIDTH * (5 + math.log10(0.5)) / 5, abs=0.1)
    assert (
        chart.bars[0].tooltip == "layers.0.mlp.up.weight: 1.5 against 1, relative difference 5.0e-1"
    )
    assert [bar.state for bar in chart.bars] == ["differ", "agree"]


@pytest.mark.parametrize(("relative", "length"), [(math.inf, WIDTH), (math.nan, 0), (0.0, 0)])
def test_values_without_a_position_on_the_scale(relative: float, length: float) -> None:
    chart = draw_norm_chart([make_row(0.5), make_row(relative)])
    assert chart is not None
    assert chart.bars[1].length == length


def test_without_visible_values_there_is_no_chart() -> None:
    assert draw_norm_chart([]) is None
    assert draw_norm_chart([make_row(0.0, 0.0)]) is None
