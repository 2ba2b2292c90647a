"""Causes that statistics can show: one tensor is a multiple of the other, or all zeros."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..model.finding import Cause
from ..model.formatting import format_number

#: Numbers that must show the same factor.
_MIN_NUMBERS = 3
#: Share of the largest number below which a number counts as zero and shows no factor.
_NEAR_ZERO = 1e-6
#: A factor and its residual are judged against this many tolerances.
_TOLERANCES = 2


def find_causes_in_statistics(
    target: Sequence[float],
    reference: Sequence[float],
    tolerance: float,
    zero_cause: str,
    factor_cause: str,
) -> tuple[Cause, ...]:
    """Return the causes that maximum, minimum, mean and norm are enough to show.

    A factor must map all of at least three numbers of the reference, none of them zero, to those
    of the target: an unrelated change does not scale extremes, mean and norm by the same factor.
    ``zero_cause`` and ``factor_cause`` are the names of the two possible causes.
    """
    t, r = np.array(target, dtype=np.float64), np.array(reference, dtype=np.float64)
    is_known = np.isfinite(t) & np.isfinite(r)
    t, r = t[is_known], r[is_known]
    if len(t) < _MIN_NUMBERS or not np.any(r):
        return ()
    if not np.any(t):
        return (Cause(zero_cause, "all zeros, by its statistics", 0.0),)
    scale = float(np.abs(r).max())
    if np.any(np.abs(r) < _NEAR_ZERO * scale):
        return ()
    factor = float(t @ r / (r @ r))
    if factor < 0:
        return ()
    residual = float(np.abs(t / r / factor - 1).max())
    limit = _TOLERANCES * tolerance
    if residual > limit or abs(factor - 1) <= limit:
        return ()
    text = (
        f"{factor:.6g} times the reference's, by its statistics; residual {format_number(residual)}"
    )
    return (Cause(factor_cause, text, residual, {"factor": factor}),)
