"""Hyperparameters that the data do not determine: with another value, a fit is as good."""

from __future__ import annotations

from .fit import Attempt, Fit, UpdateData, fit_rule
from .gradient_scaling import GLOBAL_NORM
from .rivals import are_as_good
from .rule import EPSILON, HYPERPARAMETERS
from .search import KnownSettings


def find_undetermined(fit: Fit, data: UpdateData, settings: KnownSettings) -> tuple[str, ...]:
    """Return hyperparameters that can be changed without a larger residual.

    Examples: beta2 in a single step, epsilon with large gradients.
    """
    names = (*fit.rule.hyperparameters, *fit.scaling.list_hyperparameters(data.n_steps))
    return tuple(name for name in names if _is_undetermined(name, fit, data, settings))


def _is_undetermined(name: str, fit: Fit, data: UpdateData, settings: KnownSettings) -> bool:
    if name not in HYPERPARAMETERS:
        return False
    if _is_limit_hidden(fit, data, settings) and name in ("clip", EPSILON.name):
        return True  # epsilon is known as a share of the limit only
    are_as_good = [
        _is_as_good_with(fit, name, value, data, settings)
        for value in _list_other_values(name, fit)
    ]
    # A rate near one that may be nearer to one as well is known in one direction only.
    return any(are_as_good) if _is_near_one(name, fit) else all(are_as_good)


def _is_limit_hidden(fit: Fit, data: UpdateData, settings: KnownSettings) -> bool:
    """Return whether a norm limit is below the norms of all steps, and so only a factor.

    The factor is part of SGD's learning rate, unless that is known; other rules do not depend on
    it.
    """
    if fit.rule.family == "SGD" and settings.rates is not None:
        return False
    if fit.scaling.kind != GLOBAL_NORM:
        return False
    return bool(fit.values["clip"] < data.norms.min())


def _list_other_values(name: str, fit: Fit) -> tuple[float, ...]:
    """Return the values with which the fit is repeated: half and double, or an alternative."""
    hyperparameter = HYPERPARAMETERS[name]
    value = fit.values[name]
    if _is_near_one(name, fit):
        return 0.5 * value, 1 - 0.5 * (1 - value)
    return (0.5 * value, 2.0 * value) if value else (hyperparameter.alternatives[0],)


def _is_near_one(name: str, fit: Fit) -> bool:
    """Return whether a number is a share of which the distance from one matters, as of betas."""
    return HYPERPARAMETERS[name].search_scale == "share" and fit.values[name] >= 0.5


def _is_as_good_with(
    fit: Fit, name: str, value: float, data: UpdateData, settings: KnownSettings
) -> bool:
    """Return whether the fit with another value of one hyperparameter has no larger residual."""
    by_step = len(set(fit.rates)) > 1
    values, decay = {**fit.values, name: value}, fit.values["decay"]
    changed = fit_rule(Attempt(fit.rule, fit.scaling, data, values, settings.rates, decay, by_step))
    return changed.explains and are_as_good(changed, fit)
