"""Pairing norms of which at least one side has no names: by their size, their place in the list and their value.

Frameworks list parameters nearly in the model's order: Megatron-LM's optimizer puts those that are decayed first, and
modules of one layer may stand in another order. Two lists of one order are paired in it; else an optimal assignment is
made, of value first and place second, in which a norm may stay alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ....arrays import Flags, Floats
from ....rules import Rules
from ..side import Norms
from .arranging import Item, Names, arrangements, items_of, together
from .couple import By, Couple, Pairing

#: Two norms this near, beyond their digits, are as good as equal; of many norms few are so by chance.
_NEAR = 0.02
#: Two lists are in one order if so many are near entry by entry, or if their logarithms correlate so well ...
_IN_ORDER, _CORRELATED = 0.4, 0.95
#: ... unless they are so much closer when they may move by some places, as modules of one layer do.
_MORE, _LAYER, _NEARER = 0.3, 12, 0.1
#: Places that a norm may move where nearly all differ, and what each costs, as much as a distance of that.
_MODULES, _MOVE = 4, 0.05
#: Distance at which value says nothing more: lists of equal length, lists of which some must stay alone, named ones.
_LOOSE, _TIGHT, _STRICT = 0.2, 0.02, 0.01
_FINE = 1e-4  #: distances below this are one
_PLACE = 0.25  #: what another place costs at most, where the farthest value costs 1
_ALONE = 0.45  #: what a norm that stays alone costs
_SUM = 5e-3  #: how near the norm of parts together must come to that of a whole
_MOST_PARTS = 4
_LEAST = 0.5  #: share of the longer list that must find partners: else the lists are not of one model
_MOST = 1500  #: norms of one side beyond which no assignment is made: its table would fill the memory
_COARSE = 0.1  #: norms of which digits leave more open prove nothing

_Lists = tuple[list[Item], list[Item]]


@dataclass(frozen=True)
class _Match:
    """Places of both lists that belong together."""

    lists: _Lists
    pairs: tuple[tuple[int, int], ...]
    by: By
    scale: float  #: logarithm of the factor between the sides
    score: float  #: how much speaks for it

    def distance(self, i: int, j: int) -> float:
        return float(_distances(self.lists[0][i : i + 1], self.lists[1][j : j + 1], self.scale)[0, 0])


def by_value(
    sides: tuple[Norms, Norms], rows: tuple[list[int], list[int]], names: tuple[Names, Names], rules: Rules
) -> Pairing:
    """Pair the given rows of both sides; ``names`` has the canonical names of those that have one.

    Where both sides have names that say nothing together, only norms that are as good as equal are paired.
    """
    if not rows[0] or not rows[1]:
        return Pairing(())
    plain = items_of(sides[0], rows[0], names[0]), items_of(sides[1], rows[1], names[1])
    if all(item.path for side in plain for item in side):
        match = _assigned(plain, 0.0, _STRICT)
        return Pairing(tuple(_couples(match)), ambiguous=_ambiguous(match))
    tried = [_matched(lists, scale) for lists in arrangements(plain, rules) for scale in _scales(lists)]
    match = max(tried, key=lambda one: one.score)
    couples = list(_couples(match))
    if match.by == "value":
        couples += _sums(match)
        couples += _between(match, couples)
    for at, side in enumerate(rows):
        paired = sum(len((couple.target, couple.reference)[at]) for couple in couples)
        if len(side) - paired > _LEAST * max(map(len, rows)):
            return Pairing(())
    return Pairing(tuple(couples), ambiguous=_ambiguous(match))


def _scales(lists: _Lists) -> Iterator[float]:
    """Logarithms of factors that may lie between the sides: none, or that of what they are together."""
    yield 0.0
    sums = [sum(item.value**2 for item in side) for side in lists]
    if len(lists[0]) == len(lists[1]) and all(np.isfinite(total) and total > 0 for total in sums):
        scale = 0.5 * float(np.log(sums[0] / sums[1]))
        if abs(scale) > _NEAR:
            yield scale


def _matched(lists: _Lists, scale: float) -> _Match:
    """The better of the order of both lists and an assignment; near norms speak for it, and being in order."""
    equal = len(lists[0]) == len(lists[1])
    longest = max(map(len, lists))
    assigned = _Match(lists, (), "value", scale, -1.0)
    if longest <= _MOST:
        assigned = _assigned(lists, scale, _LOOSE if equal else _TIGHT)
    if not equal:
        return assigned
    if not np.isfinite(_diagonal(lists, scale, range(longest))).all():
        return assigned
    for partners in (_exchanged(lists, scale), _nearby(lists, scale)):
        far = _diagonal(lists, scale, partners)
        near, close = float(np.mean(far <= _NEAR)), float(np.mean(1 - _cost(far, _LOOSE)))
        correlation = _correlation(lists, partners)
        if (near >= _IN_ORDER or correlation >= _CORRELATED) and assigned.score < close + _MORE:
            score = close + _MORE * max(correlation, 0.0) - 0.01 * (scale != 0)
            return _Match(lists, tuple(enumerate(partners)), "order", scale, score)
    return assigned


def _diagonal(lists: _Lists, scale: float, partners: Sequence[int]) -> Floats:
    """The distance of each place of the target's list from its partner."""
    return np.array([_distances([lists[0][i]], [lists[1][j]], scale)[0, 0] for i, j in enumerate(partners)])


def _exchanged(lists: _Lists, scale: float) -> list[int]:
    """The partner of each place of two lists in one order, where some of a layer stand in another order.

    Norms change places among themselves if all that do are ten times nearer to their new partners.
    """
    from scipy.optimize import linear_sum_assignment

    partner = list(range(len(lists[0])))
    far = _diagonal(lists, scale, partner)
    places = np.flatnonzero(far > _FINE)
    if not 1 < len(places) <= _MOST:
        return partner
    t, r = ([side[place] for place in places] for side in lists)
    distances = _distances(t, r, scale)
    near: Flags = (distances <= np.maximum(_FINE, _NEARER * far[places])[:, None]) & (
        np.abs(places[:, None] - places[None, :]) <= _LAYER
    )
    cost = np.where(near, distances, 1.0)
    np.fill_diagonal(cost, 1.0 - _NEAR)  # to stay is better than to go where nothing is near
    moved = linear_sum_assignment(cost)[1].tolist()
    seen: set[int] = set()
    for start in range(len(places)):
        circle = []
        at = start
        while at not in seen:
            seen.add(at)
            circle.append(at)
            at = moved[at]
        if len(circle) > 1 and all(near[one, moved[one]] for one in circle):
            for one in circle:
                partner[int(places[one])] = int(places[moved[one]])
    return partner


def _nearby(lists: _Lists, scale: float) -> list[int]:
    """The partner of each place, at most some places away: for lists of one order but for the modules of each layer."""
    from scipy.optimize import linear_sum_assignment

    count = len(lists[0])
    if count > _MOST:
        return list(range(count))
    moved = np.abs(np.arange(count)[:, None] - np.arange(count)[None, :])
    cost = np.minimum(_distances(*lists, scale), 1.0) + _MOVE * moved
    cost = np.where(moved <= _MODULES, cost, 1e3)
    partners: list[int] = linear_sum_assignment(cost)[1].tolist()
    return partners


def _correlation(lists: _Lists, partners: Sequence[int]) -> float:
    """Of the logarithms of partners; 0 of too few. Zeros, infinities and NaN are left out."""
    values = np.array([[item.value for item in lists[0]], [lists[1][place].value for place in partners]])
    values = values[:, np.all(np.isfinite(values) & (values > 0), axis=0)]
    logs = np.log(values)
    if logs.shape[1] < 5 or not np.all(logs.std(axis=1) > 0):
        return 0.0
    return float(np.corrcoef(logs)[0, 1])


def _distances(t: Sequence[Item], r: Sequence[Item], scale: float) -> Floats:
    """(target, reference): how far apart norms are beyond their digits, as logarithms; infinite if sizes differ."""
    value, slack, size = (
        [np.array([getattr(item, name) for item in side], dtype=float) for side in (t, r)]
        for name in ("value", "slack", "size")
    )
    logs = [np.log(np.maximum(one, 1e-30)) for one in value]
    with np.errstate(invalid="ignore"):
        far = np.abs(logs[0][:, None] - logs[1][None, :] - scale) - slack[0][:, None] - slack[1][None, :]
    far = np.where(np.isnan(far), 1e3, np.maximum(far, 0))
    other: Flags = (size[0][:, None] >= 0) & (size[1][None, :] >= 0) & (size[0][:, None] != size[1][None, :])
    return np.where(other, np.inf, far)


def _assigned(lists: _Lists, scale: float, limit: float) -> _Match:
    """The pairs that cost least together, where a norm may stay alone."""
    from scipy.optimize import linear_sum_assignment

    t, r = lists
    far = _distances(t, r, scale)
    moved = np.abs(np.arange(len(t))[:, None] - np.linspace(0, len(t) - 1, len(r))[None, :])
    cost = np.where(np.isfinite(far), _cost(far, limit) + _PLACE * np.minimum(moved / _LAYER, 1), 1e6)
    table = np.zeros((len(t) + len(r),) * 2)
    table[: len(t), : len(r)] = cost
    table[: len(t), len(r) :] = _ALONE
    table[len(t) :, : len(r)] = _ALONE
    rows, columns = linear_sum_assignment(table)
    pairs = [(i, j) for i, j in zip(rows.tolist(), columns.tolist(), strict=True) if i < len(t) and j < len(r)]
    close = sum(float(1 - _cost(far[i, j], _LOOSE)) for i, j in pairs if moved[i, j] <= _LAYER)
    return _Match(lists, tuple(pairs), "value", scale, close / max(len(t), len(r)) - 0.01 * (scale != 0))


def _cost(far: Any, limit: float) -> Any:
    """What a distance costs, from 0 to 1: by its logarithm, so that an exact match counts more than a near one."""
    return np.log1p(np.minimum(far, limit) / _FINE) / np.log1p(limit / _FINE)


def _couples(match: _Match) -> Iterator[Couple]:
    for i, j in match.pairs:
        yield _couple(match, (i,), (j,), match.by)


def _couple(match: _Match, places_t: Sequence[int], places_r: Sequence[int], by: By) -> Couple:
    t, r = ([side[place] for place in places] for side, places in zip(match.lists, (places_t, places_r), strict=True))
    rows = [tuple(row for item in side for row in item.rows) for side in (t, r)]
    path = (t[0].path if len(t) == 1 else "") or (r[0].path if len(r) == 1 else "")
    return Couple(path, rows[0], rows[1], by if len(rows[0]) == len(rows[1]) else "parts")


def _alone(match: _Match, couples: Sequence[Couple]) -> tuple[list[int], list[int]]:
    """Places of both lists that no couple has."""
    taken = {row for c in couples for row in c.target}, {row for c in couples for row in c.reference}
    first, second = (
        [place for place, item in enumerate(side) if not done.intersection(item.rows)]
        for side, done in zip(match.lists, taken, strict=True)
    )
    return first, second


def _sums(match: _Match) -> list[Couple]:
    """Norms that are alone, and two to four that follow each other on the other side and together are as large."""
    found: list[Couple] = []
    for side in (0, 1):
        alone = _alone(match, [*_couples(match), *found])
        runs = list(_runs(alone[1 - side]))
        if not runs or not alone[side]:
            continue
        wholes = [match.lists[side][place] for place in alone[side]]
        parts = [together([match.lists[1 - side][place] for place in run]) for run in runs]
        far = _distances(wholes, parts, 0.0) if side == 0 else _distances(parts, wholes, 0.0).T
        used: set[int] = set()
        done: set[int] = set()
        for flat in np.argsort(far, axis=None, kind="stable").tolist():
            one, run = divmod(flat, len(runs))
            if far[one, run] > _SUM:
                break
            if one not in done and not used.intersection(runs[run]):
                done.add(one)
                used.update(runs[run])
                whole, pieces = (alone[side][one],), runs[run]
                t, r = (whole, pieces) if side == 0 else (pieces, whole)
                found.append(_couple(match, t, r, "parts"))
    return found


def _runs(alone: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for start in range(len(alone)):
        for length in range(2, _MOST_PARTS + 1):
            run = tuple(alone[start : start + length])
            if len(run) == length and run[-1] - run[0] == length - 1:
                yield run


def _between(match: _Match, couples: Sequence[Couple]) -> list[Couple]:
    """As many norms alone on both sides between two pairs that follow each other: they are pairs by their order."""
    alone = tuple(map(set, _alone(match, couples)))
    ends = [(-1, -1), *sorted(match.pairs), (len(match.lists[0]), len(match.lists[1]))]
    found = []
    for (i, j), (after_i, after_j) in pairwise(ends):
        mine, theirs = range(i + 1, after_i), range(j + 1, after_j)
        if len(mine) == len(theirs) and alone[0].issuperset(mine) and alone[1].issuperset(theirs):
            gap = list(zip(mine, theirs, strict=True))
            if all(np.isfinite(match.distance(a, b)) for a, b in gap):
                found += [_couple(match, (a,), (b,), "order") for a, b in gap]
    return found


def _ambiguous(match: _Match) -> int:
    """Pairs by value where the two norms of another such pair could be exchanged without being farther apart."""
    if match.by != "value" or len(match.pairs) < 2:
        return 0
    t, r = ([side[pair[at]] for pair in match.pairs] for at, side in enumerate(match.lists))
    far = _distances(t, r, match.scale)
    own = np.diag(far)
    fine = np.array([max(a.slack, b.slack) <= _COARSE for a, b in zip(t, r, strict=True)])
    crossed = (far + far.T <= own[:, None] + own[None, :] + _FINE) & fine[:, None] & fine[None, :]
    np.fill_diagonal(crossed, False)
    return int(crossed.any(axis=1).sum())
