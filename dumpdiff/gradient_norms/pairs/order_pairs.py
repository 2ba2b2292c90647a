"""Pairs by place: lists of one order, in which the modules of a layer may have changed places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...model.arrays import Flags, Floats
from .item import Item, Lists, distances, distances_beside
from .match import FINE, LAYER, LOOSE, MOST, NEAR, Match, cost, scored

#: Two lists are in one order if so many are near entry by entry, or if their logarithms correlate so well ...
_IN_ORDER, _CORRELATED = 0.4, 0.95
#: ... unless they are so much closer where place hardly counts.
_MORE = 0.3
_LEAST = 5  #: norms of which a correlation says something
_NEARER = 0.1  #: share of its distance that one must have from a new partner to change places
#: Places that a norm may move where nearly all differ, and what each costs, as much as a distance of that.
_MODULES, _MOVE = 4, 0.05
_NEVER = 1e3  #: what a farther place costs


def ordered(lists: Lists, scale: float, other: float) -> Match | None:
    """Two lists as long as one another in their order; None if they are in none, or if value says much more.

    ``other`` is the score of a match by value.
    """
    if not np.isfinite(distances_beside(*lists, scale)).all():
        return None
    for partners in (_exchanged(lists, scale), _nearby(lists, scale)):
        far = distances_beside(lists[0], [lists[1][place] for place in partners], scale)
        near, close = float(np.mean(far <= NEAR)), float(np.mean(1 - cost(far, LOOSE)))
        correlation = _correlation(lists, partners)
        if (near >= _IN_ORDER or correlation >= _CORRELATED) and other < close + _MORE:
            score = scored(close + _MORE * max(correlation, 0.0), scale)
            return Match(lists, tuple(enumerate(partners)), "order", scale, score)
    return None


def _exchanged(lists: Lists, scale: float) -> list[int]:
    """The partner of each place where most norms agree, and those that do not may stand in another's place.

    Norms change places among themselves if all that do are ten times nearer to their new partners. A norm of zero, of a
    gradient that is cut off, is near to nothing: it goes where another's leaving makes room.
    """
    from scipy.optimize import linear_sum_assignment

    partner = list(range(len(lists[0])))
    far = distances_beside(*lists, scale)
    places = np.flatnonzero(far > FINE)
    if not 1 < len(places) <= MOST:
        return partner
    t, r = ([side[place] for place in places] for side in lists)
    between = distances(t, r, scale)
    in_reach: Flags = np.abs(places[:, None] - places[None, :]) <= LAYER
    near = in_reach & (between <= np.maximum(FINE, _NEARER * far[places])[:, None])
    cut = in_reach & (_zeros(t)[:, None] | _zeros(r)[None, :])
    worth = np.where(cut, 1.0 - NEAR, np.where(near, between, 1.0))
    np.fill_diagonal(worth, 1.0 - NEAR)  # to stay is better than to go where nothing is near
    moved = linear_sum_assignment(worth)[1].tolist()
    for circle in _circles(moved):
        if len(circle) > 1 and all((near | cut)[one, moved[one]] for one in circle):
            for one in circle:
                partner[int(places[one])] = int(places[moved[one]])
    return partner


def _zeros(items: Sequence[Item]) -> Flags:
    return np.array([item.value == 0 for item in items])


def _circles(moved: Sequence[int]) -> Iterator[list[int]]:
    """Places that change among themselves: the first goes where the second is, the last where the first is."""
    seen: set[int] = set()
    for start in range(len(moved)):
        circle = []
        at = start
        while at not in seen:
            seen.add(at)
            circle.append(at)
            at = moved[at]
        if circle:
            yield circle


def _nearby(lists: Lists, scale: float) -> list[int]:
    """The partner of each place, at most some places away: where nearly all norms differ."""
    from scipy.optimize import linear_sum_assignment

    count = len(lists[0])
    if count > MOST:
        return list(range(count))
    moved = np.abs(np.arange(count)[:, None] - np.arange(count)[None, :])
    worth = np.minimum(distances(*lists, scale), 1.0) + _MOVE * moved
    worth = np.where(moved <= _MODULES, worth, _NEVER)
    partners: list[int] = linear_sum_assignment(worth)[1].tolist()
    return partners


def _correlation(lists: Lists, partners: Sequence[int]) -> float:
    """Of the logarithms of partners; 0 of too few. Zeros, infinities and NaN are left out."""
    values: Floats = np.array(
        [[item.value for item in lists[0]], [lists[1][place].value for place in partners]]
    )
    values = values[:, np.all(np.isfinite(values) & (values > 0), axis=0)]
    logs = np.log(values)
    if logs.shape[1] < _LEAST or not np.all(logs.std(axis=1) > 0):
        return 0.0
    return float(np.corrcoef(logs)[0, 1])
