"""What maximum, minimum, mean and norm tell, and what they do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.causes.statistics_causes import find_causes_in_statistics

NAMES = ("zeroed", "constant-factor")
REFERENCE = [3.0, -2.0, 0.1, 40.0]


@given(st.floats(0.01, 100).filter(lambda c: abs(c - 1) > 1e-3))
def test_a_factor_is_told_if_it_carries_all_numbers(factor: float) -> None:
    (cause,) = find_causes_in_statistics([factor * x for x in REFERENCE], REFERENCE, 1e-5, NAMES)
    assert cause.name == "constant-factor"
    assert cause.parameters["factor"] == pytest.approx(factor)


@pytest.mark.parametrize("target", [
    [6.0, -4.0, 0.2, 79.0],  # the norm does not go along
    REFERENCE,  # no change
    [6.0, np.nan, np.nan, 80.0],  # two numbers tell too little
])  # fmt: skip
def test_what_does_not_scale_alike_is_not_explained(target: list[float]) -> None:
    assert find_causes_in_statistics(target, REFERENCE, 1e-5, NAMES) == ()


def test_zeros_are_told() -> None:
    (cause,) = find_causes_in_statistics([0.0] * 4, REFERENCE, 1e-5, NAMES)
    assert cause.name == "zeroed"
