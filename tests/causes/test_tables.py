"""Tables of a few numbers: shares of labels, and functions of a constant table."""

from __future__ import annotations

import numpy as np
import pytest

from dumpdiff.model.arrays import AnyArray

from .fault_cases import explain_fault_case, make_fault_case

LABELS = np.array([3, 0, 4, 1, 1, 2])
BREAKS = np.linspace(2.3, 21.7, 11)


def make_shares(share: float, others: float) -> AnyArray:
    """Return (labels, classes) with one share for the label and one for each other class."""
    return np.where(LABELS[:, None] == np.arange(5), share, others)


def test_labels_whose_rest_is_spread_over_other_classes_are_smoothed_otherwise() -> None:
    case = make_fault_case(make_shares(0.8, 0.05), make_shares(0.84, 0.04), {})
    (cause, *_) = explain_fault_case(case)
    assert cause.name == "label-smoothing"
    assert "shares of 0.8 for a label and 0.05 for the others" in cause.text
    assert "0.84 for a label" in cause.text


def test_another_label_is_no_other_smoothing() -> None:
    moved = np.roll(make_shares(0.8, 0.05), 1, axis=1)
    causes = explain_fault_case(make_fault_case(moved, make_shares(0.84, 0.04), {}))
    assert "label-smoothing" not in {cause.name for cause in causes}


@pytest.mark.parametrize(
    ("name", "function"),
    [("squares", np.square), ("square roots", np.sqrt), ("inverses", np.reciprocal)],
)
def test_a_constant_table_may_hold_a_function_of_the_numbers(name: str, function: np.ufunc) -> None:
    case = make_fault_case(function(BREAKS), BREAKS, {}, kind="constant")
    (cause, *_) = explain_fault_case(case)
    assert cause.name == "missing-step"
    assert f"the {name} of its numbers" in cause.text
