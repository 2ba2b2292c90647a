"""Which hypotheses explain a situation, and in which order they are told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ..model.formatting import number
from ..model.finding import Cause
from .hypothesis import Candidate, Hypothesis
from .fault_case import FaultCase, compute_residual

_ALIKE = 3.0  # residuals that differ by less are equal: then the order of the list, simplest first, decides
_CHAOTIC = (
    0.3  # of the error: near a tie the two sides' noise decides which way a number is rounded
)
_TOLD = 3  # causes that are kept


def rank_causes(
    situations: Sequence[FaultCase], hypotheses: Sequence[Hypothesis], checked_only: bool = False
) -> tuple[str, tuple[Cause, ...]]:
    """(which side departs, the causes that explain it, best first); ('unknown', ()) if none does.

    A candidate explains if it leaves no more than the noise (Situation.limit), the same arithmetic without the change
    is what the faithful side has, and the change is one: the two sides differ by more than that. One that was not
    checked against the faithful side comes after those that were. Of either reading, the target or the reference at
    fault, the better explained one is kept; at equals it is the target that departs.
    """
    found: list[tuple[tuple[float, ...], str, Cause]] = []
    for role, situation in enumerate(situations):
        for order, left, checked, cause in _explaining(situation, hypotheses):
            if checked_only and not checked:
                continue
            grade = _grade(left, situation)
            found.append(((not checked, grade, order, role), situation.faulty_role, cause))
    found.sort(key=lambda entry: entry[0])
    kept: dict[str, tuple[str, Cause]] = {}
    for _, role_name, cause in found:
        kept.setdefault(cause.name, (role_name, cause))
    told = list(kept.values())[:_TOLD]
    return (told[0][0] if told else "unknown"), tuple(cause for _, cause in told)


def _grade(left: float, situation: FaultCase) -> int:
    """Residuals in steps of a factor; all that lie below a tenth of the tolerance are one."""
    floor = 0.3 * max(situation.tolerance, 1e-12)
    return max(0, int(np.ceil(np.log(max(left, floor) / floor) / np.log(_ALIKE) - 1e-9)))


def _explaining(
    situation: FaultCase, hypotheses: Iterable[Hypothesis]
) -> Iterator[tuple[int, float, bool, Cause]]:
    for order, hypothesis in enumerate(hypotheses):
        for candidate in _offered(situation, hypothesis):
            left = compute_residual(candidate.predicted, situation.faulty)
            if not left <= (_CHAOTIC * situation.error if candidate.is_chaotic else situation.limit):
                continue
            if candidate.unchanged is not None and not situation.matches_faithful(candidate.unchanged):
                continue
            name = candidate.cause or hypothesis.cause
            cause = Cause(name, _said(situation, candidate, left), left, candidate.parameters)
            yield order, left, candidate.unchanged is not None, cause


def _offered(situation: FaultCase, hypothesis: Hypothesis) -> Iterator[Candidate]:
    """The candidates of a hypothesis; one that meets arrays of shapes that do not go together does not apply."""
    try:
        yield from hypothesis.make_candidates(situation)
    except (ValueError, IndexError, np.linalg.LinAlgError):
        return


def _said(situation: FaultCase, candidate: Candidate, left: float) -> str:
    """layers.1.post_norm behaves as epsilon = 1.0e-2; the reference uses 1.0e-5; residual 3.0e-8."""
    finding = situation.finding
    ops = finding.target_ops if situation.faulty_role == "target" else finding.reference_ops
    place = finding.scope or (ops[-1] if ops else "this place")
    who = place if situation.faulty_role == "target" else f"{place} of the reference"
    other = f"; the {situation.faithful_role} {candidate.contrast}" if candidate.contrast else ""
    return f"{who} behaves as {candidate.description}{other}; residual {number(left)}"
