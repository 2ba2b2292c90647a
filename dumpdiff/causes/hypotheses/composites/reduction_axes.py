"""A reduction over other axes: the scale of each row, of each channel, of the whole tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from ....model.arrays import AnyArray
from ....operators.reductions import REDUCTIONS
from ...fault_case import FaultCase, compute_residual
from ...region import Region, Step
from .change import Change, is_rounded, list_floating_inputs

#: Axes of a tensor whose every combination is tried.
_MAX_AXES = 4


def list_reduction_axes(case: FaultCase, region: Region) -> Iterator[Change]:
    """Reduce over other axes. What follows is computed with the other shape, by broadcasting."""
    for number, step in enumerate(region.steps):
        own_axes = _find_axes(step)
        if own_axes is None:
            continue
        x = step.inputs[0].array
        long_axes = [axis for axis, length in enumerate(x.shape) if length > 1]
        cause = "quantization-axis" if is_rounded(case, region, number) else "reduction-axis"
        for axes in _list_combinations(long_axes):
            if axes == own_axes:
                continue
            output = np.asarray(REDUCTIONS[step.kind](x, axis=axes, keepdims=True), dtype=float)
            reshaped = region.replace_output(number, output)
            if reshaped is not None:
                yield Change(
                    number,
                    output,
                    cause,
                    f"{step.kind} ({step.name}) over {_describe_axes(axes, long_axes)}",
                    f"reduces over {_describe_axes(own_axes, long_axes)}",
                    is_evident=_is_recorded(case, output),
                    region=reshaped,
                )


def _is_recorded(case: FaultCase, output: AnyArray) -> bool:
    """Return whether the faulty side holds these numbers."""
    return any(
        operand.is_floating
        and int(np.prod(operand.shape)) == output.size
        and compute_residual(operand.array.reshape(output.shape), output) <= case.tolerance
        for operand in case.faulty_operands
    )


def _find_axes(step: Step) -> tuple[int, ...] | None:
    """Return the axes of several elements that a step reduces its one input over.

    None if it has another input, drops an axis, or reduces nothing.
    """
    if step.kind not in REDUCTIONS or len(list_floating_inputs(step)) != 1:
        return None
    x, shape = step.inputs[0].array, step.output.shape
    if not 1 < x.ndim <= _MAX_AXES or len(shape) not in (0, x.ndim):
        return None
    kept_shape = shape or (1,) * x.ndim
    return tuple(axis for axis in range(x.ndim) if kept_shape[axis] < x.shape[axis]) or None


def _list_combinations(axes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for count in range(1, len(axes) + 1):
        yield from combinations(axes, count)


def _describe_axes(axes: tuple[int, ...], long_axes: Sequence[int]) -> str:
    if len(axes) == len(long_axes):
        return "all axes"
    return f"axis {axes[0]}" if len(axes) == 1 else f"axes {', '.join(map(str, axes))}"
