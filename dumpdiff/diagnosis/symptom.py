"""What the logs of two runs show first: the loss of step 1, its gradients, the loss of step 2, or something later."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..model.dtypes import unit_roundoff
from ..model.formatting import number
from ..run_settings import SettingsComparison as Settings
from ..training_logs import LogComparison
from ..training_logs.migration_standard import Check

#: In the order of the precision guide's tree.
Symptom = Literal["first loss", "gradients", "second loss", "later", "none", "unknown"]

#: A global norm of step 1 that is further off than the guide allows to the mean loss is no rounding.
_NORM = 0.01
#: Roundoffs of the compute dtype by which means over a batch may part; the guide's limit stands above all.
_ROUNDINGS = 64


def find_symptom(logs: LogComparison | None, settings: Settings | None) -> Symptom:
    """Where two runs part first, as far as their logs tell."""
    if logs is None:
        return "unknown"
    first, norm, second = (
        check_first_loss(logs, settings),
        check_first_norm(logs),
        check_second_loss(logs),
    )
    if logs.onset == "step 1" or (first is not None and first.verdict == "differ"):
        return "first loss"
    if norm is not None and norm.verdict == "differ":
        return "gradients"
    if logs.onset == "step 2" or (second is not None and second.verdict == "differ"):
        return "second loss"
    rates = [
        check
        for check in logs.checks
        if check.name == "learning rate" and check.verdict == "differ"
    ]
    if logs.onset == "later" or rates:
        return "later"
    return "none"


def check_first_loss(logs: LogComparison, settings: Settings | None) -> Check | None:
    """The loss of step 1, None if the logs begin later.

    The migration standard allows 0.5 %, which in float32 hides a wrong epsilon: where the settings tell the compute
    dtype of both runs, losses must agree within 64 of its roundoffs; a mean over many tokens has less noise than one.
    """
    check = _check(logs, "first loss") if int(logs.steps[0]) == 1 else None
    dtype = "" if settings is None else settings.compute_dtype
    if check is None or check.verdict != "agree" or not dtype:
        return check
    digits = logs.target.loss_resolution + logs.reference.loss_resolution
    limit = _ROUNDINGS * unit_roundoff(dtype) * abs(float(logs.reference_loss[0])) + digits
    if check.value <= min(limit, check.limit):
        return check
    said = (
        f"{check.said}: within the standard, but beyond the rounding of {dtype} ({number(limit)})"
    )
    return Check(check.name, "differ", said, check.value, limit)


def check_second_loss(logs: LogComparison) -> Check | None:
    """The loss of step 2, None if it is not printed, or if step 1 moved no weights."""
    check = _check(logs, "second loss")
    if check is None or [int(step) for step in logs.steps[:2]] != [1, 2]:
        return None
    rates = [
        curves.rate[curves.steps == 1]
        for curves in (logs.target, logs.reference)
        if curves.rate_of == "used"
    ]
    return None if any(len(rate) and rate[0] == 0 for rate in rates) else check


def check_first_norm(logs: LogComparison) -> Check | None:
    """The global norm of step 1, before clipping; None if a side does not print it."""
    rows = [np.flatnonzero(curves.steps == 1) for curves in (logs.target, logs.reference)]
    if not all(len(row) for row in rows):
        return None
    target, reference = (
        float(c.norm[row[0]]) for c, row in zip((logs.target, logs.reference), rows, strict=True)
    )
    if not (np.isfinite(target) and np.isfinite(reference)) or reference == 0:
        return None
    digits = logs.target.norm_resolution + logs.reference.norm_resolution
    apart = abs(target - reference)
    limit = _NORM * abs(reference)
    verdict: Literal["agree", "differ", "inconclusive"] = (
        "agree"
        if apart + digits <= limit
        else "differ"
        if apart - digits > limit
        else "inconclusive"
    )
    said = f"global norm of step 1: {target:.6g} against {reference:.6g} ({100 * apart / abs(reference):.2g} %)"
    return Check("first norm", verdict, said, apart, limit)


def _check(logs: LogComparison, name: str) -> Check | None:
    return next((check for check in logs.checks if check.name == name), None)
