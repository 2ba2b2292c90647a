"""The first symptom in the logs of two runs: first loss, gradients, second loss, or later."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..model.dtypes import get_unit_roundoff
from ..model.formatting import format_number
from ..model.verdict import Verdict
from ..run_settings import SettingsComparison
from ..training_logs import LogComparison
from ..training_logs.curves import Curves
from ..training_logs.migration_standard import Check

#: In the order of the precision guide's tree.
Symptom = Literal["first loss", "gradients", "second loss", "later", "none", "unknown"]

#: Largest relative difference of the global norm of step 1 that may be rounding. It is the limit of
#: the guide for the mean loss.
_MAX_NORM_DIFFERENCE = 0.01
#: Unit roundoffs of the compute dtype by which equal losses may differ; the guide's limit holds
#: too.
_LOSS_ROUNDOFFS = 64


def find_symptom(logs: LogComparison | None, settings: SettingsComparison | None) -> Symptom:
    """Return where two runs first differ, as far as their logs show it."""
    if logs is None:
        return "unknown"
    if logs.onset == "step 1" or _differs(check_first_loss(logs, settings)):
        return "first loss"
    if _differs(check_first_norm(logs)):
        return "gradients"
    if logs.onset == "step 2" or _differs(check_second_loss(logs)):
        return "second loss"
    if logs.onset == "later" or _differs(find_check(logs, "learning rate")):
        return "later"
    return "none"


def _differs(check: Check | None) -> bool:
    return check is not None and check.verdict == "differ"


def check_first_loss(logs: LogComparison, settings: SettingsComparison | None) -> Check | None:
    """Check the loss of step 1; None if the logs begin later.

    The migration standard allows 0.5 %, which in float32 hides a wrong epsilon. If the settings of
    both runs give the compute dtype, losses must agree within a multiple of its unit roundoff.
    """
    if int(logs.steps[0]) != 1:
        return None
    check = find_check(logs, "first loss")
    dtype = "" if settings is None else settings.compute_dtype
    if check is None or check.verdict != "agree" or not dtype:
        return check
    rounding = logs.target.loss_resolution + logs.reference.loss_resolution
    scale = abs(float(logs.reference_loss[0]))
    limit = _LOSS_ROUNDOFFS * get_unit_roundoff(dtype) * scale + rounding
    if check.value <= min(limit, check.limit):
        return check
    message = (
        f"{check.summary}: within the standard, but beyond the rounding of {dtype}"
        f" ({format_number(limit)})"
    )
    return Check(check.name, "differ", message, check.value, limit)


def check_second_loss(logs: LogComparison) -> Check | None:
    """Check the loss of step 2; None if it is not printed, or if step 1 updated no weights."""
    check = find_check(logs, "second loss")
    if check is None or [int(step) for step in logs.steps[:2]] != [1, 2]:
        return None
    if _starts_at_rate_zero(logs.target) or _starts_at_rate_zero(logs.reference):
        return None
    return check


def _starts_at_rate_zero(curves: Curves) -> bool:
    """Return whether step 1 of a log used a learning rate of 0."""
    if curves.rate_of != "used":
        return False
    first_rates = curves.rate[curves.steps == 1]
    return len(first_rates) > 0 and bool(first_rates[0] == 0)


def check_first_norm(logs: LogComparison) -> Check | None:
    """Check the global norm of step 1 before clipping; None if a side does not print it."""
    norms = []
    for curves in (logs.target, logs.reference):
        rows = np.flatnonzero(curves.steps == 1)
        if not len(rows):
            return None
        norms.append(float(curves.norm[rows[0]]))
    target, reference = norms
    if not np.isfinite(norms).all() or reference == 0:
        return None
    rounding = logs.target.norm_resolution + logs.reference.norm_resolution
    difference = abs(target - reference)
    limit = _MAX_NORM_DIFFERENCE * abs(reference)
    verdict: Verdict = "inconclusive"
    if difference + rounding <= limit:
        verdict = "agree"
    elif difference - rounding > limit:
        verdict = "differ"
    percent = 100 * difference / abs(reference)
    message = f"global norm of step 1: {target:.6g} against {reference:.6g} ({percent:.2g} %)"
    return Check("first norm", verdict, message, difference, limit)


def find_check(logs: LogComparison, name: str) -> Check | None:
    """Return the criterion of this name, None if it was not checked."""
    for check in logs.checks:
        if check.name == name:
            return check
    return None
