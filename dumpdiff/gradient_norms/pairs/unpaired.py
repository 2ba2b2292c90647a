"""What pairs by value leave alone: a fused parameter beside its parts, and norms that differ between two that agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from .couple import Couple
from .item import distances, distances_beside, together
from .match import Match

_SUM = 5e-3  #: how near the norm of parts together must come to that of a whole
_MOST_PARTS = 4


def sums(match: Match) -> list[Couple]:
    """Norms that are alone, and two to four that follow each other on the other side and together are as large."""
    found: list[Couple] = []
    for side in (0, 1):
        alone = _alone(match, [*match.couples(), *found])
        runs = list(_runs(alone[1 - side]))
        if not runs or not alone[side]:
            continue
        wholes = [match.lists[side][place] for place in alone[side]]
        parts = [together([match.lists[1 - side][place] for place in run]) for run in runs]
        far = distances(wholes, parts, 0.0)
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
                found.append(match.couple(t, r, "parts"))
    return found


def _runs(alone: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Two to four places that follow each other, all alone."""
    for start in range(len(alone)):
        for length in range(2, _MOST_PARTS + 1):
            run = tuple(alone[start : start + length])
            if len(run) == length and run[-1] - run[0] == length - 1:
                yield run


def between(match: Match, couples: Sequence[Couple]) -> list[Couple]:
    """As many norms alone on both sides between two pairs that follow each other: they are pairs by their order."""
    alone = tuple(map(set, _alone(match, couples)))
    ends = [(-1, -1), *sorted(match.pairs), (len(match.lists[0]), len(match.lists[1]))]
    found = []
    for (i, j), (after_i, after_j) in pairwise(ends):
        mine, theirs = range(i + 1, after_i), range(j + 1, after_j)
        if (
            len(mine) == len(theirs) > 0
            and alone[0].issuperset(mine)
            and alone[1].issuperset(theirs)
        ):
            t, r = (
                [side[at] for at in gap]
                for side, gap in zip(match.lists, (mine, theirs), strict=True)
            )
            if np.isfinite(distances_beside(t, r, match.scale)).all():
                found += [
                    match.couple((a,), (b,), "order") for a, b in zip(mine, theirs, strict=True)
                ]
    return found


def _alone(match: Match, couples: Sequence[Couple]) -> tuple[list[int], list[int]]:
    """Places of both lists that no couple has."""
    taken = (
        {row for c in couples for row in c.target},
        {row for c in couples for row in c.reference},
    )
    first, second = (
        [place for place, item in enumerate(side) if not done.intersection(item.rows)]
        for side, done in zip(match.lists, taken, strict=True)
    )
    return first, second
