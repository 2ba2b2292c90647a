"""Steps in another order: the shift added before the scaling, the activation before the norm."""

from __future__ import annotations

from collections.abc import Iterator

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
