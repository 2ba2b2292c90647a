"""The numbers that a rule leaves open: usual values first, then least squares, then the roundest that does as well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..model.arrays import Floats
from . import adam, muon, sgd
from .gradient_scaling import TENSOR_NORM, ONE_FACTOR, STEP_FACTORS, GLOBAL_NORM, UNSCALED, GradientScaling
from .fit import Attempt, UpdateData, Fit, fit_rule, compute_residuals
from .rule import HYPERPARAMETERS, Hyperparameter, HyperparameterValues, Rule

RULES: tuple[Rule, ...] = (*sgd.list_variants(), *adam.list_variants(), *muon.list_variants())

#: What may have been done to gradients and learning rate, in the order in which it is believed: a level is
#: tried where no rule explains the data with those before it.
LEVELS: tuple[tuple[tuple[GradientScaling, bool], ...], ...] = (
    ((GradientScaling(UNSCALED), False),),
    ((GradientScaling(GLOBAL_NORM), False), (GradientScaling(ONE_FACTOR), False), (GradientScaling(UNSCALED), True)),
    ((GradientScaling(TENSOR_NORM), False), (GradientScaling(STEP_FACTORS), False)),
)

_GOOD = 0.3  #: share of what noise allows: below it nothing is left to search for
_HOPEFUL = 3.0  #: times the residual of the best rule: those that leave more are not tried with scaled gradients
_CLOSE = 0.1  #: residual of a rule below which its variants are tried though it does not explain the data
FINE = 0.5  #: share of what noise allows: what a rounder number may leave
_SAME = 1.05  #: or so much more than the best
#: Residual: with usual numbers further off than this no others will help; with scaled gradients, which mend less.
_WORTH, _WORTH_SCALED = 0.5, 0.25


@dataclass(frozen=True)
class KnownSettings:
    """What need not be solved for."""

    values: HyperparameterValues = field(default_factory=dict)  #: beta1, epsilon, decay, clip, ...
    rates: tuple[float, ...] | None = None  #: learning rate of each step


def find_candidates(data: UpdateData, known: KnownSettings, rules: Sequence[Rule] = RULES) -> list[Fit]:
    """The best fit of every rule, on all levels up to the first where one explains the data. Best first.

    Rules that are variants of another in what hardly shows are tried after it: beside it if it explains the data,
    for themselves if nothing else does.
    """
    thin = data.take_search_sample()
    fitting = [rule for rule in rules if is_applicable(rule, data)]
    everything: list[Fit] = []
    for level in LEVELS:
        ways = [
            (clipping, by_step)
            for clipping, by_step in level
            if _sensible(clipping, by_step, thin, known)
        ]

        def tried(some: Iterable[Rule], ways: Sequence[tuple[GradientScaling, bool]] = ways) -> list[Fit]:
            return [find_best_fit(rule, clipping, by_step, thin if rule.elementwise else data, known)
                    for rule in some for clipping, by_step in ways]  # fmt: skip

        if (
            everything and known.rates is None
        ):  # a scaling mends what is nearly right; one factor, anything
            limit = _HOPEFUL * min(one.residual for one in everything)
            hopeful = {one.rule for one in everything if one.residual <= limit}
            fitting = [rule for rule in fitting if rule in hopeful]
        found = tried(rule for rule in fitting if rule == rule.essence and rule.elementwise)
        if not any(
            one.explains for one in found
        ):  # whole matrices cost seconds, and never explain as sharply
            found += tried(rule for rule in fitting if not rule.elementwise)
        good = {one.rule for one in found if one.explains}
        close = good or {one.rule for one in found if one.residual < _CLOSE}
        found += tried(rule for rule in fitting if rule != rule.essence and rule.essence in close)
        everything += found
        if any(one.explains for one in found):
            break
    return sorted(everything, key=rank_fit)


def rank_fit(candidate: Fit) -> tuple[bool, float]:
    """Sorts what explains before what does not, then by what is left over."""
    return not candidate.explains, candidate.residual


def find_best_fit(rule: Rule, clipping: GradientScaling, by_step: bool, data: UpdateData, known: KnownSettings) -> Fit:
    """The rule with the numbers that leave least."""
    held: tuple[str, ...] = ("epsilon",)
    if data.n_steps == 1 and data.histories[0].second_moment is None:
        held = (
            "epsilon",
            "beta1",
            "beta2",
        )  # in the first step they are part of the learning rate, or of nothing
    found = _Search(rule, clipping, by_step, data, known, held).best()
    if (
        "epsilon" in rule.hyperparameters
        and "epsilon" not in known.values
        and not found.explains
        and found.residual < get_residual_limit(clipping)
    ):
        # An epsilon trades with a limit of the norm and with a decay: it is let go only where the usual one fails
        found = min(
            (found, _Search(rule, clipping, by_step, data, known, held[1:]).best()),
            key=lambda one: one.residual,
        )
    return found


def get_residual_limit(clipping: GradientScaling) -> float:
    """Up to which residual a search for other numbers is worth its time."""
    if clipping.kind == ONE_FACTOR:  # any residual may come from a factor that is far off
        return np.inf
    return _WORTH if clipping.kind == UNSCALED else _WORTH_SCALED


def _sensible(clipping: GradientScaling, by_step: bool, data: UpdateData, known: KnownSettings) -> bool:
    """A single step tells no rate by step from one rate; one factor is a learning rate unless that is known."""
    if by_step:
        return data.n_steps > 1 and known.rates is None
    if clipping.kind == ONE_FACTOR:
        return known.rates is not None or "factor" in known.values
    return clipping.kind != STEP_FACTORS or data.n_steps > 1


def is_applicable(rule: Rule, data: UpdateData) -> bool:
    """A rule that needs whole matrices is given nothing else."""
    return rule.elementwise or all(
        h.is_complete and len(h.shape) == 2 and min(h.shape) > 1 for h in data.histories
    )


class _Search:
    def __init__(
        self,
        rule: Rule,
        clipping: GradientScaling,
        by_step: bool,
        data: UpdateData,
        known: KnownSettings,
        held: Sequence[str] = (),  #: numbers that stay as usual
    ) -> None:
        self.rule, self.clipping, self.by_step, self.data, self.known = (
            rule,
            clipping,
            by_step,
            data,
            known,
        )
        wanted = (*clipping.list_hyperparameters(data.n_steps), *rule.hyperparameters)
        numbers = {name: self._number(name) for name in wanted}
        self.open = [
            numbers[name] for name in wanted if name not in known.values and name not in held
        ]
        self.start = {name: known.values.get(name, numbers[name].default) for name in wanted}

    def _number(self, name: str) -> Hyperparameter:
        if name == "clip":  # about the norms: all steps clipped, or some
            norms = (
                self.data.norms if self.clipping.kind == GLOBAL_NORM else self.data.histories[0].norms
            )
            tried = [n for n in HYPERPARAMETERS["clip"].alternatives if n < norms.max()]
            lows = np.linspace(norms.min(), norms.max(), 6)[:-1]
            # Far below all norms the limit does not show, but for an epsilon that gradients made tiny come near to
            return replace(
                HYPERPARAMETERS["clip"], alternatives=(*tried, *map(float, lows)), lowest=float(0.01 * norms.min())
            )
        if name in HYPERPARAMETERS:
            return HYPERPARAMETERS[name]
        powers = tuple(2.0**-n for n in range(1, 25)) if name == "factor" else (0.5, 0.25, 2.0, 4.0)
        return Hyperparameter(name, 1.0, powers, 1e-30, 1e30, name)

    def at(self, numbers: HyperparameterValues) -> Fit:
        return fit_rule(self._attempt(numbers))

    def _attempt(self, numbers: HyperparameterValues) -> Attempt:
        decay = self.known.values.get("decay")
        return Attempt(
            self.rule, self.clipping, self.data, numbers, self.known.rates, decay, self.by_step
        )

    def best(self) -> Fit:
        """Scanned, and refined if that is not good enough and not hopeless."""
        found = self.scanned()
        if self.open and found.excess > _GOOD and found.residual < get_residual_limit(self.clipping):
            found = self.rounded(self.refined(found))
        return found

    def scanned(self) -> Fit:
        """The usual values; while that does not explain, the others in use, one number at a time, twice round."""
        found = self.at(self.start)
        for _ in range(2):
            before = found.residual
            for number in self.open:
                if found.excess <= _GOOD:
                    return found
                tries = [
                    self.at({**found.values, number.name: value})
                    for value in (number.default, *number.alternatives)
                ]
                found = min([found, *tries], key=lambda one: one.residual)
            if found.residual == before:
                break
        return found

    def refined(self, found: Fit) -> Fit:
        """Least squares from there; if that does not explain, also from the second usual values."""
        found = self._descended(found, found.values)
        if not found.explains:
            found = self._descended(found, {number.name: number.alternatives[0] for number in self.open})
        return found

    def _descended(self, found: Fit, start: HyperparameterValues) -> Fit:
        from scipy.optimize import least_squares

        def numbers(x: Floats) -> HyperparameterValues:
            values = zip(self.open, x, strict=True)
            return {
                **found.values,
                **{number.name: _outward(number, float(value)) for number, value in values},
            }

        inward = np.array([_inward(number, start[number.name]) for number in self.open])
        solution = least_squares(
            lambda x: compute_residuals(self._attempt(numbers(x))),
            inward, diff_step=1e-5, max_nfev=30, xtol=1e-8, ftol=1e-3, gtol=1e-12,
        )  # fmt: skip
        return min((found, self.at(numbers(solution.x))), key=lambda one: one.residual)

    def rounded(self, found: Fit) -> Fit:
        """Every number as usual, or else with as few digits as leave no more."""
        for number in self.open:
            for value in _rounder(number, found.values[number.name]):
                made = self.at({**found.values, number.name: value})
                if made.excess <= FINE or made.residual <= _SAME * found.residual:
                    found = made
                    break
        return found


def _rounder(number: Hyperparameter, value: float) -> Sequence[float]:
    rounds = [float(f"{value:.{digits}e}") for digits in range(5)]
    if number.search_scale == "share":
        rounds += [1 - float(f"{1 - value:.{digits}e}") for digits in range(5)]
    return (number.default, *(r for r in rounds if number.lowest <= r <= number.highest))


def _inward(number: Hyperparameter, value: float) -> float:
    """ln of a magnitude, or of odds between zero and the highest: least squares without bounds."""
    if number.search_scale == "share":
        share = min(max(value / number.highest, 1e-6), 1 - 1e-6)
        return float(np.log(share / (1 - share)))
    return float(np.log(max(value, 1e-12)))


def _outward(number: Hyperparameter, value: float) -> float:
    if number.search_scale == "share":
        return float(number.highest / (1 + np.exp(-np.clip(value, -100, 100))))
    return float(np.clip(np.exp(np.clip(value, -100, 100)), number.lowest, number.highest))
