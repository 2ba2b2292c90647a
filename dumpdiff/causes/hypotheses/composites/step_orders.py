"""Steps in another order: the shift added before the scaling, the activation before the norm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ....model.arrays import AnyArray
from ....model.trace import FORWARD
from ...fault_case import FaultCase, compute_residual
from ...region import Region, Step
from .activations import ACTIVATION_KINDS
from .change import Change, belongs_to_formula, compute_with, list_floating_inputs

#: Kinds of steps that may be applied earlier.
_MOVED_KINDS = {
    "add", "sub", "mul", "div", "layer_norm", "rms_norm", "batch_norm", "group_norm",
    "instance_norm", "avg_pool", "max_pool", *ACTIVATION_KINDS,
}  # fmt: skip
#: Steps before which a step is applied, at most: a norm that is written out has eight.
_MAX_STEPS = 9
#: Relative L2 within which two orders give one value.
_EQUAL_DISTANCE = 1e-4


def list_earlier_steps(case: FaultCase, region: Region) -> Iterator[Change]:
    """Apply a step to a value before the one that it reads; the steps in between follow it.

    Both values have one size. What else a step reads stays as it is.
    """
    if case.phase != FORWARD:
        return
    for number, step in enumerate(region.steps):
        if step.kind not in _MOVED_KINDS or belongs_to_formula(case, region, number):
            continue
        for position, step_input in list_floating_inputs(step):
            is_main = step_input.array.shape == step.output.shape
            if not is_main or step_input.value < 0 or step_input.order is not None:
                continue
            for value, name, array in _list_earlier_values(region, step_input.value, step):
                moved = compute_with(step, position, array)
                if moved is None or moved.shape != array.shape:
                    continue
                output = _run_between(region, number, step_input.value, value, moved)
                if output is None or compute_residual(output, step.output) < _EQUAL_DISTANCE:
                    continue
                yield Change(
                    number,
                    output.reshape(step.output.shape),
                    "layer-order",
                    f"{step.name} ({step.kind}) applied to {name}, before the steps in between",
                    f"applies it to {step_input.name}",
                )


def list_exchanged_steps(case: FaultCase, region: Region) -> Iterator[Change]:
    """Apply two steps in the other order, in which the other region has their kinds."""
    other_region = case.faulty_region
    if other_region is None:
        return
    other_kinds = [step.kind for step in other_region.steps]
    yield from _list_other_order(region, other_kinds)
    for number, step in enumerate(region.steps):
        readers = region.consumers[number]
        if len(readers) != 1 or step.kind not in other_kinds:
            continue
        reader = region.steps[readers[0]]
        if reader.kind == step.kind or reader.kind not in other_kinds:
            continue
        if other_kinds.index(reader.kind) > other_kinds.index(step.kind):
            continue
        output = _apply_exchanged(step, reader)
        if output is not None and output.size == reader.output.size:
            yield Change(
                readers[0],
                output.reshape(reader.output.shape),
                "layer-order",
                f"{step.kind} ({step.name}) applied to the output of {reader.name}",
                f"applies it before {reader.name}",
            )


def list_activated_addends(case: FaultCase, region: Region) -> Iterator[Change]:
    """Activate the addends of a sum in place of the sum, or the sum in place of its addends."""
    if case.phase != FORWARD:
        return
    steps = {step.value: step for step in region.steps}
    for number, step in enumerate(region.steps):
        if any(item.order is not None for item in step.inputs):
            continue
        producers = [steps[item.value] for item in step.inputs if item.value in steps]
        kinds = {producer.kind for producer in producers}
        output = None
        if step.kind in ACTIVATION_KINDS and kinds == {"add"}:
            output = _sum_arrays([_activate(step, step, x) for x in producers[0].list_arrays()])
            text = f"{step.kind} ({step.name}) of each addend of {producers[0].name}"
            contrast = "applies it to the sum"
        elif step.kind == "add" and len(kinds) == 1 and kinds <= ACTIVATION_KINDS:
            if len(producers) == len(step.inputs):
                total = _sum_arrays([producer.list_arrays()[0] for producer in producers])
                output = None if total is None else _activate(producers[0], step, total)
            text = f"{producers[0].kind} of the sum {step.name}"
            contrast = "applies it to each addend"
        if output is not None:
            yield Change(number, output, "layer-order", text, contrast)


def _activate(activation: Step, step: Step, array: AnyArray) -> AnyArray | None:
    """Return what an activation makes of an array in the shape of a step's output."""
    shaped = replace(activation, output=step.output)
    return compute_with(shaped, 0, np.broadcast_to(array, step.output.shape))


def _sum_arrays(arrays: Sequence[AnyArray | None]) -> AnyArray | None:
    """Return the sum of arrays that can be broadcast; None if one is missing."""
    known_arrays = [array for array in arrays if array is not None]
    if len(known_arrays) < len(arrays):
        return None
    total: AnyArray = np.sum(np.broadcast_arrays(*known_arrays), axis=0)
    return total


def _list_other_order(region: Region, other_kinds: Sequence[str]) -> Iterator[Change]:
    """Apply a chain of steps that work element by element in the order of the other region's."""
    kinds = [step.kind for step in region.steps]
    if sorted(kinds) != sorted(other_kinds) or kinds == list(other_kinds) or len(kinds) <= 2:
        return
    places = _find_chain(region)
    if not places:
        return
    value = region.steps[0].inputs[places[0]].array
    remaining = list(range(len(kinds)))
    for kind in other_kinds:
        number = next(i for i in remaining if kinds[i] == kind)
        remaining.remove(number)
        output = compute_with(region.steps[number], places[number], value)
        if output is None:
            return
        value = output
    names = ", ".join(step.name for step in region.steps)
    text = f"the steps {names} in the order {', '.join(other_kinds)}"
    yield Change(len(kinds) - 1, value, "layer-order", text, f"has the order {', '.join(kinds)}")


def _find_chain(region: Region) -> list[int]:
    """Return which input of each step is the output of the one before; [] if they are no chain.

    All of them work element by element, and the first one reads a value of the same shape.
    """
    shape = region.steps[0].output.shape
    places = []
    for number, step in enumerate(region.steps):
        if number:
            value = region.steps[number - 1].value
            fitting = [i for i, item in enumerate(step.inputs) if item.value == value]
        else:
            fitting = [i for i, item in enumerate(step.inputs) if item.array.shape == shape]
        if not fitting or step.output.shape != shape or step.places is not None:
            return []
        places.append(fitting[0])
    return places


def _apply_exchanged(step: Step, reader: Step) -> AnyArray | None:
    """Return the output of a step that is applied to that of its reader; None if they do not fit.

    The reader is applied to the first input of the step.
    """
    places = [i for i, item in enumerate(reader.inputs) if item.value == step.value]
    x = step.inputs[0].array if step.inputs else np.zeros(0)
    moves_elements = reader.places is not None or step.places is not None
    if len(places) != 1 or x.dtype.kind != "f" or moves_elements:
        return None
    keeps_shape = x.shape == step.output.shape
    inner_shape = reader.output.shape if keeps_shape else x.shape
    outer_shape = inner_shape if keeps_shape else step.output.shape
    inner = replace(reader, output=np.broadcast_to(np.float64(0), inner_shape))
    inputs = reader.list_arrays()
    inputs[places[0]] = x
    y = inner.compute(inputs)
    if y is None:
        return None
    outer = replace(step, output=np.broadcast_to(np.float64(0), outer_shape))
    return outer.compute([y.reshape(inner_shape), *step.list_arrays()[1:]])


def _list_earlier_values(
    region: Region, value: int, step: Step
) -> Iterator[tuple[int, str, AnyArray]]:
    """Yield (class, name, array) of values of one shape from which a value was computed."""
    steps = {other.value: other for other in region.steps}
    front, seen_values = [value], {value}
    for _ in range(_MAX_STEPS):
        next_front = []
        for front_value in front:
            if front_value not in steps:
                continue
            for _, item in list_floating_inputs(steps[front_value]):
                is_plain = item.order is None and item.array.shape == step.output.shape
                is_new = item.value >= 0 and item.value not in seen_values
                if not is_plain or not is_new or item.is_parameter:
                    continue
                seen_values.add(item.value)
                next_front.append(item.value)
                yield item.value, item.name, item.array
        front = next_front


def _run_between(
    region: Region, number: int, read_value: int, value: int, array: AnyArray
) -> AnyArray | None:
    """Return what a step reads if an earlier value is another one; None if it cannot be run."""
    numbers = [n for n in range(number) if region.steps[n].value == read_value]
    if not numbers:
        return None
    part = Region(region.steps[: numbers[0] + 1], None, region.steps[numbers[0]].output.shape)
    with np.errstate(all="ignore"):
        return part.run_with_values({value: array})
