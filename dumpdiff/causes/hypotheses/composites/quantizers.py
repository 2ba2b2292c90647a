"""Fake quantization inside a region: recognized by its values, replaced by another quantizer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ....model.arrays import AnyArray
from ....operators.elementwise import ROUNDINGS
from ...fault_case import FaultCase
from ...quantizer_fit import Quantizer, fit_quantizer, list_other_quantizers
from ...region import Region
from ..quantization import compare_with_faulty, describe_difference, describe_missing_quantizer
from .change import Change, compute_with, find_inputs_before, is_rounded, list_floating_inputs

_ROUNDING_KINDS = set(ROUNDINGS)
_SCALING_KINDS = ("mul", "div")
_CLIPPING_KINDS = {"minimum", "maximum", "clamp"}
#: Values of the faulty side that may be its quantized values.
_MAX_VALUES = 6


def list_quantizers(case: FaultCase, region: Region) -> Iterator[Change]:
    """Quantize as a value of the faulty side shows it, not at all, or with one thing changed."""
    for number, x, quantizer in _find_quantizers(region):
        shape = region.steps[number].output.shape
        cause, description, contrast = describe_missing_quantizer(quantizer)
        yield Change(number, x, cause, description, contrast)
        for values in _list_faulty_values(case, x.shape):
            change = compare_with_faulty(x, quantizer, values, case.limit)
            if change is not None:
                predicted, cause, description, contrast = change
                yield Change(number, predicted.reshape(shape), cause, description, contrast)
        for other in list_other_quantizers(quantizer, x):
            difference = describe_difference(other, quantizer)
            if difference is not None and np.any(other.quantized != quantizer.quantized):
                cause, description, contrast = difference
                output = other.quantized.reshape(shape)
                yield Change(number, output, cause, description, contrast)


def list_step_limits(_case: FaultCase, region: Region) -> Iterator[Change]:
    """Clip quantized steps, which are whole numbers, at another limit, or do not clip them."""
    for number, step in enumerate(region.steps):
        if step.kind not in _CLIPPING_KINDS or not step.inputs:
            continue
        steps = step.inputs[0].array
        if steps.dtype.kind != "f" or steps.size < 2 or np.any(steps != np.rint(steps)):
            continue
        low, high = float(step.output.min()), float(step.output.max())
        contrast = f"clips them to {low:g} ... {high:g}"
        text = f"quantized steps that are not clipped ({steps.min():g} ... {steps.max():g})"
        yield Change(number, steps, "quantization-range", text, contrast)
        for n_bits in range(2, 10):
            for limits in _list_limits(n_bits):
                text = f"quantized steps clipped to {limits[0]} ... {limits[1]}"
                output = np.clip(steps, *limits)
                yield Change(number, output, "quantization-range", text, contrast)


def scales_quantized(case: FaultCase, region: Region, number: int) -> bool:
    """Return whether the output of a step is the scale by which rounded values are divided.

    It is smaller than what is divided by it, or the quotient that is rounded.
    """
    step = region.steps[number]
    kinds = region.find_kinds_after(number) | case.consumer_kinds
    if not kinds & _ROUNDING_KINDS:
        return False
    consumers = [region.steps[consumer] for consumer in region.consumers[number]]
    if not consumers:
        return case.is_quantization_scale or bool(case.list_consumer_kinds() & _ROUNDING_KINDS)
    return any(
        consumer.kind in _ROUNDING_KINDS
        or (consumer.kind in _SCALING_KINDS and consumer.output.size > step.output.size)
        for consumer in consumers
    )


def _list_limits(n_bits: int) -> tuple[tuple[int, int], ...]:
    """Return the usual limits of a number of bits: unsigned, signed, symmetric."""
    half = 1 << (n_bits - 1)
    return (0, 2 * half - 1), (-half, half - 1), (1 - half, half - 1)


def list_scale_axes(case: FaultCase, region: Region) -> Iterator[Change]:
    """Use the numbers of one axis, such as the scales of rows, for another axis of its length."""
    for number, step in enumerate(region.steps):
        if step.kind not in ("mul", "div"):
            continue
        for position, step_input in list_floating_inputs(step):
            array = step_input.array
            long_axes = [axis for axis, length in enumerate(array.shape) if length > 1]
            if len(long_axes) != 1 or array.ndim != step.output.ndim:
                continue
            for axis, length in enumerate(step.output.shape):
                if axis == long_axes[0] or length != array.size:
                    continue
                output = compute_with(step, position, np.swapaxes(array, axis, long_axes[0]))
                if output is not None:
                    yield Change(
                        number,
                        output,
                        "quantization-axis" if is_rounded(case, region, number) else "axes-swapped",
                        f"the numbers of {step.name} ({step.kind}) along axis {axis}",
                        f"has them along axis {long_axes[0]}",
                    )


def _find_quantizers(region: Region) -> list[tuple[int, AnyArray, Quantizer]]:
    """Return (number of the step, what it quantizes, quantizer); of one value the last step."""
    quantizers: dict[int, tuple[int, AnyArray, Quantizer]] = {}
    if not _ROUNDING_KINDS & {step.kind for step in region.steps}:
        return []
    for number, step in enumerate(region.steps):
        if step.output.dtype.kind != "f" or step.places is not None:
            continue
        for value, x in find_inputs_before(region, number, with_parameters=True).items():
            if not _is_leaf(region, value):
                continue
            quantizer = fit_quantizer(x, step.output)
            if quantizer is not None and np.any(quantizer.quantized != x):
                quantizers[value] = (number, x, quantizer)
    return list(quantizers.values())


def _is_leaf(region: Region, value: int) -> bool:
    return all(step.value != value for step in region.steps)


def _list_faulty_values(case: FaultCase, shape: tuple[int, ...]) -> list[AnyArray]:
    """Return the values of the faulty side that do not agree and have the size of a shape."""
    values = []
    for operand in case.faulty_operands:
        if operand.agrees or int(np.prod(operand.shape)) != int(np.prod(shape)):
            continue
        if operand.is_floating:
            values.append(operand.array.reshape(shape))
    return values[:_MAX_VALUES]
