"""Runs that agree if one is read some steps later: shifted losses, shifted learning rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..model.arrays import AnyArray
from . import migration_standard
from .curves import Curves
from .migration_standard import Check

_MAX_SHIFT = 20  #: steps that are tried in both directions
_MIN_STEPS = 8  #: common steps that prove a shift
#: With the shift, the typical difference is at most this share of what it is without, and of what
#: the loss jumps by from step to step: a smooth curve fits itself at many places.
_MAX_SHARE = 0.1
_MAX_JITTER_SHARE = 0.5


def find_step_shift(target: Curves, reference: Curves) -> int | None:
    """Return the k for which the target's step n has the loss of the reference's step n + k.

    None if no k fits, or if the losses fit as they are.
    """
    unshifted = _measure_distance(target, reference, 0)
    jitter = _measure_jitter(reference)
    if unshifted is None or jitter == 0:
        return None
    limit = min(_MAX_SHARE * unshifted, _MAX_JITTER_SHARE * jitter)
    distances = {}
    for shift in range(-_MAX_SHIFT, _MAX_SHIFT + 1):
        distance = _measure_distance(target, reference, shift)
        if distance is not None and distance <= limit:
            distances[shift] = distance
    if not distances or unshifted <= limit:
        return None
    return min(distances, key=lambda shift: (distances[shift], abs(shift)))


def _measure_distance(target: Curves, reference: Curves, shift: int) -> float | None:
    """Return the median difference of the losses, None with too few common steps."""
    _, target_rows, reference_rows = np.intersect1d(
        target.steps + shift, reference.steps, return_indices=True
    )
    difference = target.loss[target_rows] - reference.loss[reference_rows]
    difference = difference[np.isfinite(difference)]
    least_steps = max(_MIN_STEPS, min(len(target), len(reference)) // 2)
    if len(difference) < least_steps:
        return None
    return float(np.median(np.abs(difference)))


def _measure_jitter(curves: Curves) -> float:
    """Return the typical second difference of the losses, 0 if there are too few."""
    second_differences = np.diff(curves.loss[np.isfinite(curves.loss)], n=2)
    return float(np.median(np.abs(second_differences))) if len(second_differences) else 0.0


def check_step_shift(target: Curves, reference: Curves) -> Iterator[Check]:
    """Yield a failed check if the losses of one run are those of the other some steps later."""
    shift = find_step_shift(target, reference)
    if shift is None:
        return
    later, earlier = ("reference", "target") if shift > 0 else ("target", "reference")
    unit = "step" if abs(shift) == 1 else "steps"
    message = (
        f"the losses are shifted by {abs(shift)} {unit}: the {earlier} has at step n what the"
        f" {later} has at step n + {abs(shift)}"
    )
    yield Check("step shift", "differ", message, abs(shift), 0)


def check_learning_rate(
    rates: tuple[AnyArray, AnyArray, AnyArray], *, is_unclear: bool = False
) -> Check:
    """Check the rates of common steps; a schedule that is one step late is reported as that.

    ``rates`` are the steps and the rates of both sides. ``is_unclear``: the logs do not say whether
    a printed rate is that of the step or of the next, so that one step late is no proof.
    """
    steps, target, reference = rates
    check = migration_standard.check_learning_rate(steps, target, reference)
    if check.verdict != "differ" or len(steps) < 3:
        return check
    for earlier, later, shifted_rates in (
        ("target", "reference", (target[:-1], reference[1:])),
        ("reference", "target", (reference[:-1], target[1:])),
    ):
        shifted = migration_standard.check_learning_rate(steps[1:], *shifted_rates)
        if shifted.verdict != "agree":
            continue
        message = (
            f"learning rates are shifted by one step: the {earlier} has at step n what the {later}"
            f" has at step n + 1 ({check.summary})"
        )
        if is_unclear:
            message += "; such logs do not say whether a rate is that of the step or of the next"
            return replace(check, verdict="inconclusive", summary=message)
        return replace(check, summary=message)
    return check
