"""Pairing norms of which both sides have names: the same name, what means the same, a fused parameter and its parts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...optimizers.inputs import clean
from ...rulebook import Rules
from ..side import Norms
from .couple import Couple

_EXPERTS = re.compile(
    r"^(.*\bmlp\.experts\.)(gate_up_proj|gate_proj|up_proj|down_proj)\.(weight|bias)$"
)


def canonical(side: Norms, rules: Rules) -> dict[str, int]:
    """Canonical name, or the name itself where no rule knows it -> row."""
    names = [clean(name) for name in side.names]
    known = rules.parameters(names)
    found: dict[str, int] = {}
    for row, name in enumerate(names):
        if name:
            found.setdefault(known.get(name, name), row)
    return found


def by_name(
    sides: tuple[Norms, Norms], paths: tuple[dict[str, int], dict[str, int]], rules: Rules
) -> list[Couple]:
    """Couples of parameters of one name, and of a parameter with those that together hold the same."""
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
            found.append(
                Couple(path, (row,), parts, "parts")
                if one == 0
                else Couple(path, parts, (row,), "parts")
            )
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
