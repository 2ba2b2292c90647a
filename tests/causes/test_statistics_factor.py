"""Factors that maximum, minimum, mean and norm show, and those that they do not show."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.causes.statistics_factor import StatisticsFactor, find_statistics_factor

REFERENCE = [3.0, -2.0, 0.1, 40.0]


def find_factor(target: list[float]) -> StatisticsFactor | None:
    return find_statistics_factor(target, REFERENCE, 1e-5, 1600)


@given(st.floats(0.01, 100).filter(lambda factor: abs(factor - 1) > 1e-3))
def test_a_factor_is_found_if_it_scales_all_numbers(factor: float) -> None:
    statistics_factor = find_factor([factor * value for value in REFERENCE])
    assert statistics_factor is not None
    assert statistics_factor.factor == pytest.approx(factor)
    assert statistics_factor.residual < 1e-12


@pytest.mark.parametrize("target", [
    [6.0, -4.0, 0.2, 79.0],  # the norm has another factor
    REFERENCE,  # no change
    [6.0, np.nan, np.nan, 80.0],  # two numbers are too few
])  # fmt: skip
def test_numbers_with_different_factors_are_not_explained(target: list[float]) -> None:
    assert find_factor(target) is None


def test_zeros_are_found() -> None:
    assert find_factor([0.0] * 4) == StatisticsFactor(0.0, 0.0)


@pytest.mark.parametrize(("target", "factor"), [(6.0, 2.0), (1.5, 0.5), (2.793, None)])
def test_a_single_number_shows_whole_factors_only(target: float, factor: float | None) -> None:
    statistics_factor = find_statistics_factor([target] * 4, [3.0] * 4, 1e-5, 1)
    assert (statistics_factor and statistics_factor.factor) == factor


def test_a_factor_near_the_noise_shows_nothing() -> None:
    noisy = [1.00001 * value for value in REFERENCE]
    noisy[1] *= 1 + 4e-6
    assert find_statistics_factor(noisy, REFERENCE, 4e-6, 1600) is None
