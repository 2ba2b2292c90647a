"""What four numbers of either side can tell: that one tensor is a multiple of the other, or all zeros."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..model.formatting import number
from ..model.finding import Cause

_ENOUGH = 3  # numbers that must tell the same factor


def find_causes_in_statistics(
    target: Sequence[float], reference: Sequence[float], tolerance: float, names: tuple[str, str]
) -> tuple[Cause, ...]:
    """Causes by maximum, minimum, mean and norm alone; ``names`` are those of a zero and of a factor.

    A factor c must carry all of at least three numbers of the reference, none of them zero, onto the target's: an
    unrelated change does not scale extremes, mean and norm alike.
    """
    ours, theirs = np.array(target, dtype=np.float64), np.array(reference, dtype=np.float64)
    known = np.isfinite(ours) & np.isfinite(theirs)
    ours, theirs = ours[known], theirs[known]
    if len(ours) < _ENOUGH or not np.any(theirs):
        return ()
    if not np.any(ours):
        return (Cause(names[0], "all zeros, by its statistics", 0.0),)
    scale = float(np.abs(theirs).max())
    if np.any(np.abs(theirs) < 1e-6 * scale):
        return ()
    c = float(ours @ theirs / (theirs @ theirs))
    if c < 0:
        return ()
    left = float(np.abs(ours / theirs / c - 1).max())
    if left > 2 * tolerance or abs(c - 1) <= 2 * tolerance:
        return ()
    said = f"{c:.6g} times the reference's, by its statistics; residual {number(left)}"
    return (Cause(names[1], said, left, {"factor": c}),)
