"""Two lists of which places belong together, and how much speaks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .couple import By, Couple
from .item import Lists

#: Two norms this near, beyond their digits, are as good as equal; of many norms few are so by chance.
NEAR = 0.02
LOOSE = 0.2  #: distance at which value says nothing more
MOST = (
    1500  #: norms of one side beyond which no table of all pairs is made: it would fill the memory
)
LAYER = 12  #: places by which a norm may be moved if a layer lists its modules in another order
FINE = 1e-4  #: distances below this are one
_SCALED = 0.01  #: what a factor between the sides costs: without one is simpler


@dataclass(frozen=True)
class Match:
    """Places of both lists that belong together."""

    lists: Lists
    pairs: tuple[tuple[int, int], ...]
    by: By
    scale: float  #: logarithm of the factor between the sides
    score: float  #: how much speaks for it: 1 if all are paired and equal, more if they are in order besides

    def couples(self) -> Iterator[Couple]:
        """One for each pair."""
        for i, j in self.pairs:
            yield self.couple((i,), (j,), self.by)

    def couple(self, target: Sequence[int], reference: Sequence[int], by: By) -> Couple:
        """The rows that stand in some places of both lists, as the same."""
        t, r = (
            [side[at] for at in places]
            for side, places in zip(self.lists, (target, reference), strict=True)
        )
        rows = [tuple(row for item in side for row in item.rows) for side in (t, r)]
        path = (t[0].path if len(t) == 1 else "") or (r[0].path if len(r) == 1 else "")
        return Couple(path, rows[0], rows[1], by if len(rows[0]) == len(rows[1]) else "parts")


def scored(closeness: float, scale: float) -> float:
    """How much speaks for a match."""
    return closeness - _SCALED * (scale != 0)


def cost(far: Any, limit: float) -> Any:
    """What a distance costs, from 0 to 1: by its logarithm, so that an exact match counts more than a near one."""
    return np.log1p(np.minimum(far, limit) / FINE) / np.log1p(limit / FINE)
