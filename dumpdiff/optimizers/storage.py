"""Weights kept in a narrow type: is there a float32 copy behind them that the optimizer moves?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..arrays import Floats
from ..dtypes import UNIT_ROUNDOFF
from .fit import Fit
from .history import History

#: Difference of the two shares from which one is believed. Judgement call: a wrong guess moves the share by tens of
#: per cents in three steps; what the fit leaves open of the learning rate moves both alike.
TELLING = 0.05


class Copies(NamedTuple):
    """Share of the weights after that come out bit for bit, of those that moved; from 0 to 1."""

    without: float  #: if each step starts from the narrow weights
    master: float  #: if it starts from a copy that is never rounded

    @property
    def has_master(self) -> bool | None:
        """None where these data do not tell, as a single step never does."""
        return None if abs(self.master - self.without) < TELLING else self.master > self.without


def copies(fit: Fit, histories: tuple[History, ...], norms: Floats) -> Copies | None:
    """Both ways recomputed; None if the weights are kept in float32 or wider, or nothing moved."""
    equal = np.zeros(2)
    count = 0
    for history in histories:
        if not history.narrow:
            return None
        moves = fit.rule.moves(history, fit.clipping.factors(history, norms, fit.numbers), fit.numbers)
        decay = 0.0 if moves.decayed is None else fit.numbers["decay"]
        pulls = np.zeros_like(moves.move) if moves.decayed is None else moves.decayed
        master = history.weights[0]
        moved = history.moved.any(axis=0)
        for t, rate in enumerate(fit.rates):
            # The decay's direction was computed from the narrow weights; the difference to the copy's is below noise
            step = rate * (moves.move[t] + decay * pulls[t])
            master = master - step
            after = history.weights[t + 1]
            for way, made in enumerate((history.weights[t] - step, master)):
                equal[way] += np.count_nonzero((rounded(made, history.stored) == after)[moved])
            count += np.count_nonzero(moved)
    return Copies(*(equal / count)) if count else None


def rounded(values: Floats, dtype: str) -> Floats:
    """To the nearest number of the type, ties to even."""
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float64)
    fraction, exponent = np.frexp(values)
    unit = 2 * UNIT_ROUNDOFF[dtype]
    nearest: Floats = np.ldexp(np.round(fraction * 2 / unit) * unit / 2, exponent)
    return nearest
