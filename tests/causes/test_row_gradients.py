"""The gradient of a table whose rows are divided by how often they were looked up."""

from __future__ import annotations

import numpy as np
import pytest

from .fault_cases import explain_fault_case, make_fault_case

RNG = np.random.default_rng(11)
TOKENS = RNG.integers(0, 8, 24)
COUNTS = np.maximum(np.bincount(TOKENS, minlength=10), 1)[:, None]
GRADIENT = np.zeros((10, 6))
np.add.at(GRADIENT, TOKENS, RNG.standard_normal((24, 6)))


@pytest.mark.parametrize(("faulty", "faithful", "sentence"), [
    (GRADIENT / COUNTS, GRADIENT, "each row divided by a whole number"),
    (GRADIENT, GRADIENT / COUNTS, "the sums of the gradients of each row"),
])  # fmt: skip
def test_rows_are_divided_by_the_number_of_look_ups(
    faulty: np.ndarray, faithful: np.ndarray, sentence: str
) -> None:
    cause = explain_fault_case(make_fault_case(faulty, faithful, {}, phase="backward"))[0]
    assert cause.name == "gradient-scaled"
    assert sentence in cause.text
    assert f"{COUNTS[:8].min()} to {COUNTS.max()}" in cause.text


def test_one_factor_of_all_rows_is_no_number_of_look_ups() -> None:
    cause = explain_fault_case(make_fault_case(GRADIENT / 2, GRADIENT, {}, phase="backward"))[0]
    assert "look" not in cause.text
    assert "0.5 times" in cause.text


def test_other_factors_of_rows_are_not_explained() -> None:
    factors = RNG.uniform(0.3, 0.9, (10, 1))
    case = make_fault_case(GRADIENT * factors, GRADIENT, {}, phase="backward")
    assert explain_fault_case(case) == ()
