"""Steps that read another tensor of the same shape, or two of their inputs in the other order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ....comparison.narrow_dtypes import round_to_dtype
from ....model.arrays import AnyArray
from ....model.dtypes import get_unit_roundoff
from ...element_places import find_order
from ...fault_case import FaultCase, compute_residual, have_same_elements
from ...operands import PARAMETER_KINDS
from ...region import Region, Step, StepInput
from ..attention import is_attention
from .applied_functions import describe_function
from .change import LOSS_KINDS, Change, compute_with, feeds_softmax, list_floating_inputs
from .missing_inputs import name_score_term
from .norms import is_norm_of
from .parts import (
    SIBLING_PREFIX,
    describe_other_columns,
    describe_other_part,
    list_sibling_parts,
)

#: Largest input that is tried with other tensors in its place.
_MAX_REPLACED_ELEMENTS = 1 << 17
#: Tensors of the region that are tried in place of another.
_MAX_REPLACEMENTS = 10
#: Relative L2 within which the values of the two sides are the same value.
_EQUAL_DISTANCE = 1e-3
#: Units of a narrow dtype by which rounding moves a value at most, also if it is rounded twice.
_ROUNDING_UNITS = 2
#: Fewest axes of a value that a recurrence runs along, and fewest steps.
_MIN_SCANNED_AXES, _MIN_SCANNED_LENGTH = 3, 3
_GATE_KINDS = {"sigmoid", "hardsigmoid"}
#: Kinds of ops on images, which have channels and pixels, but no heads.
_IMAGE_KINDS = {"convolution", "group_norm", "batch_norm", "instance_norm"}
#: Kinds whose inputs may come from anywhere in the model.
_SOURCE_KINDS = {"concat", "add", "sub", "convolution", "matmul", *LOSS_KINDS}


def list_replaced_inputs(case: FaultCase, region: Region) -> Iterator[Change]:
    """Give a step another tensor of the same shape, or two of its inputs in the other order."""
    replacements = _list_replacements(case, region)
    for number, step in enumerate(region.steps):
        inputs = list_floating_inputs(step)
        if len(inputs) > 1 and step.kind not in ("add", "mul", "maximum", "minimum"):
            yield from _swap_inputs(number, step, inputs)
        for position, step_input in inputs:
            if step_input.array.size > _MAX_REPLACED_ELEMENTS:
                continue
            for name, array, is_parameter in _list_fitting(case, step, step_input, replacements):
                if compute_residual(array, step_input.array) < _EQUAL_DISTANCE:
                    continue  # the same value, computed less precisely
                if step.kind == "add" and _is_other_addend(array, step_input, inputs):
                    continue  # a doubled addend, in place of a missing one
                output = compute_with(step, position, array)
                is_bypass = step.kind not in LOSS_KINDS and _is_bypass(region, step_input, array)
                if output is None or is_bypass:
                    continue
                if is_parameter and step_input.is_parameter:
                    cause, description = "weight-swapped", f"{name} in its place"
                    contrast = f"has {step_input.name}"
                else:
                    cause, description, contrast = describe_replacement(
                        case, region, number, step_input, (name, array)
                    )
                is_norm = cause == "norm-missing"
                omitted_values = [step_input.value] if is_norm else ()
                yield Change(
                    number, output, cause, description, contrast, omitted_values=omitted_values
                )


def _is_other_addend(
    array: AnyArray, addend: StepInput, inputs: Sequence[tuple[int, StepInput]]
) -> bool:
    """Return whether an array is another one of the values that are added to an addend."""
    return any(
        item is not addend
        and item.array.shape == array.shape
        and compute_residual(array, item.array) < _EQUAL_DISTANCE
        for _, item in inputs
    )


def list_other_targets(case: FaultCase, region: Region) -> Iterator[Change]:
    """Take the loss, one number, against another tensor that was given to the run.

    There are few of these, so that none explains a number by chance.
    """
    if case.faithful.size != 1:
        return
    for number, step in enumerate(region.steps):
        inputs = list_floating_inputs(step)
        if step.kind not in (*LOSS_KINDS, "sub") or len(inputs) < 2:
            continue
        for position, step_input in inputs:
            size, shape = step_input.array.size, step_input.array.shape
            if not step_input.is_given or size == 1:
                continue
            for operand in case.find_given_values(size):
                is_same = operand.shape != shape or np.array_equal(operand.array, step_input.array)
                output = None if is_same else compute_with(step, position, operand.array)
                if output is not None:
                    text = "the loss against another input of the run"
                    if operand.kind:
                        text = f"the loss against {operand.name}"
                    yield Change(number, output, "loss-target", text)


def _list_fitting(
    case: FaultCase,
    step: Step,
    step_input: StepInput,
    replacements: list[tuple[str, AnyArray, bool]],
) -> list[tuple[str, AnyArray, bool]]:
    """Return (name, array, whether it is a parameter) of what can take the place of an input."""
    fitting = [
        entry
        for entry in replacements
        if _fits(entry[1].shape, step_input.array.shape, step.kind)
        and not have_same_elements(entry[1], step_input.array)
    ]
    fitting = fitting[:_MAX_REPLACEMENTS]
    if step_input.is_parameter:
        if step.kind in PARAMETER_KINDS:
            fitting += _list_other_parameters(case, step_input)
        return fitting
    fitting += list_sibling_parts(case, step_input.array)
    if step.kind in _SOURCE_KINDS:
        fitting += _list_values_elsewhere(case, step_input)
    return fitting


def _list_other_parameters(
    case: FaultCase, step_input: StepInput
) -> list[tuple[str, AnyArray, bool]]:
    """Return other parameters of the shape of one, such as the table of another embedding."""
    size, shape = step_input.array.size, step_input.array.shape
    parameters = [
        (operand.name, operand.array, True)
        for operand in case.find_parameters(size)
        if operand.shape == shape and operand.name != step_input.name
    ]
    return parameters[:_MAX_REPLACEMENTS]


def describe_replacement(
    case: FaultCase,
    region: Region,
    number: int,
    step_input: StepInput,
    source: tuple[str, AnyArray],
) -> tuple[str, str, str]:
    """Return (cause, description, contrast) of a step that reads another value."""
    _, array = source
    step = region.steps[number]
    if step_input.array.size > 1 and np.ptp(step_input.array) == 0:  # a constant shows no origin
        text = f"{step.name} ({step.kind}) of {source[0]}"
        return "input-source", text, f"reads {step_input.array.flat[0]:g} in all places"
    left_out = describe_function(step_input, source)
    if left_out is not None:
        return left_out
    other_part = _describe_part(case, region, number, step_input, source)
    if other_part is not None:
        return other_part
    if is_norm_of(step_input, array):
        description = f"without {step_input.name} ({step_input.producer_kind})"
        return "norm-missing", description, ""
    if _has_unknown_origin(region, step_input):
        return _describe_unrecorded(case, step, step_input, source)
    return _describe_source(case, region, number, step_input, source)


def _describe_source(
    case: FaultCase,
    region: Region,
    number: int,
    step_input: StepInput,
    source: tuple[str, AnyArray],
) -> tuple[str, str, str]:
    """Return (cause, description, contrast) of a value of another recorded op, or its order."""
    name, _ = source
    step = region.steps[number]
    contrast = f"has {step_input.name}"
    if name.startswith(SIBLING_PREFIX):
        return "split-order", f"{step.name} ({step.kind}) of {name}", contrast
    weights = case.find_exchanged_weights(name, step_input.name)
    if weights is not None:
        return "weight-swapped", f"{weights[0]} in its place", f"has {weights[1]}"
    n_calls = case.count_exchanged_calls(step.name)
    if n_calls:
        own_weights = [item.name for item in step.inputs if item.is_parameter]
        description = f"the weights of {n_calls} calls exchanged: {own_weights[0]} for {name}"
        return "weight-swapped", description, f"has it for {step_input.name}"
    cause, description = name_source(case, region, number, step_input, source)
    return cause, description, "rolls them" if cause == "row-shift" else contrast


def _describe_part(
    case: FaultCase,
    region: Region,
    number: int,
    step_input: StepInput,
    source: tuple[str, AnyArray],
) -> tuple[str, str, str] | None:
    """Return (cause, description, contrast) if both tensors are parts of one value; else None."""
    name, array = source
    ends = _find_scanned_value(case, step_input.array, array)
    if ends is not None:
        return "scan-direction", *ends
    other_part = _describe_other_gate(case, step_input, name, array) or describe_other_part(
        case, region, number, step_input.array, array
    )
    if other_part is not None:
        return other_part
    other_columns = describe_other_columns(case, step_input.array, array)
    if other_columns is None:
        return None
    step = region.steps[number]
    cause, columns, own_columns = other_columns
    return cause, f"{step.name} ({step.kind}) of {columns}", own_columns


def _describe_unrecorded(
    case: FaultCase, step: Step, step_input: StepInput, source: tuple[str, AnyArray]
) -> tuple[str, str, str]:
    """Return (cause, description, contrast) of a value that no recorded op changes."""
    name, array = source
    dtype = _find_rounding(step_input.array, array)
    if dtype:
        return "low-precision", f"{name} not rounded", f"rounds it to {dtype}"
    description = f"{step.name} ({step.kind}) of {name} itself"
    if compute_residual(-step_input.array, array) < _EQUAL_DISTANCE:
        return "constant-factor", description, "reads it with the other sign"
    whole_name = _find_whole(case, step_input, array)
    if whole_name:
        text = f"{step.name} ({step.kind}) of {name}"
        return "input-source", text, f"reads a part of {whole_name}"
    if step_input.is_given:
        return "input-source", f"{step.name} ({step.kind}) of {name}", "reads another value"
    return "missing-step", description, "has what an op that is not recorded computed"


def _find_whole(case: FaultCase, step_input: StepInput, array: AnyArray) -> str:
    """Return the name of an agreeing value of which an input is a part, and ``array`` is none.

    An op that was not recorded cut it out; '' if there is no such value.
    """
    for operand in (*case.list_shared_operands(), *case.find_wholes(step_input.value)):
        is_larger = int(np.prod(operand.shape)) > step_input.array.size > 1
        if not is_larger or not operand.agrees or not operand.is_floating:
            continue
        is_part, is_other_part = (
            np.isin(item, operand.array).all() for item in (step_input.array, array)
        )
        if is_part and not is_other_part:
            return operand.name
    return ""


def _find_rounding(rounded: AnyArray, array: AnyArray) -> str:
    """Return the narrow dtype to which an array was rounded, '' if it was not; twice, perhaps."""
    for dtype in ("bfloat16", "float16"):
        if compute_residual(rounded, array) > _ROUNDING_UNITS * get_unit_roundoff(dtype):
            continue
        own, others = (
            round_to_dtype(values.astype(np.float32), dtype) == values.astype(np.float32)
            for values in (rounded, array)
        )
        if own.all() and not others.all():
            return dtype
    return ""


def _has_unknown_origin(region: Region, step_input: StepInput) -> bool:
    """Return whether an op that was not recorded computed an input: it may be any step."""
    is_known = bool(step_input.producer_kind) or step_input.is_parameter or step_input.agrees
    is_computed = any(step.value == step_input.value for step in region.steps)
    return step_input.value >= 0 and not is_known and not is_computed


def _describe_other_gate(
    case: FaultCase, step_input: StepInput, name: str, array: AnyArray
) -> tuple[str, str, str] | None:
    """Return (cause, description, contrast) of a gate z in place of another one, or of 1 - z."""
    contrast = f"has {step_input.name}"
    if compute_residual(1 - array, step_input.array) < _EQUAL_DISTANCE:
        return "gate-order", f"the gate {name} in place of one minus it", contrast
    kinds = [operand.kind for operand in case.list_shared_operands() if operand.name == name]
    if step_input.producer_kind in _GATE_KINDS and step_input.producer_kind in kinds:
        return "gate-order", f"the gate {name} in place of another one", contrast
    return None


def _find_scanned_value(
    case: FaultCase, array: AnyArray, replacement: AnyArray
) -> tuple[str, str] | None:
    """Return (description, contrast) if the two tensors are the ends of one value along an axis.

    A recurrence that reads one of them in place of the other runs in the other direction.
    """
    for operand in (*case.operands, *case.faulty_operands):
        shape = operand.shape
        n_elements = int(np.prod(shape))
        if len(shape) < _MIN_SCANNED_AXES or not operand.is_floating or n_elements <= array.size:
            continue
        for axis, length in enumerate(shape[:-1]):
            if length < _MIN_SCANNED_LENGTH or length * array.size != n_elements:
                continue
            first, last = (operand.array.take(place, axis).reshape(-1) for place in (0, -1))
            texts = ("from its start", "in reverse, from its end")
            for own, other, is_reversed in ((first, last, True), (last, first, False)):
                is_own = compute_residual(array, own) < _EQUAL_DISTANCE
                if is_own and compute_residual(replacement, other) < _EQUAL_DISTANCE:
                    return (
                        f"{operand.name} read along axis {axis} {texts[is_reversed]}",
                        f"reads it {texts[not is_reversed]}",
                    )
    return None


def _swap_inputs(
    number: int, step: Step, inputs: Sequence[tuple[int, StepInput]]
) -> Iterator[Change]:
    (first, first_input), (second, second_input) = inputs[:2]
    if first_input.array.shape != second_input.array.shape:
        return
    arrays = step.list_arrays()
    arrays[first], arrays[second] = arrays[second], arrays[first]
    output = step.compute(arrays)
    if output is None:
        return
    names = f"{second_input.name} before {first_input.name}"
    is_wave = {"sin", "cos"} <= {name.split(".")[-2] if "." in name else name.lower()[:3]
                                 for name in (first_input.name, second_input.name)}  # fmt: skip
    cause = "time-embedding-order" if is_wave else "input-order"
    yield Change(number, output, cause, f"{step.kind} of {names}")


def name_source(
    case: FaultCase,
    region: Region,
    number: int,
    step_input: StepInput,
    source: tuple[str, AnyArray],
) -> tuple[str, str]:
    """Return (cause, description) of a step that reads another value; ``source``: its name too."""
    step = region.steps[number]
    name, array = source
    if step.kind == "add" and feeds_softmax(case, region, number):
        return name_score_term(case, step_input)
    if have_same_elements(array, step_input.array):
        return _name_rearrangement(case, step, step_input, source)
    if step.kind in LOSS_KINDS or (case.is_of_loss and step.kind == "sub"):
        return "loss-target", f"the loss against {name}"
    others = [item for _, item in list_floating_inputs(step) if item is not step_input]
    is_residual = any(case.depends_on(other.value, step_input.value) for other in others)
    if step.kind == "add" and is_residual:
        return "residual-order", f"the residual taken from {name}"
    if step.kind == "concat":
        return "skip-source", f"{name} joined in {step.name}"
    return "input-source", f"{step.name} ({step.kind}) of {name}"


def _list_replacements(case: FaultCase, region: Region) -> list[tuple[str, AnyArray, bool]]:
    """Return (name, array, whether it is a parameter) of the tensors in and around the region."""
    replacements: list[tuple[str, AnyArray, bool]] = []
    for step in region.steps:
        replacements += [
            (item.name, item.array, item.is_parameter) for _, item in list_floating_inputs(step)
        ]
    replacements += [
        (operand.name, operand.array, bool(operand.parameter))
        for operand in case.list_shared_operands()
        if operand.shape and operand.is_floating
    ]
    return replacements


def _name_rearrangement(
    case: FaultCase, step: Step, step_input: StepInput, source: tuple[str, AnyArray]
) -> tuple[str, str]:
    """Return (cause, description) of a value that is read in its own order, not in another one."""
    name, array = source
    roll = _find_roll(array, step_input.array)
    if roll is not None:
        length, shift = roll
        return "row-shift", f"{name} without rolling each {length} of its rows by {shift}"
    axis = _find_reversed_axis(array, step_input.array)
    if axis >= 0:
        return "scan-direction", f"{name} not reversed along axis {axis}"
    kinds = {step.kind, *(item.kind for item in case.list_shared_operands() if item.name == name)}
    has_heads = is_attention(case.finding.scope) and not kinds & _IMAGE_KINDS
    cause = "heads-permuted" if has_heads else "axes-swapped"
    return cause, f"the elements of {name} in memory order, as if its axes were not exchanged"


def _find_reversed_axis(array: AnyArray, other: AnyArray) -> int:
    """Return the axis along which one array is the other one reversed; -1 if there is none."""
    if array.shape != other.shape:
        return -1
    axes = (axis for axis in range(array.ndim) if array.shape[axis] > 1)
    return next((axis for axis in axes if np.array_equal(np.flip(array, axis), other)), -1)


def _find_roll(array: AnyArray, rolled: AnyArray) -> tuple[int, int] | None:
    """Return (rows in a block, places) if one array has the rows of the other, rolled in blocks.

    As a transformer with shifted windows rolls the tokens of each sequence, before it cuts them
    into windows. None in all other cases; two rows that change places are exchanged, not rolled.
    """
    width = array.shape[-1]
    rows, rolled_rows = array.reshape(-1, width), rolled.reshape(-1, width)
    for first in np.flatnonzero((rows == rolled_rows[0]).all(axis=1)).tolist():
        for length in range(max(first + 1, _MIN_SCANNED_LENGTH), len(rows) + 1):
            if len(rows) % length or not first:
                continue
            blocks = np.roll(rows.reshape(-1, length, width), -first, axis=1)
            if np.array_equal(blocks.reshape(rows.shape), rolled_rows):
                return length, -first if first <= length // 2 else length - first
    return None


def _list_values_elsewhere(
    case: FaultCase, step_input: StepInput
) -> list[tuple[str, AnyArray, bool]]:
    """Return (name, array, False) of values of the same size that both sides have.

    Those of the shape that the input had before its axes were exchanged are rearranged like it,
    and also taken in memory order, as if the exchange was forgotten.
    """
    shape = step_input.array.shape
    computed = case.load_value(step_input.value)
    order = None if computed is None else find_order(computed, step_input.array)[1]
    computed_shape = shape if computed is None or order is None else computed.shape
    values = []
    for operand in case.find_other_values(shape):
        flat = operand.array.reshape(-1)
        if order is not None and operand.shape == computed_shape != shape:
            values.append((operand.name, flat[order].reshape(shape), False))
        values.append((operand.name, flat.reshape(shape), False))
    return values


def _fits(shape: tuple[int, ...], expected: tuple[int, ...], kind: str) -> bool:
    """Return whether a tensor can take the place of another; in sums also one that broadcasts."""
    if shape == expected:
        return True
    if kind not in ("add", "mul") or len(shape) != len(expected):
        return False
    return all(length in (1, other) for length, other in zip(shape, expected, strict=True))


def _is_bypass(region: Region, step_input: StepInput, array: AnyArray) -> bool:
    """Return whether an array is what the steps before read: that they are missing is likelier."""
    steps = {step.value: step for step in region.steps}
    upstream_values = [step_input.value]
    for value in upstream_values:  # grows while it is read
        if value not in steps:
            continue
        for _, item in list_floating_inputs(steps[value]):
            is_equal = item.array.size == array.size and (
                compute_residual(array, item.array) < _EQUAL_DISTANCE
            )
            if is_equal:
                return True
            if item.array.size == array.size and item.value not in upstream_values:
                upstream_values.append(item.value)
    return False
