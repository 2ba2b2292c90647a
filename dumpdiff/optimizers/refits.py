"""A fit carried over to other data: its rule and values, with or without new learning rates."""

from __future__ import annotations

from dataclasses import replace

from .fit import Attempt, Fit, UpdateData, fit_rule
from .search import ROUNDED_TOLERANCE_SHARE, KnownSettings

_RATE_DIGITS = 4  #: digits up to which learning rates are rounded


def apply_fit(fit: Fit, data: UpdateData) -> Fit:
    """Return the same rule with the same values on other data; nothing is solved for."""
    attempt = Attempt(fit.rule, fit.scaling, data, fit.values, fit.rates, fit.values["decay"])
    return fit_rule(attempt)


def refit(fit: Fit, data: UpdateData, settings: KnownSettings) -> Fit:
    """Solve for learning rate and linear decay on these data; keep the old ones if better."""
    by_step = len(set(fit.rates)) > 1
    decay = settings.values.get("decay")
    attempt = Attempt(fit.rule, fit.scaling, data, fit.values, settings.rates, decay, by_step)
    best_fit = min((apply_fit(fit, data), fit_rule(attempt)), key=_get_relative_to_tolerance)
    if any(history.is_narrow for history in data.histories):
        return _round_rates(best_fit, data)
    return best_fit


def _get_relative_to_tolerance(fit: Fit) -> float:
    return fit.relative_to_tolerance


def _round_rates(fit: Fit, data: UpdateData) -> Fit:
    """Use the learning rates with the fewest digits that explain the data as well.

    Rounding to a narrow type allows a range of learning rates.
    """
    for digits in range(_RATE_DIGITS):
        rates = tuple(float(f"{rate:.{digits}e}") for rate in fit.rates)
        rounded = apply_fit(replace(fit, rates=rates), data)
        if rounded.relative_to_tolerance <= max(fit.relative_to_tolerance, ROUNDED_TOLERANCE_SHARE):
            return rounded
    return fit
