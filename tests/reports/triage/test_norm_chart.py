"""Differences of norms as bars on one logarithmic scale."""

from __future__ import annotations

import math

import pytest

from dumpdiff.gradient_norms import Row
from dumpdiff.reports.triage.norm_chart import WIDTH, draw_norm_chart


def row(relative: float, tolerance: float = 1e-3) -> Row:
    state = "differ" if relative > tolerance else "agree"
    return Row(
        "layers.0.mlp.up.weight", "a", "b", 1 + relative, 1.0, relative, tolerance, state, "name"
    )


def test_the_scale_goes_from_one_power_of_ten_to_another() -> None:
    drawn = draw_norm_chart([row(0.5), row(3e-5)])
    assert drawn is not None
    assert (drawn.low, drawn.high) == ("1.0e-5", "1.0e0")
    assert [bar.limit for bar in drawn.bars] == [pytest.approx(WIDTH * 2 / 5)] * 2
    assert drawn.bars[0].length == pytest.approx(WIDTH * (5 + math.log10(0.5)) / 5, abs=0.1)
    assert drawn.bars[0].words == "layers.0.mlp.up.weight: 1.5 against 1, off by 5.0e-1"
    assert [bar.state for bar in drawn.bars] == ["differ", "agree"]


@pytest.mark.parametrize(("relative", "length"), [(math.inf, WIDTH), (math.nan, 0), (0.0, 0)])
def test_what_has_no_place_on_it(relative: float, length: float) -> None:
    drawn = draw_norm_chart([row(0.5), row(relative)])
    assert drawn is not None
    assert drawn.bars[1].length == length


def test_nothing_to_draw() -> None:
    assert draw_norm_chart([]) is None
    assert draw_norm_chart([row(0.0, 0.0)]) is None
