"""What the logs of two runs show: the first symptom, and how far they agree.

Each printed number is judged with two limits. Below the smaller one, rounding explains the
difference: the numbers agree. Beyond the larger one, rounding does not explain it: they differ.
Between the two nothing is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..gradient_norms.tolerance import get_noise_limits
from ..model.arrays import AnyArray
from ..model.dtypes import get_unit_roundoff
from ..model.formatting import format_number
from ..model.verdict import Verdict
from ..run_settings import SettingsComparison
from ..training_logs import LogComparison
from ..training_logs.curves import Curves
from ..training_logs.migration_standard import FIRST_ABSOLUTE, FIRST_RELATIVE, MIN_STEPS, Check

#: In the order of the precision guide's tree.
Symptom = Literal["first loss", "gradients", "second loss", "later", "none", "unknown"]

_FLOAT32, _BFLOAT16 = "float32", "bfloat16"
#: A loss is a mean over tokens. In float32, two correct frameworks differ by at most this many unit
#: roundoffs (3.8e-6 relative; recorded pairs: up to 3e-6).
_FLOAT32_ROUNDOFFS = 64
#: In half precision each token's loss is off by about a roundoff, at random, and the mean of a
#: batch of at least 256 tokens by a sixteenth of it.
_HALF_ROUNDOFFS = 1 / 16
#: Devices may multiply float32 in 11 bits (TF32, HF32): beyond one unit of these the loss differs.
_FLOAT32_DIFFERS = 2.0**-11
#: A departure is a jump if the first differences after it are at least this share of all later
#: ones; a drift grows. The first differences are those of so many steps.
_JUMP_SHARE, _JUMP_STEPS = 0.5, 3


@dataclass(frozen=True)
class Limits:
    """Relative differences: up to ``agree`` is rounding, beyond ``differ`` is none."""

    agree: float
    differ: float


def derive_loss_limits(dtype: str, step: int = 1) -> Limits:
    """Return the limits of the loss of a step, from the compute dtype ('': unknown).

    The rounding of every update adds to that of the losses after it, so that the limits grow with
    the number of steps. If the dtype is unknown, what agrees must do so in float32, and what
    differs must do so in bfloat16.
    """
    if dtype == _FLOAT32:
        agree, differ = _FLOAT32_ROUNDOFFS * get_unit_roundoff(_FLOAT32), _FLOAT32_DIFFERS
    elif dtype:
        agree, differ = _HALF_ROUNDOFFS * get_unit_roundoff(dtype), FIRST_RELATIVE
    else:
        agree = derive_loss_limits(_FLOAT32).agree
        differ = derive_loss_limits(_BFLOAT16).differ
    return Limits(step * agree, max(differ, step * agree))


def find_symptom(logs: LogComparison | None, settings: SettingsComparison | None) -> Symptom:
    """Return where two runs first differ, as far as their logs show it."""
    if logs is None:
        return "unknown"
    if logs.onset == "step 1" or _differs(check_first_loss(logs, settings)):
        return "first loss"
    if _differs(check_first_norm(logs, settings)):
        return "gradients"
    if _differs(check_second_loss(logs, settings)):
        return "second loss"
    if logs.onset == "later" or _differs(find_check(logs, "learning rate")):
        return "later"
    return "none"


def _differs(check: Check | None) -> bool:
    return check is not None and check.verdict == "differ"


def get_dtype(settings: SettingsComparison | None) -> str:
    """Return the compute dtype that the settings give, '' if they do not."""
    return "" if settings is None else settings.compute_dtype


def check_first_loss(logs: LogComparison, settings: SettingsComparison | None) -> Check | None:
    """Check the loss of step 1; None if the logs begin later."""
    if int(logs.steps[0]) != 1:
        return None
    return _check_loss(logs, 0, settings)


def check_second_loss(logs: LogComparison, settings: SettingsComparison | None) -> Check | None:
    """Check the loss of step 2; None if it is not printed, or if step 1 updated no weights."""
    if [int(step) for step in logs.steps[:2]] != [1, 2]:
        return None
    if _starts_at_rate_zero(logs.target) or _starts_at_rate_zero(logs.reference):
        return None
    return _check_loss(logs, 1, settings)


def _check_loss(logs: LogComparison, index: int, settings: SettingsComparison | None) -> Check:
    """Check one loss. The spread of the reference's own runs, if measured, is rounding, too."""
    dtype = get_dtype(settings)
    step = int(logs.steps[index])
    target, reference = float(logs.target_loss[index]), float(logs.reference_loss[index])
    limits = derive_loss_limits(dtype, step)
    rounding = logs.target.loss_resolution + logs.reference.loss_resolution
    if logs.band is not None:
        rounding += logs.band.spread
    difference, scale = abs(target - reference), abs(reference)
    largest_rounding = limits.differ * scale
    if dtype != _FLOAT32:
        largest_rounding = max(largest_rounding, FIRST_ABSOLUTE)
    verdict: Verdict = "inconclusive"
    if difference <= limits.agree * scale + rounding:
        verdict = "agree"
    elif difference > largest_rounding + rounding:
        verdict = "differ"
    percent = f"{100 * difference / scale:.2g} %" if scale else "-"
    message = (
        f"loss of step {step}: {target:.6g} against {reference:.6g},"
        f" off by {format_number(difference)} ({percent})"
    )
    if verdict == "inconclusive":
        message += (
            f": {dtype or 'float32'} rounds less ({format_number(limits.agree * scale)}), but it is"
            f" not beyond what rounding may cause ({format_number(largest_rounding)})"
        )
    return Check("first loss" if step == 1 else "second loss", verdict, message, difference)


def _starts_at_rate_zero(curves: Curves) -> bool:
    """Return whether step 1 of a log used a learning rate of 0."""
    if curves.rate_of != "used":
        return False
    first_rates = curves.rate[curves.steps == 1]
    return len(first_rates) > 0 and bool(first_rates[0] == 0)


def check_first_norm(logs: LogComparison, settings: SettingsComparison | None) -> Check | None:
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
    agree, differ = get_noise_limits(get_dtype(settings))
    rounding = logs.target.norm_resolution + logs.reference.norm_resolution
    difference, scale = abs(target - reference), abs(reference)
    verdict: Verdict = "inconclusive"
    if difference <= agree * scale + rounding:
        verdict = "agree"
    elif difference > differ * scale + rounding:
        verdict = "differ"
    percent = 100 * difference / scale
    message = f"global norm of step 1: {target:.6g} against {reference:.6g} ({percent:.2g} %)"
    return Check("first norm", verdict, message, difference)


def agrees_to_rounding(logs: LogComparison, settings: SettingsComparison | None) -> bool:
    """Return whether every printed number of both logs is equal to rounding, over a whole run.

    These are loss, global norm and learning rate of at least as many steps as the migration
    standard asks for, from step 1 on.
    """
    if len(logs.steps) < MIN_STEPS or int(logs.steps[0]) != 1 or logs.verdict != "agree":
        return False
    if find_check(logs, "learning rate") is None:
        return False
    loss_limit = derive_loss_limits(get_dtype(settings)).agree
    rounding = logs.target.loss_resolution + logs.reference.loss_resolution
    is_equal = _are_equal(logs.target_loss, logs.reference_loss, logs.steps * loss_limit, rounding)
    norm_limit, _ = get_noise_limits(get_dtype(settings))
    rows = [np.isin(side.steps, logs.steps) for side in (logs.target, logs.reference)]
    target_norm, reference_norm = logs.target.norm[rows[0]], logs.reference.norm[rows[1]]
    rounding = logs.target.norm_resolution + logs.reference.norm_resolution
    return is_equal and _are_equal(target_norm, reference_norm, logs.steps * norm_limit, rounding)


def _are_equal(target: AnyArray, reference: AnyArray, limits: AnyArray, rounding: float) -> bool:
    """Return whether all numbers are printed and within their relative limits."""
    difference = np.abs(target - reference)
    return bool((difference <= limits * np.abs(reference) + rounding).all())


def departs_at_once(logs: LogComparison) -> bool:
    """Return whether the losses differ at once by what they differ by later."""
    if logs.divergence_step is None:
        return False
    sizes = np.abs(logs.target_loss - logs.reference_loss) / np.abs(logs.reference_loss)
    later_sizes = sizes[logs.steps >= logs.divergence_step]
    first_size = float(later_sizes[:_JUMP_STEPS].mean())
    return first_size >= _JUMP_SHARE * float(later_sizes.mean())


def find_check(logs: LogComparison, name: str) -> Check | None:
    """Return the criterion of this name, None if it was not checked."""
    for check in logs.checks:
        if check.name == name:
            return check
    return None
