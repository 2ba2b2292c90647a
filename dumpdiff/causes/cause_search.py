"""Try the hypotheses on fault cases and rank the causes that explain them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..model.finding import Cause, Finding
from ..model.formatting import format_number
from .fault_case import FaultCase, compute_residual
from .hypothesis import Candidate, Hypothesis

#: Residuals within one step of this factor are equal, because noise alone makes such differences.
#: The order of the hypotheses, the simplest first, then decides.
_RESIDUAL_STEP = 3.0
#: Residuals below this share of the tolerance are all equal.
_RESIDUAL_FLOOR = 0.3
#: Accepted residual of a chaotic candidate, as share of the error: near a tie the noise of the two
#: sides decides which way a number is rounded.
_CHAOTIC_RESIDUAL = 0.3
#: Fewest elements of a value that a chaotic candidate explains: one number is near by chance.
_MIN_CHAOTIC_ELEMENTS = 16
#: Causes that are kept per finding.
_MAX_CAUSES = 3


@dataclass(frozen=True)
class _Explanation:
    """A cause that explains one fault case."""

    hypothesis_order: int
    is_checked: bool  #: the arithmetic without the change gave the value of the faithful side
    cause: Cause


def find_causes(
    cases: Sequence[FaultCase], hypotheses: Sequence[Hypothesis], checked_only: bool = False
) -> tuple[str, tuple[Cause, ...]]:
    """Return (faulty side, causes that explain the finding, best first).

    ('unknown', ()) if no cause explains it. A candidate explains a case if three conditions hold:
    its residual is noise (FaultCase.limit), the same arithmetic without the change gives the value
    of the faithful side, and the two sides differ by more than the noise. Candidates that were not
    checked against the faithful side come after those that were. Each cause is kept for the side
    for which it explains more; if both are equal, the target is faulty.
    """
    ranked: list[tuple[tuple[float, ...], str, Cause]] = []
    for case_order, case in enumerate(cases):
        for explanation in _explain_case(case, hypotheses):
            is_checked, cause = explanation.is_checked, explanation.cause
            if checked_only and not is_checked:
                continue
            grade = _grade_residual(cause.residual, case.tolerance)
            rank = (not is_checked, grade, explanation.hypothesis_order, case_order)
            ranked.append((rank, case.faulty_side, cause))
    ranked.sort(key=lambda entry: entry[0])
    best_by_name: dict[str, tuple[str, Cause]] = {}
    for _, side, cause in ranked:
        best_by_name.setdefault(cause.name, (side, cause))
    best_entries = list(best_by_name.values())[:_MAX_CAUSES]
    if not best_entries:
        return "unknown", ()
    return best_entries[0][0], tuple(cause for _, cause in best_entries)


def _grade_residual(residual: float, tolerance: float) -> int:
    """Return the residual in steps of a factor of three; 0 for all below 0.3 tolerances."""
    floor = _RESIDUAL_FLOOR * max(tolerance, 1e-12)
    n_steps = np.log(max(residual, floor) / floor) / np.log(_RESIDUAL_STEP)
    return max(0, int(np.ceil(n_steps - 1e-9)))


def _explain_case(case: FaultCase, hypotheses: Iterable[Hypothesis]) -> Iterator[_Explanation]:
    for order, hypothesis in enumerate(hypotheses):
        for candidate in _suggest_candidates(case, hypothesis):
            residual = compute_residual(candidate.predicted, case.faulty)
            is_chaotic = candidate.is_chaotic and case.faulty.size >= _MIN_CHAOTIC_ELEMENTS
            limit = _CHAOTIC_RESIDUAL * case.error if is_chaotic else case.limit
            if not residual <= limit:
                continue
            is_checked = candidate.unchanged is not None
            if candidate.unchanged is not None and not case.matches_faithful(candidate.unchanged):
                continue
            name = candidate.cause or hypothesis.cause
            text = _format_cause(case, candidate, residual)
            yield _Explanation(order, is_checked, Cause(name, text, residual, candidate.parameters))


def _suggest_candidates(case: FaultCase, hypothesis: Hypothesis) -> Iterator[Candidate]:
    """Yield the candidates of a hypothesis until it meets arrays whose shapes do not fit."""
    try:
        yield from hypothesis.suggest_candidates(case)
    except (ValueError, IndexError, np.linalg.LinAlgError):
        return


def _format_cause(case: FaultCase, candidate: Candidate, residual: float) -> str:
    contrast = f"; the {case.faithful_side} {candidate.contrast}" if candidate.contrast else ""
    description = f"{candidate.description}{contrast}"
    return format_cause_text(
        case.finding, case.faulty_side, description, candidate.recorded, residual
    )


def format_cause_text(
    finding: Finding, faulty_side: str, description: str, recorded: str, residual: float
) -> str:
    """Return a sentence about a cause.

    ``recorded`` is what both dumps hold, '' if nothing is known of it. Example:
    layers.1.post_norm behaves as epsilon = 0.01; the reference uses 1e-05; residual 3.0e-8
    """
    is_target_faulty = faulty_side == "target"
    ops = finding.target_ops if is_target_faulty else finding.reference_ops
    place = finding.scope or (ops[-1] if ops else "this place")
    if not is_target_faulty:
        place = f"{place} of the reference"
    parts = [f"{place} behaves as {description}"]
    if recorded:
        parts.append(f"recorded: {recorded}")
    parts.append(f"residual {format_number(residual)}")
    return "; ".join(parts)
