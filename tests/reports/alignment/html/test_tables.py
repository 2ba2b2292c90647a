"""The tables of the page, and where in them findings and ops stand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from results import FINDING, make, pairs

from dumpdiff.model.result import PAIR_COLUMNS, UNMATCHED_COLUMNS, Result
from dumpdiff.reports.alignment.html.tables import build_pairs_table as pair_table
from dumpdiff.reports.alignment.html.tables import compute_error_ratio, find_row, find_rows_of_ops, build_unmatched_table

BASE = {
    "target_slot": "output.0",
    "reference_slot": "output.0",
    "tolerance": 1e-6,
    "state": "agreeing",
}


def table() -> pd.DataFrame:
    return pairs(
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
    assert set(pair_table(make())) == {*PAIR_COLUMNS, "ratio"} - {"target", "reference"}
    assert set(build_unmatched_table(make())) == set(UNMATCHED_COLUMNS)


def test_an_op_stands_for_its_worst_output() -> None:
    assert find_rows_of_ops(table()) == {"target": {"a": 2, "b": 3}, "reference": {"A": 2}}


def test_a_finding_stands_where_its_slot_parts() -> None:
    finding = replace(
        FINDING, target_ops=("a",), reference_ops=("A",), slots=(("output.1", "output.0"),)
    )
    assert find_row(finding, table()) == 2
    assert find_row(replace(finding, slots=()), table()) == 0
    assert find_row(replace(finding, target_ops=("elsewhere",)), table()) == -1


def test_the_finding_of_the_demo_stands_where_it_is_introduced(demo: Result) -> None:
    assert demo.pairs["state"].iat[find_row(demo.findings[0], demo.pairs)] == "introduced"


def test_the_ratio_of_what_is_equal_not_finite_or_not_compared() -> None:
    table = pairs(
        {"error": 0.0, "tolerance": 0.0}, {"error": 1.0, "tolerance": 0.0}, {"error": np.nan, "tolerance": 1.0},
        {"error": 0.0, "tolerance": 1.0, "nonfinite_mismatch": 2.0}, {"error": 3.0, "tolerance": 2.0},
    )  # fmt: skip
    assert compute_error_ratio(table).tolist() == pytest.approx([0.0, np.inf, np.nan, np.inf, 1.5], nan_ok=True)
