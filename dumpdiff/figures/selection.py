"""Which ops a drawing shows, which of them are paired, and at which level each one is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush, merge
from itertools import groupby
from typing import Literal

from .dataflow import Dataflow

MAX_OPS = 12  #: ops of either side in one drawing: few enough to be read at a glance
#: Cost of a step between two phases, in steps: the drawing stays in the phase of the finding.
_PHASE_CHANGE_COST = 6.0
#: Cost of a step to a consumer: the inputs of a divergence say more than what follows from it.
_CONSUMER_COST = 1.25

#: (op of the target, op of the reference) that are drawn on one level; -1 if an op is unpaired.
Unit = tuple[int, int]
Flows = tuple[Dataflow, Dataflow]
#: Of target ops their reference ops, and the reverse.
Partners = tuple[Mapping[int, int], Mapping[int, int]]


def select_nearest(
    flows: Flows, partners: Partners, seeds: Sequence[Unit]
) -> tuple[list[Unit], tuple[int, int]]:
    """Return (units nearest to the seeds, per side the number of ops at that distance left out).

    The units hold at most MAX_OPS ops of either side. The distance is the number of steps along the
    dataflow of either side, to producers or to consumers. An op is selected together with its
    partner; at the same distance, paired ops come before unpaired ones.
    """
    selected: dict[Unit, None] = {}
    n_selected, n_omitted = [0, 0], [0, 0]
    to_producers = _walk_from(flows, partners, seeds, "producers")
    to_consumers = _walk_from(flows, partners, seeds, "consumers")
    for _, steps in groupby(merge(to_producers, to_consumers), key=lambda step: step[0]):
        new_units = dict.fromkeys(unit for _, _, unit in steps if unit not in selected)
        for unit in sorted(new_units, key=_is_unpaired):
            sides = [side for side in (0, 1) if unit[side] >= 0]
            fits = all(n_selected[side] < MAX_OPS for side in sides)
            if fits:
                selected[unit] = None
            counts = n_selected if fits else n_omitted
            for side in sides:
                counts[side] += 1
        if any(n_omitted):
            break
    return list(selected), (n_omitted[0], n_omitted[1])


def _is_unpaired(unit: Unit) -> bool:
    return -1 in unit


def _walk_from(
    flows: Flows,
    partners: Partners,
    seeds: Sequence[Unit],
    direction: Literal["producers", "consumers"],
) -> Iterator[tuple[float, int, Unit]]:
    """Yield (distance, serial number, unit) in one direction, nearest first (Dijkstra)."""
    to_producers = direction == "producers"
    step_cost = 1.0 if to_producers else _CONSUMER_COST
    queue = [(0.0, number, unit) for number, unit in enumerate(seeds)]
    next_number = len(queue)
    visited: set[Unit] = set()
    while queue:
        distance, number, unit = heappop(queue)
        if unit in visited:
            continue
        visited.add(unit)
        yield distance, number, unit
        for side, flow in enumerate(flows):
            op = unit[side]
            for link in flow.list_inputs(op) if to_producers else flow.list_outputs(op):
                other_op = link.producer if to_producers else link.consumer
                cost = step_cost
                if flow.get_phase(other_op) != flow.get_phase(op):
                    cost *= _PHASE_CHANGE_COST
                neighbor = make_unit(partners, side, other_op)
                heappush(queue, (distance + cost, next_number, neighbor))
                next_number += 1


def make_unit(partners: Partners, side: int, op: int) -> Unit:
    """Return the unit of an op of side 0, the target, or 1, the reference."""
    partner = partners[side].get(op, -1)
    return (op, partner) if side == 0 else (partner, op)


def assign_levels(units: Iterable[Unit], flows: Flows) -> dict[Unit, int]:
    """Return each unit with its level: data flows from lower to higher levels, which begin at 0.

    Each unit is as close to its consumers as possible. Units come in order of importance. Two ops
    that would close a cycle as one unit become two units: they are not truly partners, or one of
    them repeats an earlier computation.
    """
    levels: dict[Unit, int] = {}
    for unit in units:
        new_levels = _compute_levels([*levels, unit], flows)
        if new_levels is None:
            target_op, reference_op = unit
            new_levels = _compute_levels([*levels, (target_op, -1), (-1, reference_op)], flows)
        levels = new_levels or levels
    return levels


def _compute_levels(units: Sequence[Unit], flows: Flows) -> dict[Unit, int] | None:
    """Return the level of each unit, None if data flows in a cycle."""
    producers = _find_producers(units, flows)
    levels: dict[Unit, int] = {}
    while len(levels) < len(units):
        ready = [u for u in units if u not in levels and producers[u] <= levels.keys()]
        if not ready:
            return None
        new_levels = {}
        for unit in ready:
            new_levels[unit] = max((levels[p] + 1 for p in producers[unit]), default=0)
        levels.update(new_levels)
    _move_to_consumers(levels, producers)
    return levels


def _move_to_consumers(levels: dict[Unit, int], producers: Mapping[Unit, set[Unit]]) -> None:
    """Move each unit down to the level before its first consumer, last levels first."""
    for unit in sorted(levels, key=lambda u: -levels[u]):
        consumer_levels = [level for other, level in levels.items() if unit in producers[other]]
        levels[unit] = max(levels[unit], min(consumer_levels, default=0) - 1)


def _find_producers(units: Sequence[Unit], flows: Flows) -> dict[Unit, set[Unit]]:
    """Return per unit those of the units that produce its inputs, on either side."""
    producers: dict[Unit, set[Unit]] = {unit: set() for unit in units}
    for side, flow in enumerate(flows):
        unit_of_op = {unit[side]: unit for unit in units if unit[side] >= 0}
        for unit in units:
            for link in flow.list_inputs(unit[side]):
                producer = unit_of_op.get(link.producer)
                if producer is not None:
                    producers[unit].add(producer)
    return producers
