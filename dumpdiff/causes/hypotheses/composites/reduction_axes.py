"""A reduction over other axes: the scale of each row, of each channel, of the whole tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from ....model.arrays import AnyArray, Floats
from ....operators.norms import normalize
from ....operators.reductions import REDUCTIONS
from ....operators.softmax import log_softmax
from ...fault_case import FaultCase, compute_residual
from ...region import Region, Step
from .change import Change, is_rounded, list_floating_inputs

#: Axes of a tensor whose every combination is tried.
_MAX_AXES = 4
#: Steps that are changed together, at least.
_MIN_COMMON_STEPS = 2
#: Relative L2 within which a function gives a recorded output.
_EQUAL_DISTANCE = 1e-5
#: Functions of the elements along one axis, by the kind of op.
_AXIS_FUNCTIONS: Mapping[str, Callable[[AnyArray, int], Floats]] = {
    "normalize": normalize,
    "cumsum": np.cumsum,
    "log_softmax": log_softmax,
}


def list_reduction_axes(case: FaultCase, region: Region) -> Iterator[Change]:
    """Reduce over other axes. What follows is computed with the other shape, by broadcasting."""
    for number, step in enumerate(region.steps):
        yield from _list_other_axes(number, step)
        own_axes = _find_axes(step)
        if own_axes is None:
            continue
        x = step.inputs[0].array
        long_axes = [axis for axis, length in enumerate(x.shape) if length > 1]
        cause = "quantization-axis" if is_rounded(case, region, number) else "reduction-axis"
        for axes in _list_combinations(long_axes):
            if axes == own_axes:
                continue
            output = _reduce(step, axes)
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


def list_softmax_axes(case: FaultCase, region: Region) -> Iterator[Change]:
    """Take one softmax along an axis, where this region writes out one over groups of elements."""
    kinds = {step.kind for step in region.steps}
    if "exp" not in kinds or "softmax" not in case.faulty_kinds:
        return
    number = len(region.steps) - 1
    for step in region.steps:
        for _, item in list_floating_inputs(step):
            if not item.agrees or item.array.size != case.faithful.size or not item.array.ndim:
                continue
            for axis in range(item.array.ndim):
                output = np.exp(log_softmax(item.array, axis))
                yield Change(
                    number,
                    output.reshape(region.steps[number].output.shape),
                    "softmax-axis",
                    f"softmax of {item.name} along axis {axis - item.array.ndim}",
                    "divides by sums over groups of them",
                )


def list_common_reduction_axes(case: FaultCase, region: Region) -> Iterator[Change]:
    """Reduce over other axes in all steps that are alike: one function is called several times."""
    groups: dict[tuple[str, int, tuple[int, ...]], list[int]] = {}
    for number, step in enumerate(region.steps):
        own_axes = _find_axes(step)
        if own_axes is not None and not is_rounded(case, region, number):
            key = (step.kind, step.inputs[0].array.ndim, own_axes)
            groups.setdefault(key, []).append(number)
    for (kind, n_axes, own_axes), numbers in groups.items():
        if len(numbers) < _MIN_COMMON_STEPS:
            continue
        all_axes = range(n_axes)
        for axes in _list_combinations(all_axes):
            if axes == own_axes:
                continue
            outputs = {number: _reduce(region.steps[number], axes) for number in numbers}
            changed_region: Region | None = region
            for number, output in outputs.items():
                if changed_region is not None:
                    changed_region = changed_region.replace_output(number, output)
            if changed_region is None:
                continue
            first = numbers[0]
            names = ", ".join(region.steps[number].name for number in numbers)
            yield Change(
                first,
                outputs.pop(first),
                "reduction-axis",
                f"{kind} ({names}) over {_describe_axes(axes, all_axes)}",
                f"reduces over {_describe_axes(own_axes, all_axes)}",
                further_outputs=outputs,
                region=changed_region,
            )


def list_interleaved_groups(case: FaultCase, region: Region) -> Iterator[Change]:
    """Reduce groups of every n-th element where a group has those in a row, and the reverse."""
    for number, step in enumerate(region.steps):
        axis = _find_dropped_axis(step)
        if axis is None:
            continue
        x = step.inputs[0].array
        for other in (axis - 1, axis + 1):
            if not 0 <= other < x.ndim or x.shape[other] == 1:
                continue
            first, n_groups, length = min(axis, other), x.shape[other], x.shape[axis]
            exchanged = (x.shape[first + 1], x.shape[first])
            regrouped = x.reshape(*x.shape[:first], *exchanged, *x.shape[first + 2 :])
            output = REDUCTIONS[step.kind](regrouped, axis=other, keepdims=False)
            kind, name = step.kind, step.name
            texts = (
                (f"{kind} ({name}) over {length} elements that are {n_groups} apart",
                 f"reduces over {length} in a row"),
                (f"{kind} ({name}) over {length} in a row",
                 f"reduces over {length} elements that are {n_groups} apart"),
            )  # fmt: skip
            yield Change(
                number,
                np.asarray(output, dtype=float).reshape(step.output.shape),
                "axes-swapped",
                *texts[other > axis],
            )


def _find_dropped_axis(step: Step) -> int | None:
    """Return the one axis of several elements that a step reduces its one input over; else None."""
    if step.kind not in REDUCTIONS or len(list_floating_inputs(step)) != 1:
        return None
    x = step.inputs[0].array
    axes = [
        axis
        for axis, length in enumerate(x.shape)
        if length > 1 and step.output.size * length == x.size
    ]
    return next((axis for axis in axes if _reduces_over(step, axis)), None)


def _reduces_over(step: Step, axis: int) -> bool:
    """Return whether a step gives the reduction of its input over an axis."""
    output = _reduce(step, (axis,)).reshape(step.output.shape)
    return compute_residual(output, step.output) <= _EQUAL_DISTANCE


def _reduce(step: Step, axes: tuple[int, ...]) -> AnyArray:
    """Return the reduction of a step's input over some axes, which are kept with length 1."""
    x = step.inputs[0].array
    return np.asarray(REDUCTIONS[step.kind](x, axis=axes, keepdims=True), dtype=float)


def _list_other_axes(number: int, step: Step) -> Iterator[Change]:
    """Yield what a function of one axis gives along another one, as the axis is an argument."""
    function = _AXIS_FUNCTIONS.get(step.kind)
    inputs = list_floating_inputs(step)
    if function is None or len(inputs) != 1 or inputs[0][1].array.shape != step.output.shape:
        return
    x = inputs[0][1].array
    outputs = [function(x, axis) for axis in range(x.ndim)]
    own_axes = [
        axis
        for axis, output in enumerate(outputs)
        if compute_residual(output, step.output) <= _EQUAL_DISTANCE
    ]
    if len(own_axes) != 1:
        return
    for axis, output in enumerate(outputs):
        if axis not in own_axes:
            text = f"{step.kind} ({step.name}) along axis {axis - x.ndim}"
            contrast = f"has axis {own_axes[0] - x.ndim}"
            parameters = {"axis": float(axis - x.ndim)}
            yield Change(number, output, "reduction-axis", text, contrast, parameters)


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
