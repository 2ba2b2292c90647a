"""Gated products whose gate and other factor are exchanged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ....model.arrays import AnyArray
from ...fault_case import FaultCase
from ...region import Region, Step
from .activations import ACTIVATION_KINDS
from .change import Change, compute_with, list_floating_inputs

#: The operator that splits its input into a value and its gate, a sigmoid.
_FUSED_KIND = "glu"


def list_swapped_gates(_case: FaultCase, region: Region) -> Iterator[Change]:
    """Compute f(up) gate in place of f(gate) up, written out or as one op."""
    numbers_by_value = {step.value: number for number, step in enumerate(region.steps)}
    for number, step in enumerate(region.steps):
        if step.kind == _FUSED_KIND:
            outputs = _swap_halves(step)
        else:
            outputs = _swap_factors(region, step, numbers_by_value)
        for output in outputs:
            yield Change(number, output, "gate-up-swapped", "gate and up swapped")


def _swap_halves(step: Step) -> Iterator[AnyArray]:
    """Yield the output of a fused gate whose input has its halves exchanged."""
    inputs = list_floating_inputs(step)
    if len(inputs) != 1:
        return
    position, step_input = inputs[0]
    x, shape = step_input.array, step.output.shape
    if x.ndim != len(shape):
        return
    for axis, length in enumerate(x.shape):
        if length == 2 * shape[axis]:
            output = compute_with(step, position, np.roll(x, shape[axis], axis))
            if output is not None:
                yield output


def _swap_factors(
    region: Region, step: Step, numbers_by_value: dict[int, int]
) -> Iterator[AnyArray]:
    """Yield f(up) gate for each factor of a product that is an activation in the region."""
    inputs = list_floating_inputs(step)
    if step.kind != "mul" or len(inputs) != 2:
        return
    for (_, activated), (_, up) in (inputs, inputs[::-1]):
        number = numbers_by_value.get(activated.value, -1)
        if number < 0 or activated.order is not None or up.is_parameter:
            continue
        activation = region.steps[number]
        gates = list_floating_inputs(activation)
        if activation.kind not in ACTIVATION_KINDS or len(gates) != 1:
            continue
        position, gate = gates[0]
        if gate.array.shape != up.array.shape or np.array_equal(gate.array, up.array):
            continue
        output = compute_with(activation, position, up.array)
        if output is not None:
            yield (output * gate.array).reshape(step.output.shape)
