"""Causes that maximum, minimum, mean and norm show, and those that they do not show."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.causes.statistics_causes import find_causes_in_statistics
from dumpdiff.model.finding import Cause

REFERENCE = [3.0, -2.0, 0.1, 40.0]


def find_causes(target: list[float]) -> tuple[Cause, ...]:
    return find_causes_in_statistics(target, REFERENCE, 1e-5, "zeroed", "constant-factor")


@given(st.floats(0.01, 100).filter(lambda factor: abs(factor - 1) > 1e-3))
def test_a_factor_is_found_if_it_scales_all_numbers(factor: float) -> None:
    (cause,) = find_causes([factor * value for value in REFERENCE])
    assert cause.name == "constant-factor"
    assert cause.parameters["factor"] == pytest.approx(factor)


@pytest.mark.parametrize("target", [
    [6.0, -4.0, 0.2, 79.0],  # the norm has another factor
    REFERENCE,  # no change
    [6.0, np.nan, np.nan, 80.0],  # two numbers are too few
])  # fmt: skip
def test_numbers_with_different_factors_are_not_explained(target: list[float]) -> None:
    assert find_causes(target) == ()


def test_zeros_are_found() -> None:
    (cause,) = find_causes([0.0] * 4)
    assert cause.name == "zeroed"
