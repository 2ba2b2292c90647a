"""Weights kept in a narrow type: is there a float32 copy behind them that the optimizer moves?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..model.arrays import Flags, Floats
from .fit import Fit
from .history import History, compute_half_ulp

#: Difference of the two shares from which one is believed. Judgement call: in three steps the wrong way loses 3 to 45
#: per cent of the weights; what the fit leaves open of the learning rate costs both alike.
DECISIVE_SHARE = 0.02
_EDGE = 1.02  #: times half a unit in the last place: float32 arithmetic blurs where a number is rounded up or down


class MasterCopyShares(NamedTuple):
    """Share of the weights that moved, from 0 to 1, of which rounding to the narrow type explains every step."""

    without_master: float  #: if each step starts from the narrow weight
    with_master: float  #: if it starts from a copy that is never rounded, and may lie anywhere in what rounds to the first

    @property
    def has_master(self) -> bool | None:
        """None where these data do not tell, as a single step never does."""
        return (
            None if abs(self.with_master - self.without_master) < DECISIVE_SHARE else bool(self.with_master > self.without_master)
        )


def measure_master_copy(fit: Fit, histories: tuple[History, ...], norms: Floats) -> MasterCopyShares | None:
    """Both ways tried; None if the weights are kept in float32 or wider, or nothing moved."""
    counted = np.zeros(3, dtype=np.int64)
    for history in (known.sample if fit.rule.elementwise else known for known in histories):
        if not history.is_narrow:
            return None
        moves = fit.rule.compute_terms(
            history, fit.scaling.compute_factors(history, norms, fit.values), fit.values
        )
        decay = fit.values["decay"]
        # The decay's direction is computed from the narrow weights; the difference to the copy's is below noise
        whole = moves.direction if moves.decayed is None else moves.direction + decay * moves.decayed
        steps = np.asarray(fit.rates, dtype=np.float64)[:, None] * whole
        direct = np.all(np.abs(history.updates - steps) <= _EDGE * history.half_ulp, axis=0)
        moving = np.any(history.updates != 0, axis=0)
        ways = (direct, _possible(history, steps), moving)
        counted += [np.count_nonzero(way[moving]) for way in ways]
    without, master, count = counted.tolist()
    return MasterCopyShares(without / count, master / count) if count else None


def _possible(history: History, steps: Floats) -> Flags:
    """Elements for which some exact first weight, moved by all steps so far, rounds to what was stored each time."""
    first, half = history.weights[0], _EDGE * compute_half_ulp(history.weights[0], history.stored_dtype)
    low, high = first - half, first + half
    for after, width, gone in zip(
        history.weights[1:], history.half_ulp, np.cumsum(steps, axis=0), strict=True
    ):
        low = np.maximum(low, after - _EDGE * width + gone)
        high = np.minimum(high, after + _EDGE * width + gone)
    possible: Flags = low <= high
    return possible
