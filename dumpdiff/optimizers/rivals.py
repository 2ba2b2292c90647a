"""Rules that explain the same data: which of them are rivals, and how much worse the others are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .fit import Fit, UpdateData
from .gradient_scaling import GradientScaling
from .refits import refit
from .rule import HYPERPARAMETERS, Rule
from .search import KnownSettings, is_applicable

#: Of two rules that explain the data, one with a residual this many times larger is no rival.
_RIVAL_RATIO = 3.0
#: Smallest residual that is used for that comparison: below it, both residuals may be only the
#: framework's rounding of its constants.
_RESIDUAL_FLOOR = 2e-6

_MOST_OTHERS = 8  #: other rules that are fitted to the full group, to find the runner-up
_EXTRA_CHOICES = 1  #: choices that a rival may need in addition to the cheapest fit


def select_equivalent_fits(fits: Sequence[Fit]) -> list[Fit]:
    """Return the fits that explain the data almost as well as the best, by plausibility."""
    explaining_fits = [fit for fit in fits if fit.explains]
    smallest_residual = min(map(_get_residual, explaining_fits))
    limit = _RIVAL_RATIO * max(smallest_residual, _RESIDUAL_FLOOR)
    equivalent_fits = [fit for fit in explaining_fits if fit.residual <= limit]
    return sorted(equivalent_fits, key=_rank_plausibility)


def select_minimal_fits(fits: Sequence[Fit], data: UpdateData) -> list[Fit]:
    """Return one fit per essence, without those that reduce to a simpler one."""
    fits_by_essence: dict[Rule, Fit] = {}
    for fit in fits:
        fits_by_essence.setdefault(fit.rule.essence, fit)
    fewest_choices = min(map(count_choices, fits_by_essence.values()))
    n_steps = data.n_steps
    if data.histories[0].first_moment is not None:
        n_steps += 1
    minimal_fits = []
    for essence, fit in fits_by_essence.items():
        has_simpler = any(
            simpler in fits_by_essence for simpler in _list_simpler_rules(essence, n_steps)
        )
        is_cheap = count_choices(fit) <= fewest_choices + _EXTRA_CHOICES
        if is_cheap and not has_simpler:
            minimal_fits.append(fit)
    return minimal_fits


def _list_simpler_rules(rule: Rule, n_steps: int) -> list[Rule]:
    """Return the essences of simpler rules that ``n_steps`` can tell from the rule."""
    simpler_rules = iterate_reductions(rule)
    if rule.steps_to_identify > n_steps:
        simpler_rules = [
            simpler for simpler in simpler_rules if simpler.steps_to_identify > n_steps
        ]
    return [simpler.essence for simpler in simpler_rules]


def iterate_reductions(rule: Rule) -> Iterable[Rule]:
    """Yield the rules that a rule becomes when its hyperparameters take neutral values."""
    for simpler in rule.reductions:
        yield simpler
        yield from iterate_reductions(simpler)


def _rank_plausibility(fit: Fit) -> tuple[int, float]:
    return count_choices(fit) + fit.rule.complexity, fit.residual


def count_choices(fit: Fit) -> int:
    """Return how many values of a fit were chosen: learning rates, and all that is no default."""
    n_choices = len(set(fit.rates))
    for name, value in fit.values.items():
        if name in HYPERPARAMETERS and value != HYPERPARAMETERS[name].default:
            n_choices += 1
    if fit.scaling != GradientScaling():
        n_choices += 1
    return n_choices


def find_runner_up(
    other_fits: Sequence[Fit], data: UpdateData, settings: KnownSettings
) -> Fit | None:
    """Return the best of the other rules on the group's parameters (on samples of large ones)."""
    applicable_fits = [fit for fit in other_fits if is_applicable(fit.rule, data)]
    search_sample = data.take_search_sample()
    refits = [
        refit(fit, search_sample if fit.rule.elementwise else data, settings)
        for fit in applicable_fits[:_MOST_OTHERS]
    ]
    return min(refits, key=_get_residual, default=None)


def are_as_good(fit: Fit, other: Fit) -> bool:
    """Return whether a fit leaves no more than rounding allows, compared with another."""
    return fit.residual <= _RIVAL_RATIO * max(other.residual, _RESIDUAL_FLOOR)


def _get_residual(fit: Fit) -> float:
    return fit.residual
