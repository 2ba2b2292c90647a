"""The tables of the page, and the rows of findings and ops in them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from results import FINDING, make_pairs, make_result

from dumpdiff.model.result import PAIR_COLUMNS, UNCOMPARED_COLUMNS, UNMATCHED_COLUMNS, Result
from dumpdiff.reports.alignment.html.tables import (
    build_pairs_table,
    build_uncompared_table,
    build_unmatched_table,
    compute_error_ratio,
    find_row,
    find_rows_of_ops,
)

BASE = {
    "target_slot": "output.0",
    "reference_slot": "output.0",
    "tolerance": 1e-6,
    "state": "agreeing",
}


def make_table() -> pd.DataFrame:
    return make_pairs(
        BASE | {"target_op": "a", "reference_op": "A", "target_slot": "input.0", "error": 1.0},
        BASE | {"target_op": "a", "reference_op": "A", "error": 1e-7},
        BASE
        | {
            "target_op": "a",
            "reference_op": "A",
            "target_slot": "output.1",
            "error": 1e-3,
            "state": "introduced",
        },
        BASE | {"target_op": "b", "reference_op": "A"},
    )


def test_every_column_that_a_person_can_read_is_there() -> None:
    assert set(build_pairs_table(make_result())) == {*PAIR_COLUMNS, "ratio", "values"} - {
        "target",
        "reference",
    }
    assert set(build_unmatched_table(make_result())) == set(UNMATCHED_COLUMNS)
    assert set(build_uncompared_table(make_result())) == set(UNCOMPARED_COLUMNS)


def test_an_op_has_the_row_of_its_worst_output() -> None:
    assert find_rows_of_ops(make_table()) == {"target": {"a": 2, "b": 3}, "reference": {"A": 2}}


def test_a_finding_has_the_row_where_its_slot_diverges() -> None:
    finding = replace(
        FINDING, target_ops=("a",), reference_ops=("A",), slots=(("output.1", "output.0"),)
    )
    assert find_row(finding, make_table()) == 2
    assert find_row(replace(finding, slots=()), make_table()) == 0
    isolated_table = make_table().replace({"state": {"introduced": "isolated"}})
    assert find_row(replace(finding, kind="isolated"), isolated_table) == 2
    assert find_row(replace(finding, target_ops=("elsewhere",)), make_table()) == -1


def test_the_finding_of_the_demo_stands_where_it_is_introduced(demo: Result) -> None:
    assert demo.pairs["state"].iat[find_row(demo.findings[0], demo.pairs)] == "introduced"


def test_the_ratio_of_what_is_equal_not_finite_or_not_compared() -> None:
    table = make_pairs(
        {"error": 0.0, "tolerance": 0.0},
        {"error": 1.0, "tolerance": 0.0},
        {"error": np.nan, "tolerance": 1.0},
        {"error": 0.0, "tolerance": 1.0, "nonfinite_mismatch": 2.0},
        {"error": 3.0, "tolerance": 2.0},
    )
    assert compute_error_ratio(table).tolist() == pytest.approx(
        [0.0, np.inf, np.nan, np.inf, 1.5], nan_ok=True
    )
