"""Which ops a drawing shows, who stands beside whom, and on which level: few enough to be read at a glance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush, merge
from itertools import groupby
from typing import Literal

from .dataflow import Dataflow

MOST = 12  #: ops of either side in one drawing
_OTHER_PHASE = 6.0  # how many steps one from the backward pass into the forward pass counts for
_DOWN = (
    1.25  # and one to a reader: where the runs part, what came before says more than what follows
)

Unit = tuple[
    int, int
]  #: (op of the target, op of the reference) that stand side by side; -1 where one is alone
Flows = tuple[Dataflow, Dataflow]
Partners = tuple[
    Mapping[int, int], Mapping[int, int]
]  #: of target ops those of the reference, and the reverse


def nearest(
    flows: Flows, partners: Partners, seeds: Sequence[Unit]
) -> tuple[list[Unit], tuple[int, int]]:
    """(units nearest to the seeds, at most MOST ops of either side; ops of each side as near that were left out).

    Near is what the seeds were computed from and what was computed from them, by steps along the dataflow of either
    side. An op brings its partner along, and those with a partner come before those of the same distance without.
    """
    shown: dict[Unit, None] = {}
    omitted = [0, 0]
    walk = merge(_walk(flows, partners, seeds, "up"), _walk(flows, partners, seeds, "down"))
    for _, ring in groupby(walk, key=lambda step: step[0]):
        for unit in sorted(
            dict.fromkeys(unit for _, _, unit in ring if unit not in shown), key=lambda u: -1 in u
        ):
            sides = [side for side in (0, 1) if unit[side] >= 0]
            if all(sum(other[side] >= 0 for other in shown) < MOST for side in sides):
                shown[unit] = None
            else:
                for side in sides:
                    omitted[side] += 1
        if any(omitted):
            break
    return list(shown), (omitted[0], omitted[1])


def _walk(
    flows: Flows, partners: Partners, seeds: Sequence[Unit], way: Literal["up", "down"]
) -> Iterator[tuple[float, int, Unit]]:
    """(distance, running number, unit) of all that lies one way of the seeds, nearest first (Dijkstra)."""
    tables = [flow.above if way == "up" else flow.below for flow in flows]
    step = 1.0 if way == "up" else _DOWN
    waiting: list[tuple[float, int, Unit]] = [
        (0.0, number, unit) for number, unit in enumerate(seeds)
    ]
    number = len(waiting)
    done: set[Unit] = set()
    while waiting:
        distance, place, unit = heappop(waiting)
        if unit in done:
            continue
        done.add(unit)
        yield distance, place, unit
        for side in (0, 1):
            flow = flows[side]
            for link in tables[side].get(unit[side], ()):
                other = link.maker if way == "up" else link.reader
                cost = step if flow.phase(other) == flow.phase(unit[side]) else step * _OTHER_PHASE
                heappush(waiting, (distance + cost, number, beside(partners, side, other)))
                number += 1


def beside(partners: Partners, side: int, op: int) -> Unit:
    """The unit of an op of side 0, the target, or 1."""
    other = partners[side].get(op, -1)
    return (op, other) if side == 0 else (other, op)


def levels(units: Iterable[Unit], flows: Flows) -> dict[Unit, int]:
    """Each unit with its level, from 0: data flows to larger ones, and nobody stands higher than its readers need.

    Units are given in order of importance. Two ops that cannot stand side by side because data would then flow in a
    circle (they are no true partners, or repeat what was computed before) become two units.
    """
    kept: dict[Unit, int] = {}
    for unit in units:
        found = _layered([*kept, unit], flows)
        kept = (
            found
            if found is not None
            else _layered([*kept, (unit[0], -1), (-1, unit[1])], flows) or kept
        )
    return kept


def _layered(units: Sequence[Unit], flows: Flows) -> dict[Unit, int] | None:
    """The level of each unit, None if data flows in a circle."""
    above = _above(units, flows)
    level: dict[Unit, int] = {}
    while len(level) < len(units):
        ready = [unit for unit in units if unit not in level and above[unit] <= level.keys()]
        if not ready:
            return None
        level.update(
            {unit: max((level[other] + 1 for other in above[unit]), default=0) for unit in ready}
        )
    for unit in sorted(units, key=lambda u: -level[u]):
        readers = [level[other] for other in units if unit in above[other]]
        level[unit] = max(level[unit], min(readers, default=0) - 1)
    return level


def _above(units: Sequence[Unit], flows: Flows) -> dict[Unit, set[Unit]]:
    """Per unit those of the units that make what it reads, on either side."""
    unit_of = [{unit[side]: unit for unit in units if unit[side] >= 0} for side in (0, 1)]
    return {
        unit: {
            unit_of[side][link.maker]
            for side in (0, 1)
            for link in flows[side].above.get(unit[side], ())
            if link.maker in unit_of[side]
        }
        for unit in units
    }
