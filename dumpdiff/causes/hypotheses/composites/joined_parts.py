"""Tensors that are joined: in the other order, or with a term that only some parts get."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from ....model.arrays import AnyArray
from ...fault_case import FaultCase
from ...region import Region, Step
from .change import Change, compute_with, list_floating_inputs

#: Parts whose orders are tried.
_MAX_PARTS = 4


def list_other_joins(_case: FaultCase, region: Region) -> Iterator[Change]:
    """Join the parts in another order, or leave a term out that is added to one of them."""
    for number, step in enumerate(region.steps):
        axis = _find_axis(step)
        if axis is None:
            continue
        parts = [item for _, item in list_floating_inputs(step)]
        for order in permutations(range(len(parts))):
            if list(order) == sorted(order):
                continue
            names = ", ".join(parts[i].name for i in order)
            output = np.concatenate([parts[i].array for i in order], axis)
            yield Change(number, output, "input-order", f"{step.name} of {names}, in this order")
        for consumer in region.consumers[number]:
            yield from _omit_for_parts(region, number, consumer, axis)


def _find_axis(step: Step) -> int | None:
    """Return the axis along which a step joins a few tensors; None if it does not."""
    parts = [item.array for _, item in list_floating_inputs(step)]
    if step.kind != "concat" or not 1 < len(parts) <= _MAX_PARTS:
        return None
    for axis in range(step.output.ndim):
        try:
            joined = np.concatenate(parts, axis)
        except ValueError:
            continue
        if joined.shape == step.output.shape and np.array_equal(joined, step.output):
            return axis
    return None


def _omit_for_parts(region: Region, number: int, consumer: int, axis: int) -> Iterator[Change]:
    """Leave out what a step adds to the joined tensor, for each part in turn."""
    joined, step = region.steps[number], region.steps[consumer]
    if step.kind != "add" or step.output.shape != joined.output.shape:
        return
    inputs = list_floating_inputs(step)
    others = [(place, item) for place, item in inputs if item.value != joined.value]
    if len(others) != 1:
        return
    place, addend = others[0]
    if addend.array.ndim != step.output.ndim or addend.array.shape[axis] == 1:
        return
    start = 0
    for _, part in list_floating_inputs(joined):
        end = start + part.array.shape[axis]
        kept: AnyArray = addend.array.copy()
        kept[(*[slice(None)] * axis, slice(start, end))] = 0.0
        output = compute_with(step, place, kept)
        if output is not None:
            text = f"without {addend.name} for {part.name} ({step.name})"
            yield Change(consumer, output, "missing-term", text, "adds it to all parts")
        start = end
