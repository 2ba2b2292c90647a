"""Two runs' curves against each other: the migration standard, and where and how they part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..model.arrays import AnyArray
from ..model.errors import DumpError
from ..model.formatting import number
from ..model.stage import Stage, Verdict
from . import migration_standard
from .curve_shape import Wander, blocks, lasting_departure, spikes, wander
from .curves import Curves
from .migration_standard import Check

#: What the guide's tree asks: step 1 is forward (or data, or weights), step 2 the optimizer, later a long run.
Begins = Literal["step 1", "step 2", "later", "never"]

_VERDICTS: tuple[Verdict, ...] = ("agree", "differ", "unclear")
_GROWS = 10.0  #: a second step this many times as far apart as the first, and beyond rounding, is suspect
_WITHIN = 2.0  #: times the distance of the reference's own runs that a target may have in any tenth of the steps


@dataclass(frozen=True)
class Band:
    """What runs of the reference differ by among themselves."""

    runs: int  #: runs beside the reference
    steps: int  #: that all have
    spread: float  #: root mean square of their distance from the reference
    distance: float  #: that of the target
    inside: bool  #: in every tenth of the steps at most twice the spread of the reference's own


@dataclass(frozen=True)
class LogComparison:
    """Everything that two logs say together; arrays have one entry per common step with a loss on both sides."""

    target: Curves
    reference: Curves
    steps: AnyArray
    target_loss: AnyArray
    reference_loss: AnyArray
    checks: tuple[Check, ...]
    begins: Begins
    departure: int | None  #: the step from which the losses part for good, None if they do not
    wander: Wander
    spikes: tuple[tuple[str, int], ...]  #: (side, step) where only one side's loss stands out
    band: Band | None = None
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """differ if a check does, unclear if one cannot be told, else agree."""
        verdicts = {check.verdict for check in self.checks}
        return "differ" if "differ" in verdicts else "unclear" if "unclear" in verdicts else "agree"

    def stage(self) -> Stage:
        """The comparison as one stage of a triage."""
        by = {
            verdict: [check.said for check in self.checks if check.verdict == verdict]
            for verdict in _VERDICTS
        }
        onset = (
            f"; they part for good from step {self.departure}" if self.departure is not None else ""
        )
        said = {
            "differ": f"{by['differ'][0]}{onset}" if by["differ"] else "",
            "unclear": f"{by['unclear'][0]}; all else agrees" if by["unclear"] else "",
            "agree": f"{len(self.steps)} steps within the migration standard, {self.checks[0].said}",
        }[self.verdict]
        return Stage(
            "logs", self.verdict, said, (*by["differ"], *by["agree"]), tuple(by["unclear"])
        )


def compare(
    target: Curves,
    reference: Curves,
    baselines: Sequence[Curves] = (),
    least_steps: int = migration_standard.STEPS,
) -> LogComparison:
    """Judge ``target`` by ``reference``; ``baselines`` are further runs of the reference.

    Raises DumpError if the two have no step in common with a loss.
    """
    target, reference = _alike(target, reference), _alike(reference, target)
    steps, mine, theirs = _common(target, reference)
    first, second = target.loss[mine], reference.loss[theirs]
    rounding = target.loss_resolution + reference.loss_resolution
    band = _band(steps, first - second, reference, baselines, rounding) if baselines else None
    onset = lasting_departure(first - second, rounding)
    checks = _judged(
        target, reference, steps, (first, second), (mine, theirs), rounding, least_steps
    )
    if band is not None:
        checks = [_by_band(check, band) for check in checks]
    return LogComparison(
        target=target,
        reference=reference,
        steps=steps,
        target_loss=first,
        reference_loss=second,
        checks=tuple(checks),
        begins=_begins(checks, steps, first - second, rounding, onset),
        departure=None if onset is None else int(steps[onset]),
        wander=wander(first - second),
        spikes=tuple(_lone_spikes(steps, first, second)),
        band=band,
        notes=tuple(_notes(target, reference, steps)),
    )


def _judged(
    target: Curves,
    reference: Curves,
    steps: AnyArray,
    losses: tuple[AnyArray, AnyArray],
    rows: tuple[AnyArray, AnyArray],
    rounding: float,
    least_steps: int,
) -> list[Check]:
    first, second = losses
    checks = [
        migration_standard.loss_at("first loss", int(steps[0]), first[0], second[0], rounding)
    ]
    if len(steps) > 1:
        checks.append(
            migration_standard.loss_at("second loss", int(steps[1]), first[1], second[1], rounding)
        )
    checks.append(migration_standard.mean_loss(first, second, rounding))
    norms = [curves.norm[row] for curves, row in zip((target, reference), rows, strict=True)]
    both = np.isfinite(norms[0]) & np.isfinite(norms[1])
    digits = target.norm_resolution + reference.norm_resolution
    checks.append(migration_standard.global_norm(norms[0][both], norms[1][both], digits))
    checks.append(migration_standard.learning_rate(*rates(target, reference)))
    checks += _accidents(target, reference)
    checks.append(migration_standard.length(len(steps), least_steps))
    return checks


def _alike(curves: Curves, other: Curves) -> Curves:
    """Losses of single steps as means over the steps that the other side's lines cover, if those are means."""
    if curves.averaged or not other.averaged:
        return curves
    ends = other.steps[(other.steps >= curves.steps[0]) & (other.steps <= curves.steps[-1])]
    begins = np.concatenate([[other.steps[0] - other.interval], other.steps[:-1]])[
        np.searchsorted(other.steps, ends)
    ]
    loss = np.full(len(curves), np.nan)
    for begin, end in zip(begins, ends, strict=True):
        covered = curves.loss[(curves.steps > begin) & (curves.steps <= end)]
        loss[np.searchsorted(curves.steps, end)] = (
            covered.mean() if len(covered) == end - max(begin, 0) else np.nan
        )
    return replace(
        curves,
        loss=loss,
        notes=(*curves.notes, "losses are compared as means over the other side's lines"),
    )


def _common(target: Curves, reference: Curves) -> tuple[AnyArray, AnyArray, AnyArray]:
    steps, mine, theirs = np.intersect1d(target.steps, reference.steps, return_indices=True)
    both = np.isfinite(target.loss[mine]) & np.isfinite(reference.loss[theirs])
    if not both.any():
        raise DumpError(
            f"{target.path} ({_range(target)}) and {reference.path} ({_range(reference)}) have no step with a loss in"
            " common; give logs of the same steps"
        )
    return steps[both], mine[both], theirs[both]


def rates(target: Curves, reference: Curves) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Rates by the step that used them. Where a format does not say, the reading under which they agree better."""
    best: tuple[float, tuple[AnyArray, AnyArray, AnyArray]] | None = None
    for mine in _shifts(target):
        for theirs in _shifts(reference):
            steps, a, b = np.intersect1d(
                target.steps + mine, reference.steps + theirs, return_indices=True
            )
            first, second = target.rate[a], reference.rate[b]
            both = np.isfinite(first) & np.isfinite(second)
            found = (steps[both], first[both], second[both])
            apart = float(np.abs(found[1] - found[2]).max()) if both.any() else np.inf
            if best is None or apart < best[0]:
                best = (apart, found)
    assert best is not None
    return best[1]


def _shifts(curves: Curves) -> tuple[int, ...]:
    return {"used": (0,), "next": (1,), "unknown": (0, 1)}[curves.rate_of]


def _accidents(target: Curves, reference: Curves) -> Iterator[Check]:
    """Steps without an update, and values that are not finite, where only one side has them."""
    for name, said in (
        ("nonfinite", "a loss or norm that is not finite"),
        ("skipped", "a skipped update"),
    ):
        mine, theirs = (
            set(curves.steps[getattr(curves, name)].tolist()) for curves in (target, reference)
        )
        common = set(target.steps.tolist()) & set(reference.steps.tolist())
        only = sorted((mine ^ theirs) & common)
        if only:
            side = "target" if only[0] in mine else "reference"
            more = f" and {len(only) - 1} more steps" if len(only) > 1 else ""
            yield Check(
                name, "differ", f"only the {side} has {said} at step {only[0]}{more}", len(only), 0
            )


def _by_band(check: Check, band: Band) -> Check:
    """Inside the band of the reference's own runs a mean that misses the standard is accepted."""
    if (
        check.name not in ("mean loss", "second loss")
        or check.verdict == "agree"
        or not band.inside
    ):
        return check
    return replace(
        check, verdict="agree", said=f"{check.said}, within what runs of the reference differ by"
    )


def _band(
    steps: AnyArray,
    difference: AnyArray,
    reference: Curves,
    baselines: Sequence[Curves],
    rounding: float,
) -> Band:
    """The target's distance beside that of further runs of the reference, at the steps that all have."""
    common = steps
    for run in baselines:
        common = np.intersect1d(common, run.steps[np.isfinite(run.loss)])
    if not len(common):
        raise DumpError(
            f"{baselines[0].path}: has no step in common with both runs; give logs of the same training"
        )
    own = reference.loss[np.searchsorted(reference.steps, common)]
    spreads = np.array(
        [blocks(run.loss[np.searchsorted(run.steps, common)] - own) for run in baselines]
    )
    mine = blocks(difference[np.searchsorted(steps, common)])
    allowed = _WITHIN * spreads.max(axis=0) + rounding
    return Band(
        runs=len(baselines),
        steps=len(common),
        spread=float(np.sqrt(np.mean(np.square(spreads)))),
        distance=float(np.sqrt(np.mean(np.square(mine)))),
        inside=bool((mine <= allowed).all()),
    )


def _begins(
    checks: Sequence[Check],
    steps: AnyArray,
    difference: AnyArray,
    rounding: float,
    onset: int | None,
) -> Begins:
    verdicts = {check.name: check.verdict for check in checks}
    if verdicts["first loss"] == "differ":
        return "step 1"
    grown = len(steps) > 1 and abs(difference[1]) > _GROWS * max(abs(difference[0]), rounding)
    if verdicts.get("second loss") == "differ" or (grown and steps[1] == steps[0] + 1):
        return "step 2"
    parted = "differ" in (verdicts["mean loss"], verdicts.get("nonfinite"), verdicts["global norm"])
    return (
        "later" if parted or (onset is not None and verdicts["mean loss"] != "agree") else "never"
    )


def _lone_spikes(steps: AnyArray, first: AnyArray, second: AnyArray) -> Iterator[tuple[str, int]]:
    """Spikes of one side that the other does not have within a step."""
    found = {"target": spikes(first), "reference": spikes(second)}
    for side, other in (("target", "reference"), ("reference", "target")):
        for index in found[side]:
            if not len(found[other]) or np.abs(found[other] - index).min() > 1:
                yield side, int(steps[index])


def _notes(target: Curves, reference: Curves, steps: AnyArray) -> Iterator[str]:
    for role, curves in (("target", target), ("reference", reference)):
        yield from (f"{role}: {note}" for note in curves.notes)
        if curves.restarts:
            anew = ", ".join(map(str, curves.restarts))
            yield f"{role}: a process began anew at step {anew}; of steps printed twice the later line counts"
        lost = int(curves.nonfinite.sum()), int(curves.skipped.sum())
        if any(lost):
            yield f"{role}: {lost[0]} steps with a loss or norm that is not finite, {lost[1]} without an update"
    at, mine, theirs = rates(target, reference)
    if len(at) and not np.any(mine) and not np.any(theirs):
        yield "the learning rate is 0: weights never change, so forward and backward alone are compared"
    elif len(at) and at[0] == 1 and not mine[0] and len(steps) > 1:
        yield "step 1 used a learning rate of 0: the loss of step 2 does not test the optimizer"
    if steps[0] > 1:
        yield f"the first step that both print with a loss is {steps[0]}"
    if target.loss_resolution + reference.loss_resolution > 0.1 * migration_standard.FIRST_ABSOLUTE:
        half = number(target.loss_resolution + reference.loss_resolution)
        yield f"losses are printed with few digits: {half} is left open, beside a limit of {migration_standard.FIRST_ABSOLUTE}"


def _range(curves: Curves) -> str:
    return f"steps {curves.steps[0]} to {curves.steps[-1]}"
