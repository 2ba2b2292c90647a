"""Which norms of both sides are of the same parameters: by name and rule, what is left by order and value."""

from __future__ import annotations

from collections.abc import Sequence

from ...rulebook import Rules
from ..side import Norms
from .couple import By, Couple, Pairing
from .name_pairs import by_name, canonical
from .value_pairs import by_value

__all__ = ["By", "Couple", "Pairing", "pair"]


def pair(target: Norms, reference: Norms, rules: Rules) -> Pairing:
    """Pair two sides, of both of which it is known whether squares or roots were given."""
    sides = target, reference
    paths = canonical(target, rules), canonical(reference, rules)
    couples = by_name(sides, paths, rules)
    left = _left(sides, couples)
    names = tuple({row: path for path, row in side.items()} for side in paths)
    rest = by_value(sides, left, (names[0], names[1]), rules)
    couples += rest.couples
    alone = _left(sides, couples)
    return Pairing(tuple(couples), tuple(alone[0]), tuple(alone[1]), rest.ambiguous)


def _left(sides: tuple[Norms, Norms], couples: Sequence[Couple]) -> tuple[list[int], list[int]]:
    """The rows of both sides that no couple has."""
    taken = (
        {row for couple in couples for row in couple.target},
        {row for couple in couples for row in couple.reference},
    )
    first, second = (
        [row for row in range(len(side)) if row not in done]
        for side, done in zip(sides, taken, strict=True)
    )
    return first, second
