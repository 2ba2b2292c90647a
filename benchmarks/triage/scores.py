"""Score the conclusion of every selection of evidence: right, honestly undecided, or wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cases import Case
from evidence import INPUTS, Comparisons, list_selections, select_evidence

from dumpdiff.diagnosis.decision import Decision, decide
from dumpdiff.diagnosis.places import Cause
from dumpdiff.model.verdict import OUTCOME_EXIT_CODES

#: right: the place of the fault, or agreement without one. undecided: the place is among those that
#: are left. wrong: everything else.
RIGHT, UNDECIDED, WRONG = "right", "undecided", "wrong"

#: Causes that are a place's own, or act at it.
_UNDECIDED_OUTCOMES = ("differ", "inconclusive")


@dataclass(frozen=True)
class Score:
    """The score of one selection of a case."""

    case: Case
    inputs: tuple[str, ...]
    outcome: Cause | str
    state: str

    @property
    def exit_code(self) -> int:
        """Return the exit code of 'dumpdiff triage'."""
        return OUTCOME_EXIT_CODES[self.outcome]

    @property
    def is_full(self) -> bool:
        """Return whether all inputs were given."""
        return len(self.inputs) == len(INPUTS)


def score_case(case: Case, comparisons: Comparisons) -> list[Score]:
    """Return the score of every selection of evidence."""
    scores = []
    for inputs in list_selections():
        decision = decide(select_evidence(comparisons, inputs))
        scores.append(Score(case, inputs, decision.outcome, judge(case, decision)))
    return scores


def judge(case: Case, decision: Decision) -> str:
    """Return whether a decision is right, undecided or wrong.

    Without a fault, undecided is everything that names no cause. Of two faults, the one that is
    named must be one of them, and a second cause the other one.
    """
    outcome = decision.outcome
    if not case.places:
        if outcome == "agree":
            return RIGHT
        return UNDECIDED if outcome == "inconclusive" else WRONG
    if outcome in _UNDECIDED_OUTCOMES:
        return UNDECIDED if set(case.places) & set(decision.candidates) else WRONG
    if outcome not in (*case.places, *case.also_right):
        return WRONG
    if not set(decision.other_causes) <= set(case.places):
        return WRONG
    return RIGHT


def find_reversals(scores: list[Score]) -> list[tuple[Score, Score]]:
    """Return pairs of scores: one that is right, and a wrong one with more evidence."""
    by_inputs: Mapping[frozenset[str], Score] = {frozenset(score.inputs): score for score in scores}
    reversals = []
    for inputs, score in by_inputs.items():
        if score.state != RIGHT:
            continue
        for other_inputs, other in by_inputs.items():
            if inputs < other_inputs and other.state == WRONG:
                reversals.append((score, other))
    return reversals
