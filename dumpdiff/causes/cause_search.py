"""Try the hypotheses on fault cases and rank the causes that explain them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..model.finding import Cause, Finding
from ..model.formatting import format_number
from ..model.trace import BACKWARD
from .fault_case import FaultCase, compute_residual
from .hypothesis import Candidate, Hypothesis, Statement

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
#: Steps of residuals by which a fitted number that nobody would write must be better than a cause
#: without one: a factor of nine. Some number explains a part of any difference.
_ODD_NUMBER_STEPS = 2
#: Parameters that are fitted freely: any number is some factor, offset or limit.
_FREE_PARAMETERS = {"factor", "number", "the number", "limit", "offset"}
#: Significant digits of numbers that people write, and largest whole number whose root they take.
_WRITTEN_DIGITS, _MAX_ROOT = 3, 512
#: Names of the fitted bases of both sides, their digits, and how far noise moves them: powers of
#: them were compared.
_BASE_PARAMETERS, _BASE_DIGITS, _BASE_DISTANCE = {"theta", "other_theta"}, 2, 1e-3
#: Relative distance within which a fitted number is a written one.
_WRITTEN_DISTANCE = 2e-5
#: Causes that are kept per finding, and excluded ones that are named.
_MAX_CAUSES, _MAX_EXCLUDED = 3, 3


@dataclass(frozen=True)
class Exclusion:
    """A cause that does not explain a finding, and the least that it leaves."""

    name: str
    residual: float


@dataclass(frozen=True)
class CauseSearch:
    """What the hypotheses say of a finding."""

    faulty_side: str = "unknown"  #: of the first cause
    causes: tuple[Cause, ...] = ()  #: best first
    #: causes of which none can be preferred; ``causes`` is empty then
    undecided: tuple[Cause, ...] = ()
    excluded: tuple[Exclusion, ...] = ()  #: the nearest ones, best first
    has_odd_number: bool = False  #: the first cause rests on a number that nobody would write


@dataclass(frozen=True)
class Explanation:
    """A candidate that explains one fault case."""

    candidate: Candidate
    cause_name: str
    residual: float
    hypothesis_order: int
    is_choice: bool  #: as in Hypothesis

    @property
    def is_checked(self) -> bool:
        """Whether the arithmetic without the change gave the value of the faithful side."""
        return self.candidate.unchanged is not None


def search_causes(
    cases: Sequence[FaultCase], hypotheses: Sequence[Hypothesis], checked_only: bool = False
) -> CauseSearch:
    """Return the causes that explain a finding, and those that do not.

    A candidate explains a case if three conditions hold: its residual is noise (FaultCase.limit),
    the same arithmetic without the change gives the value of the faithful side, and the two sides
    differ by more than the noise. What the records themselves show comes first; candidates that
    were not checked against the faithful side come last. Each cause is kept for the side for which
    it explains more; if both are equal, the target is faulty.

    A fitted number that nobody would write (a factor of 0.8734) is weak evidence: a cause without
    one comes first, unless its residual is much larger.

    Hypotheses that choose among many tensors or orders explain some values by chance. If two of
    them explain a finding equally well and nothing simpler does, it is undecided. Two that give one
    other order of the same numbers say the same.
    """
    ranked: list[_Entry] = []
    odd_causes: list[Cause] = []
    least_residuals: dict[str, float] = {}
    for case_order, case in enumerate(cases):
        if case.error <= case.tolerance:
            continue  # another value of a region may agree
        for explanation in iterate_explanations(case, hypotheses, least_residuals):
            if checked_only and not explanation.is_checked:
                continue
            candidate = explanation.candidate
            grade = _grade_residual(explanation.residual, case.tolerance)
            is_odd = not candidate.recorded and has_odd_number(candidate.parameters, case.tolerance)
            if is_odd:
                grade += _ODD_NUMBER_STEPS
            evidence_rank = (not explanation.is_checked, grade, not candidate.is_evident)
            # a gradient that one side lacks is likelier than one that the other side adds twice
            has_factor = case.phase == BACKWARD and "factor" in candidate.parameters
            rank = (*evidence_rank, explanation.hypothesis_order, has_factor, case_order)
            side, text, parameters = _make_statement(case, candidate, explanation.residual)
            cause = Cause(explanation.cause_name, text, explanation.residual, parameters)
            ranked.append(_Entry(rank, explanation.is_choice, side, cause, candidate))
            if is_odd:
                odd_causes.append(cause)
    ranked.sort(key=lambda entry: entry.rank)
    best_by_name: dict[str, _Entry] = {}
    for entry in ranked:
        best_by_name.setdefault(entry.cause.name, entry)
    excluded = _list_excluded(least_residuals, set(best_by_name))
    best_entries = list(best_by_name.values())[:_MAX_CAUSES]
    if not best_entries:
        return CauseSearch(excluded=excluded)
    causes = tuple(entry.cause for entry in best_entries)
    first = best_entries[0]
    rivals = [entry for entry in best_entries if entry.rank[:3] == first.rank[:3]]
    if first.is_choice and not all(map(first.gives_same_order, rivals)):
        undecided = tuple(rival.cause for rival in rivals)
        return CauseSearch(undecided=undecided, excluded=excluded)
    has_odd = any(cause is causes[0] for cause in odd_causes)
    return CauseSearch(first.side, causes, excluded=excluded, has_odd_number=has_odd)


class _Entry(NamedTuple):
    """A cause that explains a finding; the first ones by rank are given."""

    rank: tuple[float, ...]
    is_choice: bool  #: among many tensors or orders
    side: str
    cause: Cause
    candidate: Candidate

    def gives_same_order(self, other: _Entry) -> bool:
        """Return whether both put the numbers of a value into one other order."""
        if other is self:
            return True
        predicted, unchanged = self.candidate.predicted, self.candidate.unchanged
        return (
            unchanged is not None
            and np.array_equal(predicted, other.candidate.predicted)
            and predicted.size == unchanged.size
            and np.allclose(
                np.sort(predicted, axis=None), np.sort(unchanged, axis=None), 1e-5, 1e-6
            )
        )


def has_odd_number(parameters: Mapping[str, float], tolerance: float) -> bool:
    """Return whether a freely fitted number is none that people write.

    They write numbers of three digits, inverses of these, and roots of whole numbers; of the base
    of a rotary embedding only two digits: 9980 is 10000 whose powers were rounded. Numbers that
    both dumps hold are written as well.
    """
    numbers = [value for name, value in parameters.items() if name in _FREE_PARAMETERS]
    bases = [value for name, value in parameters.items() if name in _BASE_PARAMETERS]
    is_written = all(_is_written(number, tolerance) for number in numbers)
    return not is_written or not all(map(_is_written_base, bases))


def _is_written_base(base: float) -> bool:
    written = float(f"{base:.{_BASE_DIGITS}g}")
    return abs(base - written) <= _BASE_DISTANCE * abs(base)


def _is_written(number: float, tolerance: float) -> bool:
    if number == 0 or not np.isfinite(number):
        return True
    max_distance = max(_WRITTEN_DISTANCE, tolerance)
    forms = [number, 1 / number]
    for square in (number * number, 1 / (number * number)):
        if round(square) <= _MAX_ROOT and abs(square - round(square)) <= max_distance * square:
            return True
    for form in forms:
        written = float(f"{form:.{_WRITTEN_DIGITS}g}")
        if abs(form - written) <= max_distance * abs(form):
            return True
    return False


def _list_excluded(
    least_residuals: Mapping[str, float], explained_names: Collection[str]
) -> tuple[Exclusion, ...]:
    exclusions = [
        Exclusion(name, residual)
        for name, residual in least_residuals.items()
        if name not in explained_names
    ]
    exclusions.sort(key=lambda exclusion: exclusion.residual)
    return tuple(exclusions[:_MAX_EXCLUDED])


def merge_exclusions(earlier: CauseSearch, later: CauseSearch) -> tuple[Exclusion, ...]:
    """Return the nearest excluded causes of two searches, without those that the later gives."""
    least_residuals: dict[str, float] = {}
    for exclusion in (*earlier.excluded, *later.excluded):
        least = least_residuals.get(exclusion.name, exclusion.residual)
        least_residuals[exclusion.name] = min(least, exclusion.residual)
    return _list_excluded(least_residuals, {cause.name for cause in later.causes})


def _grade_residual(residual: float, tolerance: float) -> int:
    """Return the residual in steps of a factor of three; 0 for all below 0.3 tolerances."""
    floor = _RESIDUAL_FLOOR * max(tolerance, 1e-12)
    n_steps = np.log(max(residual, floor) / floor) / np.log(_RESIDUAL_STEP)
    return max(0, int(np.ceil(n_steps - 1e-9)))


def iterate_explanations(
    case: FaultCase,
    hypotheses: Iterable[Hypothesis],
    least_residuals: dict[str, float] | None = None,
) -> Iterator[Explanation]:
    """Yield the candidates that explain a case.

    ``least_residuals`` (cause -> residual) receives what the candidates leave that remove a part of
    the error but do not explain it.
    """
    for order, hypothesis in enumerate(hypotheses):
        for candidate in _suggest_candidates(case, hypothesis):
            name = candidate.cause or hypothesis.cause
            residual = compute_residual(candidate.predicted, case.faulty)
            is_chaotic = candidate.is_chaotic and case.faulty.size >= _MIN_CHAOTIC_ELEMENTS
            limit = _CHAOTIC_RESIDUAL * case.error if is_chaotic else case.limit
            if not residual <= limit:
                if least_residuals is not None and residual < case.error:
                    least_residuals[name] = min(residual, least_residuals.get(name, residual))
                continue
            if candidate.unchanged is not None and not case.matches_faithful(candidate.unchanged):
                continue
            yield Explanation(candidate, name, residual, order, hypothesis.is_choice)


def _suggest_candidates(case: FaultCase, hypothesis: Hypothesis) -> Iterator[Candidate]:
    """Yield the candidates of a hypothesis until it meets arrays whose shapes do not fit."""
    try:
        yield from hypothesis.suggest_candidates(case)
    except (ValueError, IndexError, np.linalg.LinAlgError):
        return


def _make_statement(
    case: FaultCase, candidate: Candidate, residual: float
) -> tuple[str, str, Mapping[str, float]]:
    """Return (side that the sentence is about, sentence, fitted numbers)."""
    side, other_side = case.faulty_side, case.faithful_side
    statement = Statement(candidate.description, candidate.contrast, candidate.parameters)
    if candidate.mirror is not None and side == "reference":
        side, other_side, statement = other_side, side, candidate.mirror
    contrast = f"; the {other_side} {statement.contrast}" if statement.contrast else ""
    description = f"{statement.description}{contrast}"
    text = format_cause_text(case.finding, side, description, candidate.recorded, residual)
    return side, text, statement.parameters


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
