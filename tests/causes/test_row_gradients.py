"""The gradient of a table whose rows are divided by how often they were looked up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.hypotheses import COMPOSITE_HYPOTHESES

from .fault_cases import explain_fault_case, make_fault_case
from .test_composites import make_region

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


def test_a_padding_row_of_a_shared_table_keeps_the_gradient_of_the_last_layer() -> None:
    tokens = np.array([[0, 1, 3, 0], [2, 0, 1, 1]])
    gradients = RNG.standard_normal((2, 4, 6))
    region = make_region(
        [
            ("segment_sum", [("of tokens", gradients[0]), ("tokens", tokens[0]), ("rows", 5)]),
            ("segment_sum", [("of labels", gradients[1]), ("labels", tokens[1]), ("rows", 5)]),
            ("add", [("0", 0), ("1", 0), ("of the last layer", RNG.standard_normal((5, 6)))]),
        ],
        {0: (5, 6), 1: (5, 6), 2: (5, 6)},
    )
    faithful = region.steps[-1].output
    faulty = faithful.copy()
    faulty[0] -= region.steps[0].output[0] + region.steps[1].output[0]
    case = make_fault_case(faulty, faithful, {}, phase="backward", scope="table")
    case = replace(case, load_region=lambda: region)
    cause = search_causes([case], COMPOSITE_HYPOTHESES, checked_only=True).causes[0]
    assert cause.name == "gradient-stopped"
    assert "no gradient in 1 of 5 rows: 0, and the same at 1 other place" in cause.text


def test_one_factor_of_all_rows_is_no_number_of_look_ups() -> None:
    cause = explain_fault_case(make_fault_case(GRADIENT / 2, GRADIENT, {}, phase="backward"))[0]
    assert "look" not in cause.text
    assert "0.5 times" in cause.text


def test_other_factors_of_rows_are_not_explained() -> None:
    factors = RNG.uniform(0.3, 0.9, (10, 1))
    case = make_fault_case(GRADIENT * factors, GRADIENT, {}, phase="backward")
    assert explain_fault_case(case) == ()
