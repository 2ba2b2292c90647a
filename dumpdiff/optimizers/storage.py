"""Weights kept in a narrow type: is there a float32 copy behind them that the optimizer moves?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..model.arrays import Flags, Floats
from .fit import Fit
from .history import History, half_ulp

#: Difference of the two shares from which one is believed. Judgement call: in three steps the wrong way loses 3 to 45
#: per cent of the weights; what the fit leaves open of the learning rate costs both alike.
TELLING = 0.02
_EDGE = 1.02  #: times half a unit in the last place: float32 arithmetic blurs where a number is rounded up or down


class Copies(NamedTuple):
    """Share of the weights that moved, from 0 to 1, of which rounding to the narrow type explains every step."""

    without: float  #: if each step starts from the narrow weight
    master: float  #: if it starts from a copy that is never rounded, and may lie anywhere in what rounds to the first

    @property
    def has_master(self) -> bool | None:
        """None where these data do not tell, as a single step never does."""
        return (
            None if abs(self.master - self.without) < TELLING else bool(self.master > self.without)
        )


def copies(fit: Fit, histories: tuple[History, ...], norms: Floats) -> Copies | None:
    """Both ways tried; None if the weights are kept in float32 or wider, or nothing moved."""
    counted = np.zeros(3, dtype=np.int64)
    for history in (known.sampled if fit.rule.elementwise else known for known in histories):
        if not history.narrow:
            return None
        moves = fit.rule.moves(
            history, fit.clipping.factors(history, norms, fit.numbers), fit.numbers
        )
        decay = fit.numbers["decay"]
        # The decay's direction is computed from the narrow weights; the difference to the copy's is below noise
        whole = moves.move if moves.decayed is None else moves.move + decay * moves.decayed
        steps = np.asarray(fit.rates, dtype=np.float64)[:, None] * whole
        direct = np.all(np.abs(history.moved - steps) <= _EDGE * history.half_ulp, axis=0)
        moving = np.any(history.moved != 0, axis=0)
        ways = (direct, _possible(history, steps), moving)
        counted += [np.count_nonzero(way[moving]) for way in ways]
    without, master, count = counted.tolist()
    return Copies(without / count, master / count) if count else None


def _possible(history: History, steps: Floats) -> Flags:
    """Elements for which some exact first weight, moved by all steps so far, rounds to what was stored each time."""
    first, half = history.weights[0], _EDGE * half_ulp(history.weights[0], history.stored)
    low, high = first - half, first + half
    for after, width, gone in zip(
        history.weights[1:], history.half_ulp, np.cumsum(steps, axis=0), strict=True
    ):
        low = np.maximum(low, after - _EDGE * width + gone)
        high = np.minimum(high, after + _EDGE * width + gone)
    possible: Flags = low <= high
    return possible
