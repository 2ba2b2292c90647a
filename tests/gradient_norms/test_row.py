"""How a row is called, and which comes first."""

from __future__ import annotations

import math

import pytest

from dumpdiff.gradient_norms import Row
from dumpdiff.gradient_norms.row import State


def row(target: str, reference: str, state: State, relative: float, path: str = "") -> Row:
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
def test_a_row_is_called_by_a_name_if_there_is_one(
    target: str, reference: str, path: str, label: str
) -> None:
    assert row(target, reference, "differ", 0.5, path).label == label


def test_what_is_not_finite_comes_first_and_what_agrees_last() -> None:
    order = [
        row("a", "a", "differ", math.nan),
        row("b", "b", "differ", 0.5),
        row("c", "c", "inconclusive", math.nan),
        row("d", "d", "inconclusive", 0.04),
        row("e", "e", "agree", 1e-7),
    ]
    assert sorted(order, key=lambda one: -one.severity) == order
    assert (order[0].summary, order[1].summary) == ("a: 1.5 against 1", "b: 1.5 against 1, off by 5.0e-1")
