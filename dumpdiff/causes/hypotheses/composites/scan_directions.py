"""A recurrence that is written out and runs along its sequence in the other direction.

Each step reads its own part of some longer values: the part at place t of a sequence of T steps.
In the other direction it reads the part at place T - 1 - t of each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ....model.arrays import AnyArray
from ....model.trace import FORWARD
from ...fault_case import FaultCase, Operand, compute_residual
from ...region import Region, StepInput
from .change import Change, list_floating_inputs

#: Fewest steps of a sequence: of two, the other part may be read for another reason.
_MIN_STEPS = 3
#: Axes of a value that holds a sequence: batch, steps, channels.
_MIN_SEQUENCE_AXES = 3
#: Fewest elements of a part: fewer are found in another value by chance.
_MIN_ELEMENTS = 4
#: Relative L2 within which a tensor is a part of another one, and relative distance of its first
#: element, which rules out most.
_EQUAL_DISTANCE, _FIRST_DISTANCE = 1e-6, 1e-4
#: Elements of a sequence, and lengths that are tried.
_MAX_ELEMENTS, _MAX_LENGTHS = 1 << 20, 4


@dataclass(frozen=True, eq=False)
class _Part:
    """What a step reads at one place of a sequence."""

    name: str  #: of the whole value
    axis: int
    n_steps: int
    place: int  #: in the sequence
    mirrored: AnyArray  #: what it reads if the sequence is reversed


def list_reversed_scans(case: FaultCase, region: Region) -> Iterator[Change]:
    """Read each part of a sequence from the other end, in all steps."""
    if case.phase != FORWARD:
        return
    groups: dict[tuple[int, int], dict[int, _Part]] = {}
    for value, part in _find_parts(case, region).items():
        groups.setdefault((part.axis, part.n_steps), {})[value] = part
    last = len(region.steps) - 1
    for (axis, _), parts in groups.items():
        names = " and ".join(dict.fromkeys(part.name for part in parts.values()))
        directions = ["from its start", "in reverse, from its end"]
        if _runs_from_end(list(parts.values())):
            directions.reverse()
        yield Change(
            last,
            region.steps[last].output,
            "scan-direction",
            f"{names} read along axis {axis} {directions[1]}",
            f"reads it {directions[0]}",
            replaced_values={value: part.mirrored for value, part in parts.items()},
        )


def _runs_from_end(parts: Sequence[_Part]) -> bool:
    """Return whether the steps, in execution order, read later places first."""
    places_of: dict[str, list[int]] = {}
    for part in parts:
        places_of.setdefault(part.name, []).append(part.place)
    places = max(places_of.values(), key=len)
    if len(places) > 1:
        return places[0] > places[-1]
    return places[0] >= parts[0].n_steps / 2


def _find_parts(case: FaultCase, region: Region) -> dict[int, _Part]:
    """Return the parts of sequences that the steps of a region read, by their classes."""
    inputs = {
        step_input.value: step_input
        for step in region.steps
        for _, step_input in list_floating_inputs(step)
        if step_input.value >= 0 and not step_input.is_parameter
    }
    lengths = _list_lengths(case)
    parts: dict[int, _Part] = {}
    for value, step_input in inputs.items():
        part = _find_part(step_input, case.operands)
        for length in lengths:
            if part is None and length * step_input.array.size <= _MAX_ELEMENTS:
                wholes = case.find_other_values((length * step_input.array.size,))
                part = _find_part(step_input, wholes)
        if part is not None:
            parts[value] = part
    return parts


def _list_lengths(case: FaultCase) -> list[int]:
    """Return the lengths that the sequence may have: of the first axes of values around it."""
    lengths = {
        length
        for operand in case.operands
        if len(operand.shape) >= _MIN_SEQUENCE_AXES and not operand.parameter
        for length in operand.shape[:2]
    }
    return sorted(length for length in lengths if length >= _MIN_STEPS)[:_MAX_LENGTHS]


def _find_part(step_input: StepInput, operands: Sequence[Operand]) -> _Part | None:
    """Return the part that an input is of one of some operands; None if it is none."""
    array = step_input.array
    if array.size < _MIN_ELEMENTS:
        return None
    for operand in operands:
        n_elements = int(np.prod(operand.shape))
        n_steps, rest = divmod(n_elements, array.size)
        if rest or n_steps < _MIN_STEPS or n_elements > _MAX_ELEMENTS:
            continue
        if not operand.agrees or not operand.is_floating:
            continue
        for axis, length in enumerate(operand.shape[:-1]):
            if length != n_steps:
                continue
            rows = np.moveaxis(operand.array, axis, 0).reshape(n_steps, array.size)
            is_likely = np.isclose(rows[:, 0], array.reshape(-1)[0], rtol=_FIRST_DISTANCE)
            for place in np.flatnonzero(is_likely).tolist():
                if compute_residual(rows[place], array) <= _EQUAL_DISTANCE:
                    mirrored = rows[n_steps - 1 - place].reshape(array.shape)
                    return _Part(operand.name, axis, n_steps, place, mirrored)
    return None
