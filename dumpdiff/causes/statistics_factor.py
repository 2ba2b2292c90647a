"""What statistics alone can show: one tensor is a multiple of the other, or all zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Numbers that must show the same factor.
_MIN_NUMBERS = 3
#: Share of the largest number below which a number counts as zero and shows no factor.
_NEAR_ZERO = 1e-6
#: A factor and its residual are judged against this many tolerances.
_TOLERANCES = 2


@dataclass(frozen=True)
class StatisticsFactor:
    """The number that maps all statistics of one tensor to those of another."""

    factor: float  #: 0 if the tensor is all zeros
    residual: float  #: largest relative distance that it leaves


def find_statistics_factor(
    target: Sequence[float], reference: Sequence[float], tolerance: float
) -> StatisticsFactor | None:
    """Return the factor that maximum, minimum, mean and norm are enough to show; None if none.

    It must map all of at least three numbers of the reference, none of them zero, to those of the
    target: an unrelated change does not scale extremes, mean and norm by the same factor.
    """
    t, r = np.array(target, dtype=np.float64), np.array(reference, dtype=np.float64)
    is_known = np.isfinite(t) & np.isfinite(r)
    t, r = t[is_known], r[is_known]
    if len(t) < _MIN_NUMBERS or not np.any(r):
        return None
    if not np.any(t):
        return StatisticsFactor(0.0, 0.0)
    scale = float(np.abs(r).max())
    if np.any(np.abs(r) < _NEAR_ZERO * scale):
        return None
    factor = float(t @ r / (r @ r))
    if factor < 0:
        return None
    residual = float(np.abs(t / r / factor - 1).max())
    limit = _TOLERANCES * tolerance
    if residual > limit or abs(factor - 1) <= limit:
        return None
    return StatisticsFactor(factor, residual)
