"""The migration standard: how far two runs of one training may part, each criterion a :class:`Check`.

Limits are those of the MindSpore Transformers precision guide: first loss within 0.005 or 0.5 %, mean loss within
0.01 or 1 %, mean relative error of the global norm at most 10 %, over at least 1000 steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..model.arrays import AnyArray
from ..model.formatting import number
from ..model.stage import Verdict

FIRST_ABSOLUTE, FIRST_RELATIVE = 0.005, 0.005
MEAN_ABSOLUTE, MEAN_RELATIVE = 0.01, 0.01
NORM_RELATIVE = 0.10
STEPS = 1000

#: Rates agree within this share of the peak: printed digits, float32, but not another warmup or another decay.
RATE_SHARE = 1e-4


@dataclass(frozen=True)
class Check:
    """One criterion."""

    name: str  #: first loss, second loss, mean loss, global norm, learning rate, ...
    verdict: Verdict
    said: str  #: one line for a person
    value: float = math.nan  #: what was measured, NaN if nothing was
    limit: float = math.nan


def loss_at(name: str, step: int, target: float, reference: float, rounding: float) -> Check:
    """One step's loss: absolute or relative, either is enough; unclear where the printed digits cannot decide."""
    absolute, scale = abs(target - reference), abs(reference)
    limit = max(FIRST_ABSOLUTE, FIRST_RELATIVE * scale)
    verdict: Verdict = (
        "agree"
        if absolute + rounding < limit
        else "differ"
        if absolute - rounding >= limit
        else "unclear"
    )
    said = f"{name} (step {step}) {target:.6g} against {reference:.6g}"
    said += f", off by {number(absolute)} ({_percent(absolute, scale)})"
    if verdict == "unclear":
        said += f"; the printed digits leave {number(rounding)} open, too much for a limit of {number(limit)}"
    return Check(name, verdict, said, absolute, limit)


def mean_loss(target: AnyArray, reference: AnyArray, rounding: float) -> Check:
    """The mean of |Δ| over all steps, or of |Δ|/|reference|; either is enough."""
    difference = np.abs(target - reference)
    absolute = float(difference.mean())
    relative = float(np.mean(difference / np.maximum(np.abs(reference), 1e-300)))
    holds = absolute < MEAN_ABSOLUTE or relative < MEAN_RELATIVE
    near = abs(absolute - MEAN_ABSOLUTE) < rounding and not relative < MEAN_RELATIVE
    said = (
        f"mean loss off by {number(absolute)} ({100 * relative:.2g} %) over {len(difference)} steps"
    )
    return Check(
        "mean loss",
        "unclear" if near else "agree" if holds else "differ",
        said,
        absolute,
        MEAN_ABSOLUTE,
    )


def global_norm(target: AnyArray, reference: AnyArray, rounding: float) -> Check:
    """The mean relative error of the gradient norm; what its printed digits leave open is taken off first."""
    if not len(target):
        return Check(
            "global norm",
            "unclear",
            "global norm: not printed by both runs (is clipping on?)",
            limit=NORM_RELATIVE,
        )
    scale = np.maximum(np.abs(reference), 1e-300)
    value = float(np.mean(np.abs(target - reference) / scale))
    least = float(np.mean(np.maximum(np.abs(target - reference) - rounding, 0) / scale))
    verdict: Verdict = (
        "agree" if value <= NORM_RELATIVE else "differ" if least > NORM_RELATIVE else "unclear"
    )
    said = f"global norm off by {100 * value:.2g} % on average over {len(target)} steps"
    if verdict == "unclear":
        said += "; its printed digits are too few to decide"
    return Check("global norm", verdict, said, value, NORM_RELATIVE)


def learning_rate(steps: AnyArray, target: AnyArray, reference: AnyArray) -> Check:
    """The rate that each step used, within 1e-4 of the peak."""
    if not len(steps):
        return Check(
            "learning rate", "unclear", "learning rate: not printed for the same steps by both runs"
        )
    peak = float(max(np.max(np.abs(target)), np.max(np.abs(reference))))
    apart = np.abs(target - reference)
    worst = float(apart.max() / peak) if peak else 0.0
    off = np.flatnonzero(apart > RATE_SHARE * peak)
    if not len(off):
        said = (
            "learning rate 0 at every step"
            if not peak
            else f"learning rates equal over {len(steps)} steps"
        )
        return Check("learning rate", "agree", said, worst, RATE_SHARE)
    at = off[0]
    said = f"learning rates part at step {steps[at]}: {target[at]:.6g} against {reference[at]:.6g}"
    return Check("learning rate", "differ", said, worst, RATE_SHARE)


def length(steps: int, least: int) -> Check:
    """Enough steps to judge by."""
    if steps >= least:
        return Check("steps", "agree", f"{steps} steps compared", steps, least)
    return Check(
        "steps", "unclear", f"{steps} steps compared, at least {least} are asked for", steps, least
    )


def _percent(absolute: float, scale: float) -> str:
    return f"{100 * absolute / scale:.2g} %" if scale else "-"
