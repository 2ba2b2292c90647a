"""What a mask without a record set to 0 in the input of a step, such as the rows of padding."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from ....model.arrays import AnyArray
from ...fault_case import FaultCase, compute_residual
from ...hypothesis import Statement
from ...region import Region, StepInput
from .change import Change, compute_with, list_floating_inputs

#: Axes of a value whose orders are tried.
_MAX_AXES = 4
#: Relative L2 within which what a mask leaves is the value itself.
_EQUAL_DISTANCE = 1e-5


def list_unrecorded_masks(case: FaultCase, region: Region) -> Iterator[Change]:
    """Read the value itself in place of one that is 0 in some places, and equal in all others."""
    known_values = {step.value for step in region.steps}
    for number, step in enumerate(region.steps):
        for position, item in list_floating_inputs(step):
            if item.agrees or item.is_parameter or item.value in known_values:
                continue
            whole = _find_whole(case, item)
            if whole is None:
                continue
            name, array = whole
            output = compute_with(step, position, array)
            if output is not None:
                n_hidden = int((item.array == 0).sum())
                numbers = f"{n_hidden} of {item.array.size} numbers"
                yield Change(
                    number,
                    output,
                    "mask-missing",
                    f"{step.name} ({step.kind}) of {name} itself",
                    f"sets {numbers} of it to 0",
                    mirror=Statement(
                        f"{step.name} ({step.kind}) of {name} with {numbers} set to 0",
                        "reads it itself",
                    ),
                )


def _find_whole(case: FaultCase, item: StepInput) -> tuple[str, AnyArray] | None:
    """Return (name, array) of the agreeing value of which an input is what a mask leaves."""
    left = item.array.squeeze()
    is_hidden = left == 0
    if is_hidden.all() or not is_hidden.any() or left.ndim > _MAX_AXES:
        return None
    for operand in case.list_shared_operands():
        is_whole = operand.agrees and not operand.parameter and operand.is_floating
        if not is_whole or int(np.prod(operand.shape)) != left.size:
            continue
        squeezed = operand.array.squeeze()
        if squeezed.ndim != left.ndim:
            continue
        for axes in permutations(range(left.ndim)):
            whole = squeezed.transpose(axes)
            if whole.shape != left.shape or not whole[is_hidden].any():
                continue
            if compute_residual(whole[~is_hidden], left[~is_hidden]) <= _EQUAL_DISTANCE:
                return operand.name, whole.reshape(item.array.shape)
    return None
