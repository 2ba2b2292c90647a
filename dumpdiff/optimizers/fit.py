"""The fit of one rule to the observed updates: learning rate, decay, and the residual."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..model.arrays import Floats
from .gradient_scaling import GradientScaling
from .history import History
from .rule import HyperparameterValues, Rule, UpdateTerms

#: Allowed residual, in standard deviations of a step's rounding noise. Judgement call: a sum of
#: squares over many elements varies by a few percent, and the frameworks round once or twice more
#: than is counted here.
ALLOWED_NOISE = 4.0

LARGEST_RATE = 100.0  #: with a larger learning rate a rule imitates another one
#: Width of the border between what rounding to a narrow type hides and what it does not, as a
#: share of half a unit in the last place.
_BORDER = 0.05
#: Rounds of approaching what rounding to a narrow type hides, and the factor by which the
#: residual must shrink in each of them to continue.
_ROUNDS, _GAIN = 40, 0.99
_SINGULAR = 1e-12  #: of two eigenvalues, the share of the larger one that counts as zero
_SMALLEST_VARIANCE = 1e-60  #: avoids a division by zero where weights have no noise


@dataclass(frozen=True)
class UpdateData:
    """Parameters that are explained together, and the norms (n,) of all gradients of the model."""

    histories: tuple[History, ...]
    norms: Floats

    @property
    def n_steps(self) -> int:
        """Number of updates."""
        return len(self.norms)

    def select(self, names: Sequence[str]) -> UpdateData:
        """Return the data of these parameters."""
        selected = set(names)
        histories = tuple(history for history in self.histories if history.name in selected)
        return replace(self, histories=histories)

    def take_search_sample(self) -> UpdateData:
        """Return a sample of the elements, for searches."""
        histories = tuple(history.take_search_sample() for history in self.histories)
        return replace(self, histories=histories)

    def select_moving(self, size: int) -> UpdateData:
        """Return the data of at most ``size`` moving elements of each parameter."""
        histories = tuple(history.select_moving(size) for history in self.histories)
        return replace(self, histories=histories)


@dataclass(frozen=True)
class Fit:
    """A rule with all its hyperparameters, and how well it reproduces the updates."""

    rule: Rule
    scaling: GradientScaling
    values: HyperparameterValues  #: of rule and scaling, and ``decay``
    rates: tuple[float, ...]  #: learning rate of each step
    residual: float  #: ||observed - recomputed|| / ||observed|| over all updates
    #: Residual of the worst parameter and step, as a share of what noise allows.
    relative_to_tolerance: float
    n_elements: int

    @property
    def explains(self) -> bool:
        """Whether the residual of every parameter and every step is only noise."""
        return self.relative_to_tolerance <= 1


@dataclass(frozen=True)
class Attempt:
    """A rule with its hyperparameters, to be fitted.

    Rates and decay are solved for if they are None.
    """

    rule: Rule
    scaling: GradientScaling
    data: UpdateData
    values: HyperparameterValues
    rates: Sequence[float] | None = None  #: learning rates, one for each step
    decay: float | None = None  #: one that enters linearly
    by_step: bool = False  #: solve for one learning rate per step instead of one for all


def fit_rule(attempt: Attempt) -> Fit:
    """Return the fit with the smallest residual."""
    rule, values = attempt.rule, attempt.values
    equations, rates, linear_decay = _solve_attempt(attempt)
    residuals = [equation.compute_residual(rates, linear_decay) for equation in equations]
    precision = rule.estimate_precision(values)
    total = _compute_update_length(equations)
    tolerance_shares = [
        equation.compare_to_tolerance(residual, precision)
        for equation, residual in zip(equations, residuals, strict=True)
    ]
    # No optimizer moves up the slope.
    is_valid_rate = rates.min() >= 0 and rates.max() <= LARGEST_RATE
    decay = values["decay"] if "decay" in rule.hyperparameters else linear_decay
    return Fit(
        rule,
        attempt.scaling,
        {**values, "decay": decay},
        tuple(float(rate) for rate in rates),
        _compute_length(residuals) / total if total else 0.0,
        max(tolerance_shares) if is_valid_rate else float("inf"),
        sum(equation.history.weights.shape[1] for equation in equations),
    )


def compute_residuals(attempt: Attempt) -> Floats:
    """Return what :func:`fit_rule` leaves, per element and as a share of all updates.

    Its L2 norm is the residual.
    """
    equations, rates, decay = _solve_attempt(attempt)
    residuals = [equation.compute_residual(rates, decay).reshape(-1) for equation in equations]
    total = _compute_update_length(equations)
    joined = np.concatenate(residuals)
    shares: Floats = joined / total if total else joined
    return shares


def _solve_attempt(attempt: Attempt) -> tuple[list[_Equations], Floats, float]:
    """Return the equations of all parameters, the rate of each step, and the linear decay."""
    rule, data, rates, decay = attempt.rule, attempt.data, attempt.rates, attempt.decay
    equations = []
    for full_history in data.histories:
        history = full_history.sample if rule.elementwise else full_history
        factors = attempt.scaling.compute_factors(history, data.norms, attempt.values)
        terms = rule.compute_terms(history, factors, attempt.values)
        equations.append(_Equations(history, terms))
    if all(equation.decayed is None for equation in equations):
        decay = 0.0
    if rates is None or decay is None:
        solved_rates, decay = _solve_with_rounding(equations, rates, decay, attempt.by_step)
    else:
        solved_rates = np.asarray(rates, dtype=np.float64)
    return equations, solved_rates, decay


def _compute_length(arrays: Sequence[Floats]) -> float:
    """Return the L2 norm of all arrays together."""
    square_sum = sum(float(np.vdot(array, array)) for array in arrays)
    return float(np.sqrt(square_sum))


def _compute_update_length(equations: Sequence[_Equations]) -> float:
    """Return the L2 norm of all observed updates together."""
    square_sum = sum(float(equation.history.update_squares.sum()) for equation in equations)
    return float(np.sqrt(square_sum))


class _Equations:
    """The equations of one parameter: updates = rate (direction + decay decayed)."""

    def __init__(self, history: History, terms: UpdateTerms) -> None:
        self.history = history
        self.updates = history.updates
        self.direction = terms.direction
        self.decayed = terms.decayed

    def combine_terms(self, decay: float) -> Floats:
        """Return (n, N) direction + decay decayed, which the learning rate multiplies."""
        if self.decayed is None or decay == 0:
            return self.direction
        return self.direction + decay * self.decayed

    def predict_updates(self, rates: Floats, decay: float) -> Floats:
        """Return (n, N) updates by the rule."""
        predicted: Floats = rates[:, None] * self.combine_terms(decay)
        return predicted

    def compute_residual(self, rates: Floats, decay: float) -> Floats:
        """Return (n, N) observed minus predicted; in a narrow type what exceeds its rounding."""
        residual = self.updates - self.predict_updates(rates, decay)
        return subtract_hidden(residual, self.hidden) if self.history.is_narrow else residual

    @property
    def hidden(self) -> Floats:
        """What rounding of the weight after, and of a master copy before, can hide."""
        return 2.0 * self.history.half_ulp

    def compare_to_tolerance(self, residual: Floats, precision: float) -> float:
        """Return the residual of the worst step, as a share of what noise and precision allow."""
        noise_squares = self.history.noise_squares
        if self.history.is_narrow:
            noise = _BORDER * self.history.half_ulp
            noise_squares = _multiply_steps(noise, noise)
        squares = _multiply_steps(residual, residual)
        allowed_rounding = precision**2 * self.history.update_squares
        allowed = ALLOWED_NOISE**2 * noise_squares + allowed_rounding
        ratios = np.where(squares > 0, np.inf, 0.0)
        np.divide(squares, allowed, out=ratios, where=allowed > 0)
        return float(np.sqrt(np.max(ratios)))


def subtract_hidden(values: Floats, hidden: Floats) -> Floats:
    """Move values towards zero by ``hidden``: zero where rounding alone may have caused them."""
    visible: Floats = values - np.clip(values, -hidden, hidden)
    return visible


def _solve_with_rounding(
    equations: Sequence[_Equations],
    rates: Sequence[float] | None,
    decay: float | None,
    by_step: bool,
) -> tuple[Floats, float]:
    """Solve by least squares, also where rounding to a narrow type hides parts of the updates.

    What rounding hides is no error, so each round aims at the nearest updates that it allows.
    """
    goals = [equation.updates for equation in equations]
    solution = _solve_least_squares(equations, goals, rates, decay, by_step)
    if not any(equation.history.is_narrow for equation in equations):
        return solution
    previous_length = np.inf
    for _ in range(_ROUNDS):
        residuals = [equation.compute_residual(*solution) for equation in equations]
        length = _compute_length(residuals)
        if length == 0 or length > _GAIN * previous_length:
            break
        previous_length = length
        goals = [
            equation.predict_updates(*solution) + residual
            for equation, residual in zip(equations, residuals, strict=True)
        ]
        solution = _solve_least_squares(equations, goals, rates, decay, by_step)
    return solution


def _solve_least_squares(
    equations: Sequence[_Equations],
    goals: Sequence[Floats],
    rates: Sequence[float] | None,
    decay: float | None,
    by_step: bool,
) -> tuple[Floats, float]:
    """Return rates (n,) and decay for which the rule is nearest to the goals.

    Each parameter and step is weighted by its noise. Unknowns are ``rate`` and ``rate * decay``.
    """
    matrices, sides = _sum_normal_equations(equations, goals, decay)
    if rates is not None:
        return _solve_decay(matrices, sides, np.asarray(rates, dtype=np.float64))
    if by_step:
        unknowns = np.stack(
            [
                _solve_two_unknowns(matrix, side)
                for matrix, side in zip(matrices, sides, strict=True)
            ]
        )
        step_rates, products = unknowns[:, 0], unknowns[:, 1]
        if decay is None:
            decay = _divide_or_zero(np.sum(products), np.sum(step_rates))
        return step_rates, float(decay)
    rate, product = _solve_two_unknowns(matrices.sum(axis=0), sides.sum(axis=0))
    if decay is None:
        decay = float(_divide_or_zero(product, rate))
    return np.full(len(sides), rate), decay


def _sum_normal_equations(
    equations: Sequence[_Equations], goals: Sequence[Floats], decay: float | None
) -> tuple[Floats, Floats]:
    """Return the normal equations of each step: (n, 2, 2) matrices and (n, 2) right-hand sides."""
    n_steps = len(goals[0])
    matrices = np.zeros((n_steps, 2, 2))
    sides = np.zeros((n_steps, 2))
    for equation, goal in zip(equations, goals, strict=True):
        variance = equation.history.noise_squares / max(1, goal.shape[1])
        weight = 1 / np.maximum(variance, _SMALLEST_VARIANCE)
        if decay is not None:
            terms = [equation.combine_terms(decay)]
        elif equation.decayed is None:
            terms = [equation.direction]
        else:
            terms = [equation.direction, equation.decayed]
        for row, row_term in enumerate(terms):
            sides[:, row] += weight * _multiply_steps(row_term, goal)
            for column, column_term in enumerate(terms[: row + 1]):
                matrices[:, row, column] += weight * _multiply_steps(row_term, column_term)
    matrices[:, 0, 1] = matrices[:, 1, 0]
    return matrices, sides


def _solve_decay(matrices: Floats, sides: Floats, rates: Floats) -> tuple[Floats, float]:
    """Solve rate decay decayed = goal - rate direction for the decay, with known rates."""
    numerator = float(np.sum(rates * (sides[:, 1] - rates * matrices[:, 0, 1])))
    denominator = float(np.sum(rates**2 * matrices[:, 1, 1]))
    return rates, numerator / denominator if denominator > 0 else 0.0


def _multiply_steps(first: Floats, second: Floats) -> Floats:
    """Return (n,) the inner product of each step."""
    products: Floats = np.einsum("ij,ij->i", first, second)
    return products


def _solve_two_unknowns(matrix: Floats, side: Floats) -> Floats:
    """Solve for two unknowns; one or both may be absent, or one may be a multiple of the other.

    They are scaled, so that neither is lost: the matrix is then [[1, c], [c, 1]], whose
    eigenvectors are (1, 1) and (1, -1). What the equations leave open is as small as possible.
    """
    scales = [math.sqrt(matrix[index, index]) or 1.0 for index in range(2)]
    first, second = float(side[0]) / scales[0], float(side[1]) / scales[1]
    if matrix[0, 0] == 0 or matrix[1, 1] == 0:
        solution = (first if matrix[0, 0] else 0.0, second if matrix[1, 1] else 0.0)
    else:
        cosine = float(matrix[0, 1]) / (scales[0] * scales[1])
        smallest = _SINGULAR * (1 + abs(cosine))
        total = (first + second) / (1 + cosine) if 1 + cosine > smallest else 0.0
        difference = (first - second) / (1 - cosine) if 1 - cosine > smallest else 0.0
        solution = ((total + difference) / 2, (total - difference) / 2)
    return np.array([solution[0] / scales[0], solution[1] / scales[1]])


def _divide_or_zero(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
