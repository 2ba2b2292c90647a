"""What two runs of the reference differ by, laid onto the pairs of the target with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..model.arrays import Floats
from ..model.result import Baseline
from .tolerances import NO_INFORMATION


@dataclass(frozen=True)
class Spread:
    """What a baseline says about every value class of the reference."""

    figures: Baseline
    own: Floats  #: (reference classes,) error of the one run against the other; NaN where it could not be measured
    allowed: Floats  #: (reference classes,) error that two correct runs may show; 0 for what nobody computed

    def of(self, values: tuple[int, ...]) -> tuple[float, float]:
        """(own, allowed) of a value, or of several that stand for one tensor: the largest."""
        rows = list(values)
        return float(np.max(self.own[rows])), float(np.max(self.allowed[rows]))


def widen(pairs: pd.DataFrame, spread: Spread) -> None:
    """Add the column ``spread``, raise ``tolerance`` to what is allowed, and give up ``comparable`` where that is all.

    A baseline that cannot serve changes no judgement.
    """
    values = [
        (value,) if group is None else group.reference
        for value, group in zip(pairs["reference"].tolist(), pairs["group"], strict=True)
    ]
    own, allowed = (
        np.array([spread.of(members) for members in values], dtype=float).reshape(-1, 2).T
    )
    pairs["spread"] = own
    if spread.figures.unusable:
        return
    pairs["tolerance"] = np.maximum(pairs["tolerance"], allowed)
    hidden = (allowed >= NO_INFORMATION) & ~(pairs["error"] > allowed).to_numpy()
    pairs["comparable"] &= ~hidden
