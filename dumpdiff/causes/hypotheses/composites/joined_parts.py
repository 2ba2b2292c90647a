"""Tensors that are joined: others, in the other order, or with a term that only some parts get."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import numpy as np

from ....model.arrays import AnyArray
from ....model.trace import FORWARD
from ...fault_case import FaultCase, compute_residual
from ...region import Region, Step
from .change import Change, compute_with, list_floating_inputs

#: Parts whose orders are tried.
_MAX_PARTS = 4
#: Numbers that mark the elements of one part, above all that a dump holds.
_FIRST_TAG = 1e12
#: Relative L2 within which the values of the two sides are one value.
_EQUAL_DISTANCE = 1e-4
#: Share of the elements of a joined tensor whose origin must be known; the rest are other parts.
_MIN_EXPLAINED = 0.5


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


def list_foreign_joins(case: FaultCase, region: Region) -> Iterator[Change]:
    """Join what the other side joined: values that both sides have, of other steps of a sequence.

    Several joins may follow one another. Each part of the other side's tensor must be known.
    """
    for number, step in enumerate(region.steps):
        is_last = all(region.steps[other].kind != "concat" for other in region.consumers[number])
        if step.kind != "concat" or not is_last or case.phase != FORWARD:
            continue
        for operand in case.faulty_operands:
            if operand.agrees or operand.parameter or operand.shape != step.output.shape:
                continue
            texts = _describe_joined(case, region, number, operand.array)
            if texts:
                shown, more = texts[0], len(texts) - 1
                text = f"{shown} in {step.name}{f', and {more} more' if more else ''}"
                yield Change(number, operand.array, "input-source", text)


def _describe_joined(case: FaultCase, region: Region, number: int, joined: AnyArray) -> list[str]:
    """Return which values take the place of others in a joined tensor; none if one is unknown."""
    part = replace(
        region,
        steps=region.steps[: number + 1],
        order=None,
        shape=region.steps[number].output.shape,
    )
    leaves = {
        item.value: item
        for step in part.steps
        for _, item in list_floating_inputs(step)
        if item.agrees and step.kind == "concat" and item.array.size > 1
    }
    if not leaves:
        return []
    texts = []
    is_explained = joined == part.steps[number].output
    for value, leaf in leaves.items():
        tags = _FIRST_TAG + np.arange(leaf.array.size, dtype=float).reshape(leaf.array.shape)
        tagged = part.run_with_values({value: tags})
        if tagged is None:
            return []
        is_own = tagged >= _FIRST_TAG
        block = np.empty(leaf.array.size)
        block[(tagged[is_own] - _FIRST_TAG).astype(int)] = joined[is_own]
        if compute_residual(block, leaf.array.reshape(-1)) <= _EQUAL_DISTANCE:
            is_explained = is_explained | is_own
            continue
        others = [(item.name, item.array) for item in leaves.values()]
        others += [(item.name, item.array) for item in case.find_other_values(leaf.array.shape)]
        name = next(
            (
                name
                for name, array in others
                if array.size == block.size
                and compute_residual(block, array.reshape(-1)) <= _EQUAL_DISTANCE
            ),
            "",
        )
        if not name:
            return []
        is_explained = is_explained | is_own
        texts.append(f"{name} in the place of {leaf.name}")
    return texts if np.mean(is_explained) > _MIN_EXPLAINED else []


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
