"""The CSV of the pairs: every column, every digit, and nothing that a spreadsheet would run."""

from __future__ import annotations

import csv
import io
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from results import make_pairs, make_result

from dumpdiff.model.result import PAIR_COLUMNS, Result
from dumpdiff.reports.alignment import csv as report


def read_rows(result: Result) -> list[dict[str, str]]:
    stream = io.BytesIO()
    report.write(result, stream)
    return list(csv.DictReader(io.StringIO(stream.getvalue().decode(), newline="")))


def test_one_row_per_pair_and_every_column() -> None:
    rows = read_rows(make_result())
    assert len(rows) == 2
    assert list(rows[0]) == list(PAIR_COLUMNS)


def test_no_pairs_is_a_header_alone() -> None:
    stream = io.BytesIO()
    report.write(make_result(pairs=make_pairs()), stream)
    assert stream.getvalue().decode().splitlines() == [",".join(PAIR_COLUMNS)]


def test_a_column_beyond_the_documented_is_kept() -> None:
    assert read_rows(make_result(pairs=make_pairs({"target": 1}).assign(ulp=3)))[0]["ulp"] == "3"


@pytest.mark.parametrize(
    "number", [0.1, math.nextafter(1.0, 2), 1e-300, -2.5, float("inf"), float("-inf")]
)
def test_numbers_read_back_exactly(number: float) -> None:
    assert float(read_rows(make_result(pairs=make_pairs({"error": number})))[0]["error"]) == number


def test_what_was_not_measured_is_empty() -> None:
    assert read_rows(make_result(pairs=make_pairs({"cosine": float("nan")})))[0]["cosine"] == ""


def test_a_scalar_shape_differs_from_an_unknown_one() -> None:
    rows = read_rows(
        make_result(
            pairs=make_pairs(
                {"target_shape": (), "reference_shape": None}, {"target_shape": (2, 3)}
            )
        )
    )
    assert [row["target_shape"] for row in rows] == ["()", "(2, 3)"]
    assert rows[0]["reference_shape"] == ""


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "'=1"])
def test_text_that_looks_like_a_formula_is_escaped(name: str) -> None:
    assert (
        read_rows(make_result(pairs=make_pairs({"target_op": name})))[0]["target_op"] == "'" + name
    )


def test_a_negative_number_stays_a_number() -> None:
    assert read_rows(make_result(pairs=make_pairs({"target_min": -1.5})))[0]["target_min"] == "-1.5"


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
@settings(max_examples=50)
def test_any_name_reads_back_once_the_apostrophe_is_dropped(name: str) -> None:
    cell = read_rows(make_result(pairs=make_pairs({"target_op": name, "state": "agreeing"})))[0][
        "target_op"
    ]
    assert cell.removeprefix("'") == name
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


def test_a_cell_that_is_the_same_in_all_rows_is_in_every_row() -> None:
    shared_cells = {"layout": "same", "metric": "a,b", "cosine": math.nan, "state": "=1+1"}
    rows = read_rows(
        make_result(
            pairs=make_pairs({**shared_cells, "error": 0.5}, {**shared_cells, "error": 0.25})
        )
    )
    assert [row["error"] for row in rows] == ["0.5", "0.25"]
    for row in rows:
        assert (row["layout"], row["metric"], row["cosine"]) == ("same", "a,b", "")
        assert row["state"] == "'=1+1"
