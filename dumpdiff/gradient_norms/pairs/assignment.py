"""Pairs by value: those that cost least together, of value first and place second, in which a norm may stay alone."""

from __future__ import annotations

import numpy as np

from .item import Lists, distances
from .match import LAYER, LOOSE, Match, cost, scored

_PLACE = 0.25  #: what another place costs at most, where the farthest value costs 1
_ALONE = 0.45  #: what a norm that stays alone costs
_NEVER = 1e6  #: what two of other sizes cost


def assigned(lists: Lists, scale: float, limit: float) -> Match:
    """The pairs that cost least; ``limit`` is the distance at which value says nothing more."""
    from scipy.optimize import linear_sum_assignment

    t, r = lists
    far = distances(t, r, scale)
    moved = np.abs(np.arange(len(t))[:, None] - np.linspace(0, len(t) - 1, len(r))[None, :])
    worth = np.where(
        np.isfinite(far), cost(far, limit) + _PLACE * np.minimum(moved / LAYER, 1), _NEVER
    )
    # To stay alone is to be paired with one of as many extra places as the other side has norms; those cost nothing.
    table = np.zeros((len(t) + len(r),) * 2)
    table[: len(t), : len(r)] = worth
    table[: len(t), len(r) :] = _ALONE
    table[len(t) :, : len(r)] = _ALONE
    rows, columns = linear_sum_assignment(table)
    pairs = [
        (i, j)
        for i, j in zip(rows.tolist(), columns.tolist(), strict=True)
        if i < len(t) and j < len(r)
    ]
    close = sum(float(1 - cost(far[i, j], LOOSE)) for i, j in pairs if moved[i, j] <= LAYER)
    return Match(lists, tuple(pairs), "value", scale, scored(close / max(len(t), len(r)), scale))
