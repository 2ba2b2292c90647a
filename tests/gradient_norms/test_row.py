"""Labels, summaries and the order of rows."""

from __future__ import annotations

import math

import pytest

from dumpdiff.gradient_norms import Row
from dumpdiff.gradient_norms.row import State


def make_row(target: str, reference: str, state: State, relative: float, path: str = "") -> Row:
    return Row(path, target, reference, 1.5, 1.0, relative, 1e-3, state, "order")


@pytest.mark.parametrize(
    ("target", "reference", "path", "label"),
    [
        ("#3", "#3", "", "#3"),
        ("#17", "#14", "", "#17/#14"),
        ("#17", "lm_head.weight", "", "lm_head.weight"),
        ("lm_head.weight", "#14", "", "lm_head.weight"),
        ("wq", "q_proj", "layers.0.attention.q.weight", "layers.0.attention.q.weight"),
    ],
)
def test_the_label_is_a_name_if_there_is_one(
    target: str, reference: str, path: str, label: str
) -> None:
    assert make_row(target, reference, "differ", 0.5, path).label == label


def test_rows_that_are_not_finite_come_first_and_rows_that_agree_last() -> None:
    rows = [
        make_row("a", "a", "differ", math.nan),
        make_row("b", "b", "differ", 0.5),
        make_row("c", "c", "inconclusive", math.nan),
        make_row("d", "d", "inconclusive", 0.04),
        make_row("e", "e", "agree", 1e-7),
    ]
    assert sorted(rows, key=lambda row: -row.severity) == rows
    assert [row.summary for row in rows[:2]] == [
        "a: 1.5 against 1",
        "b: 1.5 against 1, relative difference 5.0e-1",
    ]
