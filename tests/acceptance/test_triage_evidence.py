"""Real trainings, every selection of evidence: right or honestly undecided, never reversed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from . import triage_cases

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "triage"))

import cases
import evidence
import scores

pytestmark = pytest.mark.record

CASES = {case.name: case for case in cases.list_cases()}


@pytest.mark.parametrize("name", ["none", "weights", "backward", "optimizer"])
def test_more_evidence_makes_no_right_answer_wrong(
    name: str, triage_run: Callable[..., Path]
) -> None:
    case = CASES[name]
    runs = triage_cases.train_pair(triage_run, name)
    all_scores = scores.score_case(case, evidence.compare_runs(*runs, case.steps))
    assert len(all_scores) == 63
    assert [score for score in all_scores if score.state == scores.WRONG] == []
    assert scores.find_reversals(all_scores) == []
    (full,) = [score for score in all_scores if score.is_full]
    assert full.state == scores.RIGHT
    if case.places:
        assert all(score.exit_code != 0 for score in all_scores)
    else:
        assert all(score.exit_code in (0, 3) for score in all_scores)


def test_a_third_of_the_cases_is_held_out() -> None:
    held_out = [case for case in CASES.values() if case.held_out]
    assert len(CASES) == 34
    assert len(held_out) == 11
