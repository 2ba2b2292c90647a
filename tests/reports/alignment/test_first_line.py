"""The first line: verdict, module, cause, file and line, in 100 characters, and no hidden doubt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from results import ALIGNED_STATES, FINDING, make_result

from dumpdiff.model.finding import Cause, Finding
from dumpdiff.model.result import Result
from dumpdiff.reports.alignment.first_line import MAX_LENGTH, format_first_line, shorten_name

EXPLAINED = replace(FINDING, causes=(Cause("epsilon", "behaves as ...", 1e-7),), side="target")


def make_clean_result(**changes: Any) -> Result:
    """Return a result without problems while reading."""
    result = make_result(**changes)
    sides = {name: replace(getattr(result, name), problems=()) for name in ("target", "reference")}
    return replace(result, **sides)


def test_a_divergence_has_module_cause_side_and_line() -> None:
    assert format_first_line(make_clean_result(findings=(EXPLAINED,))) == (
        "diverged: layers.1.post_norm: epsilon, target is wrong; model.py:46"
    )


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({}, "layers.1.post_norm: error 3.1e-2; model.py:46"),
        ({"kind": "parameter"}, "layers.1.post_norm: parameter, error 3.1e-2; model.py:46"),
        ({"side": "reference", "source": {"target": "a.py:1", "reference": "/x/y/b.py:2"}},
         "layers.1.post_norm: reference is wrong, error 3.1e-2; b.py:2"),
        ({"source": {}}, "layers.1.post_norm: error 3.1e-2"),
        ({"scope": "", "target_ops": ("Torch.rsqrt.3.forward",)},
         "Torch.rsqrt.3.forward: error 3.1e-2; model.py:46"),
    ],
)  # fmt: skip
def test_without_a_cause_it_says_what_differs(changes: dict[str, Any], answer: str) -> None:
    finding: Finding = replace(FINDING, **changes)
    assert format_first_line(make_clean_result(findings=(finding,))) == f"diverged: {answer}"


def test_a_doubt_and_the_number_of_problems_are_never_hidden() -> None:
    scope = ".".join(["a_very_long_module_name"] * 8)
    finding = replace(EXPLAINED, scope=scope)
    line = format_first_line(make_result(findings=(finding,), weaknesses=("records are damaged",)))
    assert line == (
        "diverged, in doubt: ….a_very_long_module_name: epsilon, target is wrong; "
        "model.py:46; 5 problems"
    )
    assert len(line) <= MAX_LENGTH


def test_aligned_has_the_lower_share_of_each_phase_in_whole_percents() -> None:
    result = make_clean_result(verdict="aligned", findings=(), states=ALIGNED_STATES)
    assert format_first_line(result) == "aligned: values compared: forward 83 %"


def test_a_phase_that_one_side_did_not_record_counts_as_not_compared() -> None:
    result = make_clean_result(verdict="aligned", findings=())
    assert format_first_line(result) == (
        "aligned: values compared: forward 83 %, backward 0 %; 10 beyond tolerance"
    )


def test_a_long_reason_is_cut_at_a_word() -> None:
    note = "897 records of the target cannot be relied on " * 4
    line = format_first_line(make_result(verdict="inconclusive", notes=(note,)))
    assert line.startswith("inconclusive: 897 records of the target cannot be relied on 897")
    assert line.endswith(" …; 5 problems")
    assert len(line) <= MAX_LENGTH


@pytest.mark.parametrize(
    ("length", "name"),
    [
        (42, "backbone.layers.1.attention.query_key_norm"),
        (30, "….1.attention.query_key_norm"),
        (3, "….query_key_norm"),
    ],
)
def test_the_end_of_a_name_says_most(length: int, name: str) -> None:
    assert shorten_name("backbone.layers.1.attention.query_key_norm", length) == name
