"""Real trainings, every selection of evidence: right or honestly undecided, never reversed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "triage"))

import cases
import evidence
import scores

pytestmark = [pytest.mark.record, pytest.mark.usefixtures("shared_updates")]

CASES = {case.name: case for case in cases.list_cases()}


#: Further faults that were once ruled out or called something else: a tripled row, which leaves
#: the first loss as it is; a permuted batch; dropout on one side; decay of all weights.
RULED_OUT_ONCE = ("weight-row", "sample-order", "dropout", "decay-vectors")


@pytest.mark.parametrize("name", ["none", "weights", "backward", "optimizer", *RULED_OUT_ONCE])
def test_more_evidence_makes_no_right_answer_wrong(
    name: str, triage_run: Callable[..., Path]
) -> None:
    case = CASES[name]
    runs = [triage_run(*side, case.steps) for side in (case.target, case.reference)]
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
    sizes = Counter(case.part for case in CASES.values())
    assert sizes == {cases.TUNED: 25, cases.HELD_OUT: 11, cases.SECOND_HELD_OUT: 14}
