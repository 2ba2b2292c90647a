"""The search for unknown hyperparameters: common values, then least squares, then rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from ..model.arrays import Floats
from . import adafactor, adam, adaptive, lamb, muon, sgd, shampoo
from .fit import Attempt, Fit, UpdateData, compute_residuals, fit_rule
from .gradient_scaling import (
    GLOBAL_NORM,
    ONE_FACTOR,
    STEP_FACTORS,
    TENSOR_NORM,
    UNSCALED,
    GradientScaling,
)
from .history import SCREENING_SAMPLE_SIZE
from .rule import HYPERPARAMETERS, Hyperparameter, HyperparameterValues, Rule

RULES: tuple[Rule, ...] = (
    *sgd.list_variants(),
    *adam.list_variants(),
    *adaptive.list_variants(),
    *lamb.list_variants(),
    *adafactor.list_variants(),
    *muon.list_variants(),
    *shampoo.list_variants(),
)

#: Scalings of the gradients, each with or without one learning rate per step, from likely to
#: unlikely. A level is tried if no rule explains the data with the levels before it.
LEVELS: tuple[tuple[tuple[GradientScaling, bool], ...], ...] = (
    ((GradientScaling(UNSCALED), False),),
    (
        (GradientScaling(GLOBAL_NORM), False),
        (GradientScaling(ONE_FACTOR), False),
        (GradientScaling(UNSCALED), True),
    ),
    ((GradientScaling(TENSOR_NORM), False), (GradientScaling(STEP_FACTORS), False)),
)

#: Share of what noise allows, below which the search stops.
_GOOD_TOLERANCE_SHARE = 0.3
#: Multiple of the best rule's residual; rules above it are not tried with scaled gradients.
_HOPEFUL_RATIO = 3.0
#: Residual of a rule below which its variants are tried although it does not explain the data.
_CLOSE_RESIDUAL = 0.1
#: Share of what noise allows on SCREENING_SAMPLE_SIZE elements, beyond which a rule cannot explain
#: eight times as many: even if all that it leaves there were in these, it would be the root of 8.
_HOPELESS_TOLERANCE_SHARE = 10.0
#: Share of what noise allows, up to which a rounded hyperparameter is accepted.
ROUNDED_TOLERANCE_SHARE = 0.5
#: A rounded hyperparameter is also accepted if the residual grows by at most this factor.
_ROUNDED_GROWTH = 1.05
#: Residual with default values up to which a search for other values is worth its time. With
#: scaled gradients it is smaller, because a scaling corrects less.
_SEARCHED_RESIDUAL, _SEARCHED_RESIDUAL_SCALED = 0.5, 0.25
_SCAN_ROUNDS = 2  #: how often all hyperparameters are scanned
_LIMIT_CANDIDATES = 5  #: norm limits tried between the smallest and the largest norm
_MOST_DIGITS = 5  #: decimal digits of a rounded hyperparameter
_EXPONENT_LIMIT = 100  #: avoids an overflow in exp


@dataclass(frozen=True)
class KnownSettings:
    """Values that are given by the user and not solved for."""

    values: HyperparameterValues = field(default_factory=dict)  #: beta1, epsilon, decay, clip, ...
    rates: tuple[float, ...] | None = None  #: learning rate of each step


def find_candidates(
    data: UpdateData, settings: KnownSettings, rules: Sequence[Rule] = RULES
) -> list[Fit]:
    """Return the best fit of every rule, best first.

    Levels are tried until a rule explains the data. Rounding to a narrow type allows so much that
    wrong values explain it, too, so there the scaled gradients are always tried. A variant that
    differs from another rule in details only is tried if that rule explains the data, or is close
    and no rule explains them.
    """
    is_narrow = any(history.is_narrow for history in data.histories)
    search_sample = data.take_search_sample()
    candidate_rules = [rule for rule in rules if is_applicable(rule, data)]
    candidates: list[Fit] = []
    for level in LEVELS:
        scalings = [
            (scaling, by_step)
            for scaling, by_step in level
            if _is_identifiable(scaling, by_step, search_sample, settings)
        ]
        if candidates and settings.rates is None:
            candidate_rules = _select_hopeful_rules(candidate_rules, candidates)
        fits = _fit_level(candidate_rules, scalings, data, search_sample, settings)
        candidates += fits
        if any(fit.explains for fit in fits) and not (is_narrow and level is LEVELS[0]):
            break
    return sorted(candidates, key=rank_fit)


def _select_hopeful_rules(rules: Sequence[Rule], fits: Sequence[Fit]) -> list[Rule]:
    """Return the rules with small residuals: a scaling corrects only what is nearly right.

    With known learning rates this does not hold, because one factor can correct any residual.
    """
    limit = _HOPEFUL_RATIO * min(map(_get_residual, fits))
    hopeful_rules = set()
    for fit in fits:
        if fit.residual <= limit:
            hopeful_rules.add(fit.rule)
    return [rule for rule in rules if rule in hopeful_rules]


def _fit_level(
    rules: Sequence[Rule],
    scalings: Sequence[tuple[GradientScaling, bool]],
    data: UpdateData,
    search_sample: UpdateData,
    settings: KnownSettings,
) -> list[Fit]:
    """Fit elementwise rules, then those of tensors if needed, then variants of the good ones."""

    tensor_rules = [rule for rule in rules if not rule.elementwise]
    elementwise_rules = [rule for rule in rules if rule.elementwise]
    plain_rules = [rule for rule in elementwise_rules if rule == rule.essence]
    variants = [rule for rule in rules if rule != rule.essence]

    fits = _fit_rules(plain_rules, scalings, data, search_sample, settings)
    is_explained = any(fit.explains for fit in fits)
    # Rules of whole tensors take seconds, and none is another one's special case.
    if not is_explained:
        fits += _fit_rules(tensor_rules, scalings, data, search_sample, settings)
    close_rules = _find_close_rules(fits)
    close_variants = [rule for rule in variants if rule.essence in close_rules]
    fits += _fit_rules(close_variants, scalings, data, search_sample, settings)
    return fits


def _fit_rules(
    rules: Sequence[Rule],
    scalings: Sequence[tuple[GradientScaling, bool]],
    data: UpdateData,
    search_sample: UpdateData,
    settings: KnownSettings,
) -> list[Fit]:
    """Fit each rule with each scaling: elementwise rules on the sample, others on all data."""
    fits = []
    for rule, (scaling, by_step) in product(rules, scalings):
        if rule.needs_one_rate and (by_step or scaling.kind == STEP_FACTORS):
            continue
        rule_data = search_sample if rule.elementwise else data
        fits.append(find_best_fit(rule, scaling, by_step, rule_data, settings))
    return fits


def _find_close_rules(fits: Sequence[Fit]) -> set[Rule]:
    """Return the rules that explain the data; if there are none, those with small residuals."""
    explaining_rules = {fit.rule for fit in fits if fit.explains}
    if explaining_rules:
        return explaining_rules
    return {fit.rule for fit in fits if fit.residual < _CLOSE_RESIDUAL}


def rank_fit(candidate: Fit) -> tuple[bool, float]:
    """Return a sort key: fits that explain the data first, then by residual."""
    return not candidate.explains, candidate.residual


def find_best_fit(
    rule: Rule, scaling: GradientScaling, by_step: bool, data: UpdateData, settings: KnownSettings
) -> Fit:
    """Return the fit of a rule with the hyperparameters that leave the smallest residual.

    An elementwise rule that is far from explaining a few elements explains no more of them: its
    hyperparameters are those for these few.
    """
    n_elements = sum(history.weights.shape[1] for history in data.histories)
    n_screened = SCREENING_SAMPLE_SIZE * len(data.histories)
    if rule.elementwise and n_elements > n_screened:
        sample = data.select_moving(SCREENING_SAMPLE_SIZE)
        fit = _search_values(rule, scaling, by_step, sample, settings)
        if fit.relative_to_tolerance > _HOPELESS_TOLERANCE_SHARE:
            decay = settings.values.get("decay")
            return fit_rule(
                Attempt(rule, scaling, data, fit.values, settings.rates, decay, by_step)
            )
    return _search_values(rule, scaling, by_step, data, settings)


def _search_values(
    rule: Rule, scaling: GradientScaling, by_step: bool, data: UpdateData, settings: KnownSettings
) -> Fit:
    """Return the best fit of a rule to all of these elements."""
    # Without moments, the betas are part of the learning rate in the first step, or have no effect.
    is_first_step = data.n_steps == 1 and data.histories[0].second_moment is None
    fixed_betas = ("beta1", "beta2") if is_first_step else ()
    fixed_names = ("epsilon", *fixed_betas)
    best_fit = _Search(rule, scaling, by_step, data, settings, fixed_names).find_best()
    needs_epsilon = "epsilon" in rule.hyperparameters and "epsilon" not in settings.values
    if not needs_epsilon or best_fit.explains:
        return best_fit
    # Epsilon is confused with a norm limit or a decay, so it is solved for only if the default
    # fails.
    if best_fit.residual < get_residual_limit(scaling):
        fit = _Search(rule, scaling, by_step, data, settings, fixed_betas).find_best()
        best_fit = min((best_fit, fit), key=_get_residual)
    return best_fit


def _get_residual(fit: Fit) -> float:
    return fit.residual


def get_residual_limit(scaling: GradientScaling) -> float:
    """Return the residual up to which a search for other hyperparameters is worth its time."""
    if scaling.kind == ONE_FACTOR:  # a wrong factor can cause any residual
        return np.inf
    return _SEARCHED_RESIDUAL if scaling.kind == UNSCALED else _SEARCHED_RESIDUAL_SCALED


def _is_identifiable(
    scaling: GradientScaling, by_step: bool, data: UpdateData, settings: KnownSettings
) -> bool:
    """Return whether the data can tell a scaling from a learning rate."""
    if by_step:
        return data.n_steps > 1 and settings.rates is None
    if scaling.kind == ONE_FACTOR:
        return settings.rates is not None or "factor" in settings.values
    return scaling.kind != STEP_FACTORS or data.n_steps > 1


def is_applicable(rule: Rule, data: UpdateData) -> bool:
    """Return whether the data suit a rule.

    One that starts from zero needs the first step of the run, and one that is not elementwise
    complete tensors.
    """
    if rule.starts_from_zero and any(history.previous_steps for history in data.histories):
        return False
    if rule.elementwise:
        return True
    for history in data.histories:
        is_matrix = len(history.shape) == 2 and min(history.shape) > 1
        if not history.is_complete or (rule.needs_matrix and not is_matrix):
            return False
    return True


class _Search:
    """The search for the hyperparameters of one rule with one scaling."""

    def __init__(
        self,
        rule: Rule,
        scaling: GradientScaling,
        by_step: bool,
        data: UpdateData,
        settings: KnownSettings,
        fixed_names: Sequence[str] = (),  #: hyperparameters that keep their defaults
    ) -> None:
        self.rule = rule
        self.scaling = scaling
        self.by_step = by_step
        self.data = data
        self.settings = settings
        names = (*scaling.list_hyperparameters(data.n_steps), *rule.hyperparameters)
        self.unknowns: list[Hyperparameter] = []
        self.start: dict[str, float] = {}
        for name in names:
            hyperparameter = self._get_hyperparameter(name)
            self.start[name] = settings.values.get(name, hyperparameter.default)
            if name not in settings.values and name not in fixed_names:
                self.unknowns.append(hyperparameter)

    def _get_hyperparameter(self, name: str) -> Hyperparameter:
        if name == "clip":
            return self._describe_limit()
        if name in HYPERPARAMETERS:
            return HYPERPARAMETERS[name]
        alternatives: tuple[float, ...] = (0.5, 0.25, 2.0, 4.0)
        if name == "factor":
            alternatives = tuple(2.0**-exponent for exponent in range(1, 25))
        return Hyperparameter(name, 1.0, alternatives, 1e-30, 1e30, name)

    def _describe_limit(self) -> Hyperparameter:
        """Return the norm limit with candidates near the norms, which clip all steps or some."""
        clip = HYPERPARAMETERS["clip"]
        norms = self.data.norms
        if self.scaling.kind != GLOBAL_NORM:
            norms = self.data.histories[0].norms
        alternatives = [limit for limit in clip.alternatives if limit < norms.max()]
        grid = np.linspace(norms.min(), norms.max(), _LIMIT_CANDIDATES + 1)
        alternatives += grid[:-1].tolist()
        # A limit far below all norms has no effect, except that tiny gradients come close to
        # epsilon.
        return replace(clip, alternatives=tuple(alternatives), lowest=float(0.01 * norms.min()))

    def _fit_values(self, values: HyperparameterValues) -> Fit:
        return fit_rule(self._make_attempt(values))

    def _make_attempt(self, values: HyperparameterValues) -> Attempt:
        decay = self.settings.values.get("decay")
        return Attempt(
            self.rule, self.scaling, self.data, values, self.settings.rates, decay, self.by_step
        )

    def find_best(self) -> Fit:
        """Scan common values; refine the result if it is not good enough and not hopeless."""
        fit = self._scan()
        is_hopeful = fit.residual < get_residual_limit(self.scaling)
        if self.unknowns and fit.relative_to_tolerance > _GOOD_TOLERANCE_SHARE and is_hopeful:
            fit = self._round(self._refine(fit))
        return fit

    def _scan(self) -> Fit:
        """Try defaults, then common values of one hyperparameter at a time, in two rounds."""
        best_fit = self._fit_values(self.start)
        for _ in range(_SCAN_ROUNDS):
            previous_residual = best_fit.residual
            for unknown in self.unknowns:
                if best_fit.relative_to_tolerance <= _GOOD_TOLERANCE_SHARE:
                    return best_fit
                fits = [
                    self._fit_values({**best_fit.values, unknown.name: value})
                    for value in (unknown.default, *unknown.alternatives)
                ]
                best_fit = min([best_fit, *fits], key=_get_residual)
            if best_fit.residual == previous_residual:
                break
        return best_fit

    def _refine(self, fit: Fit) -> Fit:
        """Minimize the residual from there; if that fails, also from the first alternatives."""
        fit = self._minimize(fit, fit.values)
        if not fit.explains:
            start = {unknown.name: unknown.alternatives[0] for unknown in self.unknowns}
            fit = self._minimize(fit, start)
        return fit

    def _minimize(self, fit: Fit, start: HyperparameterValues) -> Fit:
        from scipy.optimize import least_squares

        def decode(point: Floats) -> HyperparameterValues:
            values = dict(fit.values)
            for unknown, coordinate in zip(self.unknowns, point, strict=True):
                values[unknown.name] = _from_unbounded(unknown, float(coordinate))
            return values

        def compute_errors(point: Floats) -> Floats:
            return compute_residuals(self._make_attempt(decode(point)))

        first_point = [_to_unbounded(unknown, start[unknown.name]) for unknown in self.unknowns]
        solution = least_squares(
            compute_errors,
            np.array(first_point),
            diff_step=1e-5,
            max_nfev=30,
            xtol=1e-8,
            ftol=1e-3,
            gtol=1e-12,
        )
        return min((fit, self._fit_values(decode(solution.x))), key=_get_residual)

    def _round(self, fit: Fit) -> Fit:
        """Set every hyperparameter to its default, or to as few digits as are good enough."""
        for unknown in self.unknowns:
            for value in _list_rounded_values(unknown, fit.values[unknown.name]):
                rounded = self._fit_values({**fit.values, unknown.name: value})
                is_small = rounded.residual <= _ROUNDED_GROWTH * fit.residual
                if rounded.relative_to_tolerance <= ROUNDED_TOLERANCE_SHARE or is_small:
                    fit = rounded
                    break
        return fit


def _list_rounded_values(unknown: Hyperparameter, value: float) -> list[float]:
    """Return the default, then the value with 1 to 5 digits; for a share also one minus it."""
    rounded_values = [float(f"{value:.{digits}e}") for digits in range(_MOST_DIGITS)]
    if unknown.search_scale == "share":
        complement = 1 - value
        rounded_values += [1 - float(f"{complement:.{digits}e}") for digits in range(_MOST_DIGITS)]
    allowed_values = [
        rounded for rounded in rounded_values if unknown.lowest <= rounded <= unknown.highest
    ]
    return [unknown.default, *allowed_values]


def _to_unbounded(unknown: Hyperparameter, value: float) -> float:
    """Return ln of a magnitude, or of the odds of a share, for least squares without bounds."""
    if unknown.search_scale == "share":
        share = min(max(value / unknown.highest, 1e-6), 1 - 1e-6)
        return float(np.log(share / (1 - share)))
    return float(np.log(max(value, 1e-12)))


def _from_unbounded(unknown: Hyperparameter, coordinate: float) -> float:
    """Invert :func:`_to_unbounded`."""
    limited = min(max(coordinate, -_EXPONENT_LIMIT), _EXPONENT_LIMIT)
    if unknown.search_scale == "share":
        value = unknown.highest / (1 + math.exp(-limited))
    else:
        value = math.exp(limited)
    return min(max(value, unknown.lowest), unknown.highest)
