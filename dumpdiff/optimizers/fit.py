"""One rule, held against what the weights did: learning rate and decay solved for, and what is left over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..model.arrays import Floats
from .gradient_scaling import GradientScaling
from .history import History
from .rule import UpdateTerms, HyperparameterValues, Rule

#: Of a step's rounding noise (standard deviation): what may be left over. Judgement call: a sum of squares over many
#: elements strays by per cents; the frameworks round once or twice more than is counted here.
ALLOWED_NOISE = 4.0

LARGEST_RATE = 100.0  #: learning rates beyond are other rules in disguise
_EDGE = 0.05  #: of half a unit in the last place: how sharp the border is of what rounding to a narrow type hides
_ROUNDS, _GAIN = (
    40,
    0.99,
)  #: of narrowing down to what rounding to a narrow type hides: how many, and while it helps


@dataclass(frozen=True)
class UpdateData:
    """Parameters that are explained together, and the norm (n,) of all gradients of the model at each step."""

    histories: tuple[History, ...]
    norms: Floats

    @property
    def n_steps(self) -> int:
        """How many updates are known."""
        return len(self.norms)

    def select(self, names: Sequence[str]) -> UpdateData:
        """These parameters of it."""
        wanted = set(names)
        return replace(
            self, histories=tuple(history for history in self.histories if history.name in wanted)
        )

    def take_search_sample(self) -> UpdateData:
        """A sample of the elements, for searches."""
        return replace(self, histories=tuple(history.take_search_sample() for history in self.histories))


@dataclass(frozen=True)
class Fit:
    """A rule with all its numbers, and how well it says what happened."""

    rule: Rule
    scaling: GradientScaling
    values: HyperparameterValues  #: every number of rule and clipping, and ``decay``
    rates: tuple[float, ...]  #: learning rate of each step
    residual: float  #: ||observed - recomputed|| / ||observed|| over all updates
    excess: float  #: the same for the parameter and step where it is worst, as a share of what noise allows
    n_elements: int

    @property
    def explains(self) -> bool:
        """Nothing but noise is left, for every parameter and every step."""
        return self.excess <= 1


@dataclass(frozen=True)
class Attempt:
    """A rule with its numbers, to be held against data; what is None of rates and decay is solved for."""

    rule: Rule
    scaling: GradientScaling
    data: UpdateData
    values: HyperparameterValues
    rates: Sequence[float] | None = None  #: learning rates, one for each step
    decay: float | None = None  #: one that enters linearly
    by_step: bool = False  #: solve for a learning rate of each step, not for one


def fit_rule(attempt: Attempt) -> Fit:
    """The rule with these numbers, and what is solved for as it leaves least."""
    rule, numbers = attempt.rule, attempt.values
    each, found, linear = _equations(attempt)
    left = [piece.left(found, linear) for piece in each]
    precision = rule.estimate_precision(numbers)
    total = _length([piece.moved for piece in each])
    forward = found.min() >= 0 and found.max() <= LARGEST_RATE  # no optimizer goes up the slope
    worst = max(piece.excess(part, precision) for piece, part in zip(each, left, strict=True))
    return Fit(
        rule,
        attempt.scaling,
        {**numbers, "decay": numbers["decay"] if "decay" in rule.hyperparameters else linear},
        tuple(float(rate) for rate in found),
        _length(left) / total if total else 0.0,
        worst if forward else float("inf"),
        sum(piece.history.weights.shape[1] for piece in each),
    )


def compute_residuals(attempt: Attempt) -> Floats:
    """What :func:`fit` leaves, element by element, as a share of all movement: its length is the residual."""
    each, found, linear = _equations(attempt)
    left = np.concatenate([piece.left(found, linear).reshape(-1) for piece in each])
    total = _length([piece.moved for piece in each])
    share: Floats = left / total if total else left
    return share


def _equations(attempt: Attempt) -> tuple[list[_Piece], Floats, float]:
    """The equations of every parameter, learning rate of each step, and the decay that enters linearly."""
    rule, data, rates, decay = attempt.rule, attempt.data, attempt.rates, attempt.decay
    each = []
    for history in (known.sample if rule.elementwise else known for known in data.histories):
        factors = attempt.scaling.compute_factors(history, data.norms, attempt.values)
        each.append(_Piece(history, rule.compute_terms(history, factors, attempt.values)))
    if all(piece.decayed is None for piece in each):
        decay = 0.0
    if rates is None or decay is None:
        found, decay = _solved(each, rates, decay, attempt.by_step)
    else:
        found = np.asarray(rates, dtype=np.float64)
    return each, found, decay


def _length(parts: Sequence[Floats]) -> float:
    return float(np.sqrt(sum(float(np.vdot(part, part)) for part in parts)))


class _Piece:
    """One parameter's side of the equations moved = rate (move + decay decayed)."""

    def __init__(self, history: History, moves: UpdateTerms) -> None:
        self.history, self.moved = history, history.updates
        self.move = moves.direction
        self.decayed = moves.decayed

    def whole(self, decay: float) -> Floats:
        """(n, N) what the learning rate stands before."""
        return self.move if self.decayed is None or decay == 0 else self.move + decay * self.decayed

    def made(self, rates: Floats, decay: float) -> Floats:
        made: Floats = rates[:, None] * self.whole(decay)
        return made

    def left(self, rates: Floats, decay: float) -> Floats:
        """(n, N) what is not explained; in a narrow type only what is beyond its rounding."""
        left = self.moved - self.made(rates, decay)
        return subtract_hidden(left, self.hidden) if self.history.is_narrow else left

    @property
    def hidden(self) -> Floats:
        """What rounding of the weight after, and of a master copy before, can hide."""
        return 2.0 * self.history.half_ulp

    def excess(self, left: Floats, precision: float) -> float:
        noise = _EDGE * self.history.half_ulp if self.history.is_narrow else self.history.noise
        sums = _products(left, left)
        allowed = ALLOWED_NOISE**2 * _products(noise, noise) + precision**2 * _products(
            self.moved, self.moved
        )
        ratios = np.divide(sums, allowed, out=np.where(sums > 0, np.inf, 0.0), where=allowed > 0)
        return float(np.sqrt(np.max(ratios)))


def subtract_hidden(values: Floats, hidden: Floats) -> Floats:
    """Values moved towards zero by as much as is hidden: zero where rounding alone may have made them."""
    rest: Floats = values - np.clip(values, -hidden, hidden)
    return rest


def _solved(
    each: Sequence[_Piece], rates: Sequence[float] | None, decay: float | None, by_step: bool
) -> tuple[Floats, float]:
    """Least squares, every element weighed by its noise."""
    goals = [piece.moved for piece in each]
    found = _least(each, goals, rates, decay, by_step)
    if not any(piece.history.is_narrow for piece in each):
        return found
    before = np.inf
    for _ in range(
        _ROUNDS
    ):  # what rounding hides is no error: aim at the nearest value that it allows
        lefts = [piece.left(*found) for piece in each]
        now = _length(lefts)
        if now == 0 or now > _GAIN * before:
            break
        before = now
        goals = [piece.made(*found) + left for piece, left in zip(each, lefts, strict=True)]
        found = _least(each, goals, rates, decay, by_step)
    return found


def _least(
    each: Sequence[_Piece],
    goals: Sequence[Floats],
    rates: Sequence[float] | None,
    decay: float | None,
    by_step: bool,
) -> tuple[Floats, float]:
    steps = len(goals[0])
    sums = np.zeros((steps, 2, 2))
    sides = np.zeros((steps, 2))
    for piece, goal in zip(each, goals, strict=True):
        weight = 1 / np.maximum(np.mean(piece.history.noise**2, axis=1), 1e-60)
        bases = [piece.move] if piece.decayed is None else [piece.move, piece.decayed]
        if decay is not None:
            bases = [piece.whole(decay)]
        for i, left in enumerate(bases):
            sides[:, i] += weight * _products(left, goal)
            for j, right in enumerate(bases[: i + 1]):
                sums[:, i, j] += weight * _products(left, right)
    sums[:, 0, 1] = sums[:, 1, 0]
    if rates is not None:  # rate decay decayed = goal - rate move
        given = np.asarray(rates, dtype=np.float64)
        above = float(np.sum(given * (sides[:, 1] - given * sums[:, 0, 1])))
        below = float(np.sum(given**2 * sums[:, 1, 1]))
        return given, above / below if below > 0 else 0.0
    if by_step:
        pairs = np.stack([_two(s, side) for s, side in zip(sums, sides, strict=True)])
        common = _ratio(np.sum(pairs[:, 1]), np.sum(pairs[:, 0])) if decay is None else decay
        return pairs[:, 0], float(common)
    rate, product = _two(sums.sum(axis=0), sides.sum(axis=0))
    return np.full(steps, rate), float(_ratio(product, rate)) if decay is None else decay


def _products(left: Floats, right: Floats) -> Floats:
    """(n,) inner product of each step."""
    products: Floats = np.einsum("ij,ij->i", left, right)
    return products


def _two(sums: Floats, side: Floats) -> Floats:
    """Two unknowns, of which one or both may not appear at all; scaled, so that neither is lost."""
    scale = np.sqrt(np.diag(sums))
    scale[scale == 0] = 1.0
    solution, *_ = np.linalg.lstsq(sums / np.outer(scale, scale), side / scale, rcond=1e-12)
    result: Floats = solution / scale
    return result


def _ratio(above: float, below: float) -> float:
    return above / below if below else 0.0
