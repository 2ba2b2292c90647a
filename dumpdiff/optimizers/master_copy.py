"""Detection of a float32 master copy behind weights that are kept in a narrow type."""

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


class MasterCopyShares(NamedTuple):
    """Shares of the moved weights, from 0 to 1, whose steps are all explained by rounding."""

    without_master: float  #: if each step starts from the narrow weight
    #: If each step starts from a copy that is never rounded; it may be anything that rounds to
    #: the first weight.
    with_master: float

    @property
    def largest(self) -> float:
        """The share of the assumption that explains more."""
        return max(self.with_master, self.without_master)

    @property
    def has_master(self) -> bool | None:
        """Whether there is a master copy; None if the data cannot tell, as in a single step."""
        if self.largest < CONVINCING_SHARE:
            return None
        if abs(self.with_master - self.without_master) < DECISIVE_SHARE:
            return None
        return bool(self.with_master > self.without_master)


def measure_master_copy(
    fit: Fit, histories: tuple[History, ...], norms: Floats
) -> MasterCopyShares | None:
    """Return the shares for both assumptions.

    None if a parameter is kept in float32 or wider, or nothing moved.
    """
    n_without = n_with = n_moved = 0
    for full_history in histories:
        history = full_history.sample if fit.rule.elementwise else full_history
        if not history.is_narrow:
            return None
        steps = _compute_steps(fit, history, norms)
        errors = np.abs(history.updates - steps)
        is_direct = np.all(errors <= _INTERVAL * history.half_ulp, axis=0)
        has_moved = np.any(history.updates != 0, axis=0)
        n_without += int(np.count_nonzero(is_direct[has_moved]))
        n_with += int(np.count_nonzero(_find_possible_elements(history, steps)[has_moved]))
        n_moved += int(np.count_nonzero(has_moved))
    if not n_moved:
        return None
    return MasterCopyShares(n_without / n_moved, n_with / n_moved)


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
