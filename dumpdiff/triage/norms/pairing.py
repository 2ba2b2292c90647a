"""Which norms of both sides are of the same parameters: by name and rule, what is left by value and order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ...optimizers.inputs import clean
from ...rules import Rules
from .anonymous import by_value
from .couples import Couple, Pairing
from .side import Norms

_EXPERTS = re.compile(r"^(.*\bmlp\.experts\.)(gate_up_proj|gate_proj|up_proj|down_proj)\.(weight|bias)$")


def pair(target: Norms, reference: Norms, rules: Rules) -> Pairing:
    """Pair two sides, of both of which roots are given or meant."""
    sides = target, reference
    paths = _paths(target, rules), _paths(reference, rules)
    couples = _by_name(sides, paths, rules)
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
        [row for row in range(len(side)) if row not in done] for side, done in zip(sides, taken, strict=True)
    )
    return first, second


def _paths(side: Norms, rules: Rules) -> dict[str, int]:
    """Canonical name, or the name itself where no rule knows it -> row."""
    names = [clean(name) for name in side.names]
    canonical = rules.parameters(names)
    found: dict[str, int] = {}
    for row, name in enumerate(names):
        if name:
            found.setdefault(canonical.get(name, name), row)
    return found


def _by_name(sides: tuple[Norms, Norms], paths: tuple[dict[str, int], dict[str, int]], rules: Rules) -> list[Couple]:
    found: list[Couple] = []
    taken: tuple[set[int], set[int]] = set(), set()
    for path, row in paths[0].items():
        other = paths[1].get(path)
        if other is not None:
            same = clean(sides[0].names[row]) == clean(sides[1].names[other])
            found.append(Couple(path, (row,), (other,), "name" if same else "rule"))
            taken[0].add(row)
            taken[1].add(other)
    for one, many in ((0, 1), (1, 0)):
        free = {name: row for name, row in paths[many].items() if row not in taken[many]}
        for path, row in paths[one].items():
            if row in taken[one] or not (names := _split(path, free, rules)):
                continue
            parts = tuple(free.pop(name) for name in names)
            found.append(Couple(path, (row,), parts, "parts") if one == 0 else Couple(path, parts, (row,), "parts"))
            taken[one].add(row)
            taken[many].update(parts)
    return found


def _split(path: str, free: Mapping[str, int], rules: Rules) -> tuple[str, ...]:
    """Names of the other side that together hold what ``path`` does; () if there are none."""
    for names in (*rules.split(path), _experts(path, free)):
        parts = [(name,) if name in free else _split(name, free, rules) for name in names]
        if parts and all(parts):
            return tuple(name for part in parts for name in part)
    return ()


def _experts(path: str, free: Mapping[str, int]) -> tuple[str, ...]:
    """The experts of a stack, one by one; () of anything else."""
    match = _EXPERTS.match(path)
    if match is None:
        return ()
    one = re.compile(re.escape(match[1]) + r"(\d+)\.")
    numbers = sorted({int(found[1]) for name in free if (found := one.match(name))})
    return tuple(f"{match[1]}{number}.{match[2]}.{match[3]}" for number in numbers)
