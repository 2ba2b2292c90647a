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
#: A factor leaves at most this share of the change unexplained; if not, several changes fit.
_MAX_UNEXPLAINED_SHARE = 0.1
#: Largest whole factor of a single number: any number is some multiple of any other.
_MAX_WHOLE_FACTOR = 64


@dataclass(frozen=True)
class StatisticsFactor:
    """The number that maps all statistics of one tensor to those of another."""

    factor: float  #: 0 if the tensor is all zeros
    residual: float  #: largest relative distance that it leaves


def find_statistics_factor(
    target: Sequence[float], reference: Sequence[float], tolerance: float, size: int
) -> StatisticsFactor | None:
    """Return the factor that maximum, minimum, mean and norm are enough to show; None if none.

    It must map all of at least three numbers of the reference, none of them zero, to those of the
    target: an unrelated change does not scale extremes, mean and norm by the same factor. ``size``
    is the number of elements: a single number shows only a whole factor, or the inverse of one.
    """
    t, r = np.array(target, dtype=np.float64), np.array(reference, dtype=np.float64)
    is_known = np.isfinite(t) & np.isfinite(r)
    t, r = t[is_known], r[is_known]
    if len(t) < _MIN_NUMBERS or not np.any(r):
        return None
    if not np.any(t):
        return StatisticsFactor(0.0, 0.0)
    if np.any(np.abs(r) < _NEAR_ZERO * float(np.abs(r).max())):
        return None
    factor = float(t @ r / (r @ r))
    if factor <= 0:
        return None
    residual = float(np.abs(t / r / factor - 1).max())
    limit = _TOLERANCES * tolerance
    change = abs(factor - 1)
    is_exact = residual <= min(limit, _MAX_UNEXPLAINED_SHARE * change) and change > limit
    if not is_exact or (size == 1 and not _is_whole(factor, limit)):
        return None
    return StatisticsFactor(factor, residual)


def _is_whole(factor: float, limit: float) -> bool:
    """Return whether the factor, or its inverse, is a whole number of at most 64."""
    value = max(factor, 1 / factor)
    return value < _MAX_WHOLE_FACTOR + 0.5 and abs(value - round(value)) <= limit * value
