"""How narrow weights are rounded: after a float32 master copy, to nearest, or stochastically.

Stochastic rounding takes one of the two neighbors of the exact weight, the nearer one with the
larger probability, so that the mean of many roundings is exact (Zamirai et al., arXiv:2010.06192).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..model.arrays import Flags, Floats
from .fit import Fit
from .history import History, compute_half_ulp

#: Difference of the two shares from which the larger one is believed. Judgement call: in three
#: steps the wrong assumption loses 3 to 45 percent of the weights; an imprecise learning rate
#: costs both alike.
DECISIVE_SHARE = 0.02
#: The larger share is believed only from here on. In recorded runs the correct assumption explains
#: at least 0.97 of the weights; where the arithmetic itself is narrow, or the decay is missing, a
#: wrong one reaches 0.92, and no assumption is correct.
CONVINCING_SHARE = 0.94
#: Width of a rounding interval in units of half an ulp: float32 arithmetic makes the border
#: between rounding up and down imprecise.
_INTERVAL = 1.02
#: Exact weights between these shares of the way from one neighbor to the next show how they are
#: rounded: to nearest would round nearly all of them in one direction.
_INFORMATIVE_SHARES = ((0.15, 0.4), (0.6, 0.85))
#: Standard deviations by which the share that was rounded up may differ from its expectation,
#: and the largest such difference, which asks for about 200 weights in each interval.
_ALLOWED_DEVIATIONS, _LARGEST_DEVIATION = 4.0, 0.13


class MasterCopyShares(NamedTuple):
    """Shares of the moved weights, from 0 to 1, whose steps are all explained by rounding."""

    without_master: float  #: if each step starts from the narrow weight
    #: If each step starts from a copy that is never rounded; it may be anything that rounds to
    #: the first weight.
    with_master: float
    is_stochastic: bool = False  #: whether the weights are rounded stochastically, without a copy

    @property
    def largest(self) -> float:
        """The share of the assumption that explains more."""
        return max(self.with_master, self.without_master)

    @property
    def has_master(self) -> bool | None:
        """Whether there is a master copy; None if the data cannot tell, as in a single step."""
        if self.is_stochastic:
            return False
        if self.largest < CONVINCING_SHARE:
            return None
        if abs(self.with_master - self.without_master) < DECISIVE_SHARE:
            return None
        return bool(self.with_master > self.without_master)


class _Roundings(NamedTuple):
    """Counts of roundings of weights that a step moved from the stored weight."""

    n_weights: int = 0
    n_neighbors: int = 0  #: stored as one of the two neighbors of the exact weight
    #: Of each interval of _INFORMATIVE_SHARES: number of weights, sum of their shares of the way,
    #: number that was rounded up.
    intervals: tuple[tuple[int, float, int], ...] = ((0, 0.0, 0), (0, 0.0, 0))

    def add(self, history: History, steps: Floats) -> _Roundings:
        """Return the counts with those of one parameter; ``steps`` (n, N)."""
        exact = history.weights[:-1] - steps
        spacing = 2.0 * compute_half_ulp(exact, history.stored_dtype)
        spacing[spacing == 0] = np.inf
        shares = np.mod(exact / spacing, 1.0)
        distances = (history.weights[1:] - exact) / spacing
        is_up = distances > 0
        is_neighbor = np.abs(distances - np.where(is_up, 1.0 - shares, -shares)) < _INTERVAL - 1.0
        intervals = []
        for (low, high), counts in zip(_INFORMATIVE_SHARES, self.intervals, strict=True):
            is_inside = (shares > low) & (shares < high) & is_neighbor
            n_inside = int(np.count_nonzero(is_inside))
            share_sum = float(shares[is_inside].sum())
            n_up = int(np.count_nonzero(is_up & is_inside))
            intervals.append((counts[0] + n_inside, counts[1] + share_sum, counts[2] + n_up))
        return _Roundings(
            self.n_weights + exact.size,
            self.n_neighbors + int(np.count_nonzero(is_neighbor)),
            tuple(intervals),
        )

    @property
    def are_stochastic(self) -> bool:
        """Whether nearly all are neighbors, and as many are rounded up as their shares expect."""
        if self.n_neighbors < CONVINCING_SHARE * self.n_weights:
            return False
        for n_inside, share_sum, n_up in self.intervals:
            if not n_inside:
                return False
            share = share_sum / n_inside
            deviation = _ALLOWED_DEVIATIONS * np.sqrt(share * (1 - share) / n_inside)
            if deviation > _LARGEST_DEVIATION or abs(n_up / n_inside - share) > deviation:
                return False
        return True


def measure_master_copy(
    fit: Fit, histories: tuple[History, ...], norms: Floats
) -> MasterCopyShares | None:
    """Return the shares for both assumptions.

    None if a parameter is kept in float32 or wider, or nothing moved.
    """
    n_without = n_with = n_moved = 0
    roundings = _Roundings()
    for full_history in histories:
        history = full_history.sample if fit.rule.elementwise else full_history
        if not history.is_narrow:
            return None
        steps = _compute_steps(fit, history, norms)
        roundings = roundings.add(history, steps)
        errors = np.abs(history.updates - steps)
        is_direct = np.all(errors <= _INTERVAL * history.half_ulp, axis=0)
        has_moved = np.any(history.updates != 0, axis=0)
        n_without += int(np.count_nonzero(is_direct[has_moved]))
        n_with += int(np.count_nonzero(_find_possible_elements(history, steps)[has_moved]))
        n_moved += int(np.count_nonzero(has_moved))
    if not n_moved:
        return None
    shares = MasterCopyShares(n_without / n_moved, n_with / n_moved)
    # The hidden bits of a master copy spread roundings in the same way, but a copy explains all.
    is_stochastic = shares.largest < CONVINCING_SHARE and roundings.are_stochastic
    return shares._replace(is_stochastic=is_stochastic)


def _compute_steps(fit: Fit, history: History, norms: Floats) -> Floats:
    """Return (n, N) the updates by the fit.

    The decay is computed from the narrow weights; the difference to that of a master copy is
    below noise.
    """
    factors = fit.scaling.compute_factors(history, norms, fit.values)
    terms = fit.rule.compute_terms(history, factors, fit.values)
    direction = terms.direction
    if terms.decayed is not None:
        direction = direction + fit.values["decay"] * terms.decayed
    rates = np.asarray(fit.rates, dtype=np.float64)
    steps: Floats = rates[:, None] * direction
    return steps


def _find_possible_elements(history: History, steps: Floats) -> Flags:
    """Return the elements for which a master copy exists.

    It is a first weight that, after all steps so far, rounds to the stored weight each time.
    """
    first_weights = history.weights[0]
    half_width = _INTERVAL * compute_half_ulp(first_weights, history.stored_dtype)
    low, high = first_weights - half_width, first_weights + half_width
    movements = np.cumsum(steps, axis=0)
    for stored, half_ulp, movement in zip(
        history.weights[1:], history.half_ulp, movements, strict=True
    ):
        low = np.maximum(low, stored - _INTERVAL * half_ulp + movement)
        high = np.minimum(high, stored + _INTERVAL * half_ulp + movement)
    possible: Flags = low <= high
    return possible
