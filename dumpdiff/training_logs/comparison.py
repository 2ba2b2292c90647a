"""Compare the curves of two runs: check the migration standard, find where they diverge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..model.arrays import AnyArray
from ..model.errors import DumpError
from ..model.formatting import format_number
from ..model.stage import Stage
from ..model.verdict import Verdict
from . import migration_standard
from .curve_shape import (
    Fluctuation,
    compute_block_rms,
    find_lasting_divergence,
    find_spikes,
    measure_fluctuation,
)
from .curves import Curves
from .drift import Drift, find_drift
from .migration_standard import Check
from .shifts import check_learning_rate, check_step_shift

#: When the runs begin to differ. Step 1 points to forward, data or weights, step 2 to the
#: optimizer, later to a long run.
Onset = Literal["step 1", "step 2", "later", "never"]

#: The difference at the second step is suspicious if it is this many times that of the first step
#: (or of the rounding of the log, if that is larger).
_SECOND_STEP_GROWTH = 10.0
#: In every tenth of the steps, a target inside the band is at most this many times as far from the
#: reference as the farthest of the reference's own runs.
_BAND_FACTOR = 2.0
#: A note is written if the printed digits leave more than this share of the limit of the first loss
#: open.
_COARSE_DIGITS = 0.1


@dataclass(frozen=True)
class Band:
    """The spread among runs of the reference, next to the distance of the target."""

    runs: int  #: number of runs, the reference not counted
    steps: int  #: number of steps that all runs have
    spread: float  #: root mean square of their distance from the reference
    distance: float  #: root mean square of the target's distance from the reference
    #: In every tenth of the steps, the target is within _BAND_FACTOR times the spread.
    contains_target: bool


@dataclass(frozen=True)
class LogComparison:
    """Result of the comparison; arrays have one entry per common step with a loss on both sides."""

    target: Curves
    reference: Curves
    steps: AnyArray
    target_loss: AnyArray
    reference_loss: AnyArray
    checks: tuple[Check, ...]
    onset: Onset
    divergence_step: int | None  #: step from which the losses diverge permanently, or None
    fluctuation: Fluctuation
    drift: Drift | None  #: a change of the mean difference, None if none is proven
    spikes: tuple[tuple[str, int], ...]  #: (side, step) where the loss of one side only has a spike
    band: Band | None = None
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """'differ' if any check differs, else 'inconclusive' if any is, else 'agree'."""
        verdicts = {check.verdict for check in self.checks}
        if "differ" in verdicts:
            return "differ"
        if "inconclusive" in verdicts:
            return "inconclusive"
        return "agree"

    def to_stage(self) -> Stage:
        """Return the comparison as one stage of a triage."""
        differing = self._list_messages("differ")
        agreeing = self._list_messages("agree")
        inconclusive = self._list_messages("inconclusive")
        if differing:
            headline = differing[0]
            if self.divergence_step is not None:
                headline += f"; the losses diverge permanently from step {self.divergence_step}"
            elif self.drift is not None:
                headline += f"; {self.drift.summarize()}"
        elif inconclusive:
            headline = f"{inconclusive[0]}; all else agrees"
        else:
            first_message = self.checks[0].summary
            headline = f"{len(self.steps)} steps within the migration standard, {first_message}"
        return Stage("logs", self.verdict, headline, (*differing, *agreeing), tuple(inconclusive))

    def _list_messages(self, verdict: Verdict) -> list[str]:
        return [check.summary for check in self.checks if check.verdict == verdict]


def compare(
    target: Curves,
    reference: Curves,
    baselines: Sequence[Curves] = (),
    least_steps: int = migration_standard.MIN_STEPS,
) -> LogComparison:
    """Compare ``target`` with ``reference``; ``baselines`` are further runs of the reference.

    Raises DumpError if no step has a loss on both sides.
    """
    target, reference = _average_like(target, reference), _average_like(reference, target)
    steps, target_rows, reference_rows = _find_common_steps(target, reference)
    target_loss = target.loss[target_rows]
    reference_loss = reference.loss[reference_rows]
    difference = target_loss - reference_loss
    rounding = target.loss_resolution + reference.loss_resolution
    divergence = find_lasting_divergence(difference, rounding)
    drift = find_drift(steps, target_loss, reference_loss, rounding)
    checks = list(check_step_shift(target, reference))
    checks += _check_losses(steps, target_loss, reference_loss, rounding)
    if drift is not None:
        checks.append(Check("drift", "inconclusive", drift.summarize(), abs(drift.share), 0))
    checks.append(_check_norms(target, reference, target_rows, reference_rows))
    is_unclear = "unknown" in (target.rate_of, reference.rate_of)
    rates = align_rates(target, reference)
    checks.append(check_learning_rate(rates, is_unclear=is_unclear))
    checks += _check_lost_steps(target, reference)
    checks.append(migration_standard.check_length(len(steps), least_steps))
    band = None
    if baselines:
        band = _compute_band(steps, difference, reference, baselines, rounding)
        checks = [_accept_within_band(check, band) for check in checks]
    return LogComparison(
        target=target,
        reference=reference,
        steps=steps,
        target_loss=target_loss,
        reference_loss=reference_loss,
        checks=tuple(checks),
        onset=_classify_onset(checks, steps, difference, rounding, divergence is not None),
        divergence_step=None if divergence is None else int(steps[divergence]),
        fluctuation=measure_fluctuation(difference),
        drift=drift,
        spikes=tuple(_find_one_sided_spikes(steps, target_loss, reference_loss)),
        band=band,
        notes=tuple(_list_notes(target, reference, steps)),
    )


def _check_losses(
    steps: AnyArray, target_loss: AnyArray, reference_loss: AnyArray, rounding: float
) -> list[Check]:
    """Check the first loss, the second loss (if there is one) and the mean loss."""
    checks = []
    for index, name in enumerate(("first loss", "second loss")[: len(steps)]):
        checks.append(
            migration_standard.check_loss(
                name, int(steps[index]), target_loss[index], reference_loss[index], rounding
            )
        )
    checks.append(migration_standard.check_mean_loss(target_loss, reference_loss, rounding))
    return checks


def _check_norms(
    target: Curves, reference: Curves, target_rows: AnyArray, reference_rows: AnyArray
) -> Check:
    target_norm, reference_norm = target.norm[target_rows], reference.norm[reference_rows]
    printed = np.isfinite(target_norm) & np.isfinite(reference_norm)
    rounding = target.norm_resolution + reference.norm_resolution
    return migration_standard.check_global_norm(
        target_norm[printed], reference_norm[printed], rounding
    )


def _average_like(curves: Curves, other: Curves) -> Curves:
    """Average the losses over the steps that each line of ``other`` covers.

    This is done only if ``other`` prints means and ``curves`` does not. The loss of a line whose
    steps are not all printed in ``curves`` is NaN.
    """
    if curves.averaged or not other.averaged:
        return curves
    in_range = (other.steps >= curves.steps[0]) & (other.steps <= curves.steps[-1])
    ends = other.steps[in_range]
    previous_steps = np.concatenate([[other.steps[0] - other.interval], other.steps[:-1]])
    begins = previous_steps[np.searchsorted(other.steps, ends)]
    loss = np.full(len(curves), np.nan)
    for begin, end in zip(begins, ends, strict=True):
        covered = curves.loss[(curves.steps > begin) & (curves.steps <= end)]
        if len(covered) == end - max(begin, 0):
            loss[np.searchsorted(curves.steps, end)] = covered.mean()
    note = "losses are compared as means over the other side's lines"
    return replace(curves, loss=loss, notes=(*curves.notes, note))


def _find_common_steps(target: Curves, reference: Curves) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Return the steps with a loss on both sides, and their indices in target and reference.

    If there is none because one side is not finite, these are the steps where only one side is.
    """
    steps, target_rows, reference_rows = np.intersect1d(
        target.steps, reference.steps, return_indices=True
    )
    has_loss = np.isfinite(target.loss[target_rows]) & np.isfinite(reference.loss[reference_rows])
    if not has_loss.any():
        # A run that is NaN from the beginning has no loss to compare, and that is the answer.
        has_loss = target.nonfinite[target_rows] ^ reference.nonfinite[reference_rows]
    if not has_loss.any() and target.nonfinite[target_rows].any():
        raise DumpError(
            f"{target.path} and {reference.path}: no loss of both is finite; there is nothing to"
            " compare"
        )
    if not has_loss.any():
        raise DumpError(
            f"{target.path} ({_format_steps(target)}) and {reference.path}"
            f" ({_format_steps(reference)}) have no step with a loss in common;"
            " give logs of the same steps"
        )
    return steps[has_loss], target_rows[has_loss], reference_rows[has_loss]


def align_rates(target: Curves, reference: Curves) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Return the common steps and the learning rates that target and reference used there.

    Some formats do not define which step a printed rate belongs to. For these, the interpretation
    with the smallest largest difference is taken; two logs of one format are read in the same way.
    """
    candidates: list[tuple[float, tuple[AnyArray, AnyArray, AnyArray]]] = []
    is_one_format = target.format == reference.format and target.rate_of == reference.rate_of
    for target_shift in _list_rate_shifts(target):
        for reference_shift in _list_rate_shifts(reference):
            if is_one_format and target_shift != reference_shift:
                continue
            steps, target_rows, reference_rows = np.intersect1d(
                target.steps + target_shift,
                reference.steps + reference_shift,
                return_indices=True,
            )
            target_rate, reference_rate = target.rate[target_rows], reference.rate[reference_rows]
            printed = np.isfinite(target_rate) & np.isfinite(reference_rate)
            rates = (steps[printed], target_rate[printed], reference_rate[printed])
            distance = np.inf
            if printed.any():
                distance = float(np.abs(rates[1] - rates[2]).max())
            candidates.append((distance, rates))
    return min(candidates, key=lambda candidate: candidate[0])[1]


def _list_rate_shifts(curves: Curves) -> tuple[int, ...]:
    """List the possible distances, in steps, from a printed rate to the step that used it."""
    return {"used": (0,), "next": (1,), "unknown": (0, 1)}[curves.rate_of]


def _check_lost_steps(target: Curves, reference: Curves) -> Iterator[Check]:
    """Yield a failed check for non-finite values or skipped updates that only one side has."""
    events = {
        "nonfinite": (target.nonfinite, reference.nonfinite, "a loss or norm that is not finite"),
        "skipped": (target.skipped, reference.skipped, "a skipped update"),
    }
    common_steps = set(target.steps.tolist()) & set(reference.steps.tolist())
    for name, (target_flags, reference_flags, event) in events.items():
        target_steps = set(target.steps[target_flags].tolist())
        reference_steps = set(reference.steps[reference_flags].tolist())
        one_sided_steps = sorted((target_steps ^ reference_steps) & common_steps)
        if not one_sided_steps:
            continue
        count = len(one_sided_steps)
        side = "target" if one_sided_steps[0] in target_steps else "reference"
        message = f"only the {side} has {event} at step {one_sided_steps[0]}"
        if count > 1:
            message += f" and {count - 1} more steps"
        yield Check(name, "differ", message, count, 0)


def _accept_within_band(check: Check, band: Band) -> Check:
    """Accept a mean or second loss that misses the standard if the target is in the band."""
    is_accepted = band.contains_target and check.name in ("mean loss", "second loss", "drift")
    if not is_accepted or check.verdict == "agree":
        return check
    message = f"{check.summary}, within what runs of the reference differ by"
    return replace(check, verdict="agree", summary=message)


def _compute_band(
    steps: AnyArray,
    difference: AnyArray,
    reference: Curves,
    baselines: Sequence[Curves],
    rounding: float,
) -> Band:
    """Compare the target's distance with that of the baselines, at the steps that all runs have.

    ``difference`` is target minus reference at ``steps``. Raises DumpError if there is no common
    step.
    """
    common_steps = steps
    for run in baselines:
        common_steps = np.intersect1d(common_steps, run.steps[np.isfinite(run.loss)])
    if not len(common_steps):
        raise DumpError(
            f"{baselines[0].path}: has no step in common with both runs;"
            " give logs of the same training"
        )
    reference_loss = reference.loss[np.searchsorted(reference.steps, common_steps)]
    spreads = np.array(
        [
            compute_block_rms(run.loss[np.searchsorted(run.steps, common_steps)] - reference_loss)
            for run in baselines
        ]
    )
    distances = compute_block_rms(difference[np.searchsorted(steps, common_steps)])
    limits = _BAND_FACTOR * spreads.max(axis=0) + rounding
    return Band(
        runs=len(baselines),
        steps=len(common_steps),
        spread=float(np.sqrt(np.mean(np.square(spreads)))),
        distance=float(np.sqrt(np.mean(np.square(distances)))),
        contains_target=bool((distances <= limits).all()),
    )


def _classify_onset(
    checks: Sequence[Check],
    steps: AnyArray,
    difference: AnyArray,
    rounding: float,
    has_lasting_divergence: bool,
) -> Onset:
    verdicts = {check.name: check.verdict for check in checks}
    if verdicts["first loss"] == "differ":
        return "step 1"
    if verdicts.get("second loss") == "differ":
        return "step 2"
    has_second_step = len(steps) > 1 and steps[1] == steps[0] + 1
    limit = _SECOND_STEP_GROWTH * max(abs(difference[0]), rounding)
    if has_second_step and abs(difference[1]) > limit:
        return "step 2"
    later_verdicts = (verdicts["mean loss"], verdicts.get("nonfinite"), verdicts["global norm"])
    if "differ" in later_verdicts or verdicts.get("drift") == "inconclusive":
        return "later"
    if has_lasting_divergence and verdicts["mean loss"] != "agree":
        return "later"
    return "never"


def _find_one_sided_spikes(
    steps: AnyArray, target_loss: AnyArray, reference_loss: AnyArray
) -> Iterator[tuple[str, int]]:
    """Yield (side, step) of each spike that has no spike of the other side within one step."""
    target_spikes, reference_spikes = find_spikes(target_loss), find_spikes(reference_loss)
    for index in _drop_near(target_spikes, reference_spikes):
        yield "target", int(steps[index])
    for index in _drop_near(reference_spikes, target_spikes):
        yield "reference", int(steps[index])


def _drop_near(indices: AnyArray, neighbors: AnyArray) -> AnyArray:
    """Return the indices that are more than 1 away from all of ``neighbors``."""
    distances = np.abs(indices[:, None] - neighbors[None, :])
    isolated: AnyArray = indices[(distances > 1).all(axis=1)]
    return isolated


def _list_notes(target: Curves, reference: Curves, steps: AnyArray) -> Iterator[str]:
    """Yield what a reader of the comparison should know about the logs."""
    for side, curves in (("target", target), ("reference", reference)):
        for note in curves.notes:
            yield f"{side}: {note}"
        if curves.restarts:
            restart_steps = ", ".join(map(str, curves.restarts))
            yield (
                f"{side}: the run was restarted at step {restart_steps};"
                " if a step is printed twice, the later line is used"
            )
        n_nonfinite, n_skipped = int(curves.nonfinite.sum()), int(curves.skipped.sum())
        if n_nonfinite or n_skipped:
            yield (
                f"{side}: {n_nonfinite} steps with a loss or norm that is not finite,"
                f" {n_skipped} without an update"
            )
    yield from _list_rate_notes(target, reference, len(steps))
    if steps[0] > 1:
        yield f"the first step that both print with a loss is {steps[0]}"
    rounding = target.loss_resolution + reference.loss_resolution
    limit = migration_standard.FIRST_ABSOLUTE
    if rounding > _COARSE_DIGITS * limit:
        yield (
            "losses are printed with few digits: they are uncertain by"
            f" {format_number(rounding)}, compared with a limit of {limit}"
        )


def _list_rate_notes(target: Curves, reference: Curves, n_steps: int) -> Iterator[str]:
    """Yield a note if the learning rate is 0 everywhere, or at the first of several steps."""
    rate_steps, target_rate, reference_rate = align_rates(target, reference)
    if not len(rate_steps):
        return
    if not np.any(target_rate) and not np.any(reference_rate):
        yield (
            "the learning rate is 0: weights never change,"
            " so only forward and backward are compared"
        )
    elif rate_steps[0] == 1 and not target_rate[0] and n_steps > 1:
        yield "step 1 used a learning rate of 0: the loss of step 2 does not test the optimizer"


def _format_steps(curves: Curves) -> str:
    return f"steps {curves.steps[0]} to {curves.steps[-1]}"
