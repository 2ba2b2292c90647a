"""Pairing norms of which at least one side has no names: by their size, their place in the list and their value.

Frameworks list parameters nearly in the model's order: Megatron-LM's optimizer puts those that are decayed first, and
modules of one layer may stand in another order. Each side is arranged as the other may list it; the arrangement counts
for which most speaks. Lists of one order are paired in it, others by value.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...rulebook import Rules
from ..side import Norms
from .arrangements import arrangements
from .assignment import assigned
from .couple import Pairing
from .item import Lists, Names, distances, items_of
from .match import FINE, LOOSE, MOST, NEAR, Match
from .order_pairs import ordered
from .unpaired import between, sums

#: Distance at which value says nothing more where some norms must stay alone, and where both sides have names.
_TIGHT, _STRICT = 0.02, 0.01
_LEAST = (
    0.5  #: share of the longer list that must find partners: else the lists are not of one model
)
_COARSE = 0.1  #: norms of which digits leave more open prove nothing


def by_value(
    sides: tuple[Norms, Norms],
    rows: tuple[list[int], list[int]],
    names: tuple[Names, Names],
    rules: Rules,
) -> Pairing:
    """Pair the given rows of both sides; ``names`` has the canonical names of those that have one.

    Where both sides have names that say nothing together, only norms that are as good as equal are paired.
    """
    if not rows[0] or not rows[1]:
        return Pairing(())
    plain = items_of(sides[0], rows[0], names[0]), items_of(sides[1], rows[1], names[1])
    if all(item.path for side in plain for item in side):
        match = assigned(plain, 0.0, _STRICT)
        return Pairing(tuple(match.couples()), ambiguous=_ambiguous(match))
    tried = [
        _matched(lists, scale) for lists in arrangements(plain, rules) for scale in _scales(lists)
    ]
    match = max(tried, key=lambda one: one.score)
    couples = list(match.couples())
    if match.by == "value":
        couples += sums(match)
        couples += between(match, couples)
    for at, side in enumerate(rows):
        paired = sum(len((couple.target, couple.reference)[at]) for couple in couples)
        if len(side) - paired > _LEAST * max(map(len, rows)):
            return Pairing(())
    return Pairing(tuple(couples), ambiguous=_ambiguous(match))


def _scales(lists: Lists) -> Iterator[float]:
    """Logarithms of factors that may lie between the sides: none, or that of what they are together."""
    yield 0.0
    squares = [sum(item.value**2 for item in side) for side in lists]
    if len(lists[0]) == len(lists[1]) and all(
        np.isfinite(total) and total > 0 for total in squares
    ):
        scale = 0.5 * float(np.log(squares[0] / squares[1]))
        if abs(scale) > NEAR:
            yield scale


def _matched(lists: Lists, scale: float) -> Match:
    """By place if the lists are of one length and order, else by value."""
    equal = len(lists[0]) == len(lists[1])
    by_size = Match(lists, (), "value", scale, -1.0)
    if max(map(len, lists)) <= MOST:
        by_size = assigned(lists, scale, LOOSE if equal else _TIGHT)
    return (ordered(lists, scale, by_size.score) if equal else None) or by_size


def _ambiguous(match: Match) -> int:
    """Pairs by value where the two norms of another such pair could be exchanged without being farther apart."""
    if match.by != "value" or len(match.pairs) < 2:
        return 0
    t, r = ([side[pair[at]] for pair in match.pairs] for at, side in enumerate(match.lists))
    far = distances(t, r, match.scale)
    own = np.diag(far)
    fine = np.array([max(a.slack, b.slack) <= _COARSE for a, b in zip(t, r, strict=True)])
    crossed = (far + far.T <= own[:, None] + own[None, :] + FINE) & fine[:, None] & fine[None, :]
    np.fill_diagonal(crossed, False)
    return int(crossed.any(axis=1).sum())
