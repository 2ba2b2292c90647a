"""The migration standard: how much two runs of one training may differ.

The limits are those of the MindSpore Transformers precision guide: first loss within 0.005 or 0.5
%, mean loss within 0.01 or 1 %, mean relative error of the global norm at most 10 %, over at least
1000 steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..model.arrays import AnyArray
from ..model.formatting import format_number
from ..model.verdict import Verdict

FIRST_ABSOLUTE, FIRST_RELATIVE = 0.005, 0.005  #: limits of the first and the second loss
MEAN_ABSOLUTE, MEAN_RELATIVE = 0.01, 0.01  #: limits of the mean loss
NORM_RELATIVE = 0.10  #: limit of the mean relative error of the global norm
MIN_STEPS = 1000

#: Rates agree if they differ by at most this share of the peak. It allows for printed digits and
#: float32, but not for a different warmup or decay.
RATE_SHARE = 1e-4
_TINY = 1e-300  #: lower bound of denominators


@dataclass(frozen=True)
class Check:
    """The result of one criterion."""

    name: str  #: first loss, second loss, mean loss, global norm, learning rate, ...
    verdict: Verdict
    summary: str  #: the result in one line
    value: float = math.nan  #: measured value, NaN if nothing was measured
    limit: float = math.nan


def check_loss(name: str, step: int, target: float, reference: float, rounding: float) -> Check:
    """Check the loss of one step: it agrees if it meets the absolute or the relative limit.

    A loss that is not finite on one side differs. The result is inconclusive if the printed digits
    are too coarse to decide.
    """
    if not math.isfinite(target - reference):
        message = f"{name} (step {step}) {target:.6g} against {reference:.6g}"
        return Check(name, "differ", message)
    absolute, scale = abs(target - reference), abs(reference)
    limit = max(FIRST_ABSOLUTE, FIRST_RELATIVE * scale)
    message = (
        f"{name} (step {step}) {target:.6g} against {reference:.6g},"
        f" off by {format_number(absolute)} ({_format_percent(absolute, scale)})"
    )
    verdict: Verdict
    if absolute + rounding < limit:
        verdict = "agree"
    elif absolute - rounding >= limit:
        verdict = "differ"
    else:
        verdict = "inconclusive"
        message += (
            f"; the printed digits leave {format_number(rounding)} open,"
            f" too much for a limit of {format_number(limit)}"
        )
    return Check(name, verdict, message, absolute, limit)


def check_mean_loss(target: AnyArray, reference: AnyArray, rounding: float) -> Check:
    """Check the mean of |difference|, or of |difference| / |reference|: one limit is enough."""
    difference = np.abs(target - reference)
    if not np.isfinite(difference).all():
        message = f"mean loss of {len(difference)} steps: one side is not finite"
        return Check("mean loss", "differ", message, limit=MEAN_ABSOLUTE)
    absolute = float(difference.mean())
    relative = float(np.mean(difference / np.maximum(np.abs(reference), _TINY)))
    meets_relative = relative < MEAN_RELATIVE
    verdict: Verdict
    if abs(absolute - MEAN_ABSOLUTE) < rounding and not meets_relative:
        verdict = "inconclusive"
    elif absolute < MEAN_ABSOLUTE or meets_relative:
        verdict = "agree"
    else:
        verdict = "differ"
    message = (
        f"mean loss off by {format_number(absolute)} ({100 * relative:.2g} %)"
        f" over {len(difference)} steps"
    )
    return Check("mean loss", verdict, message, absolute, MEAN_ABSOLUTE)


def check_global_norm(target: AnyArray, reference: AnyArray, rounding: float) -> Check:
    """Check the mean relative error of the gradient norm.

    It differs only if the error exceeds the limit after the rounding of the printed digits is
    subtracted.
    """
    name = "global norm"
    if not len(target):
        message = f"{name}: not printed by both runs (is clipping on?)"
        return Check(name, "inconclusive", message, limit=NORM_RELATIVE)
    scale = np.maximum(np.abs(reference), _TINY)
    difference = np.abs(target - reference)
    error = float(np.mean(difference / scale))
    least_error = float(np.mean(np.maximum(difference - rounding, 0) / scale))
    message = f"{name} off by {100 * error:.2g} % on average over {len(target)} steps"
    verdict: Verdict
    if error <= NORM_RELATIVE:
        verdict = "agree"
    elif least_error > NORM_RELATIVE:
        verdict = "differ"
    else:
        verdict = "inconclusive"
        message += "; its printed digits are too few to decide"
    return Check(name, verdict, message, error, NORM_RELATIVE)


def check_learning_rate(steps: AnyArray, target: AnyArray, reference: AnyArray) -> Check:
    """Check that the rate of each step is within RATE_SHARE of the peak."""
    name = "learning rate"
    if not len(steps):
        message = f"{name}: not printed for the same steps by both runs"
        return Check(name, "inconclusive", message)
    peak = float(max(np.max(np.abs(target)), np.max(np.abs(reference))))
    difference = np.abs(target - reference)
    worst_share = float(difference.max() / peak) if peak else 0.0
    differing = np.flatnonzero(difference > RATE_SHARE * peak)
    if len(differing):
        first = differing[0]
        message = (
            f"learning rates diverge at step {steps[first]}:"
            f" {target[first]:.6g} against {reference[first]:.6g}"
        )
        return Check(name, "differ", message, worst_share, RATE_SHARE)
    message = f"learning rates equal over {len(steps)} steps" if peak else f"{name} 0 at every step"
    return Check(name, "agree", message, worst_share, RATE_SHARE)


def check_length(n_steps: int, least_steps: int) -> Check:
    """Check that enough steps were compared."""
    if n_steps >= least_steps:
        return Check("steps", "agree", f"{n_steps} steps compared", n_steps, least_steps)
    message = f"{n_steps} steps compared, at least {least_steps} are required"
    return Check("steps", "inconclusive", message, n_steps, least_steps)


def _format_percent(absolute: float, scale: float) -> str:
    return f"{100 * absolute / scale:.2g} %" if scale else "-"
