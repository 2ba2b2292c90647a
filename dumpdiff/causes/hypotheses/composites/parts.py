"""Parts into which a value is split: the gates of a cell, or keys and values of one projection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ....model.arrays import AnyArray
from ...fault_case import FaultCase, compute_residual
from ...region import Region, Step

#: Parts of a split at most, and of the gates of a cell.
_MAX_PARTS, _GATE_COUNTS = 6, (3, 4)
#: Relative L2 within which a tensor is a part of another.
_EQUAL_DISTANCE = 1e-5
#: Begin of the names of parts that are cut from the same value.
SIBLING_PREFIX = "columns "
_GATE_KINDS = {"sigmoid", "tanh", "hard_sigmoid"}


@dataclass(frozen=True)
class Part:
    """One of the equal parts of a value along one of its axes."""

    name: str  #: of the value
    number: int
    n_parts: int


def find_part(case: FaultCase, array: AnyArray) -> Part | None:
    """Return of which value next to the case an array is a part; None if of none."""
    return next((part for part, _ in _list_parts(case, array)), None)


def _list_parts(case: FaultCase, array: AnyArray) -> Iterator[tuple[Part, list[AnyArray]]]:
    """Yield (part, all parts of its value) of the values of which an array is a part."""
    if array.ndim == 0:
        return
    for operand in (*case.operands, *case.faulty_operands):
        n_parts, rest = divmod(int(np.prod(operand.shape)), array.size)
        if rest or not 1 < n_parts <= _MAX_PARTS or not operand.is_floating:
            continue
        parts = _split_like(operand.array, array, n_parts)
        for number, part in enumerate(parts):
            if compute_residual(array.reshape(part.shape), part) <= _EQUAL_DISTANCE:
                yield Part(operand.name, number, n_parts), parts


def _split_like(whole: AnyArray, array: AnyArray, n_parts: int) -> list[AnyArray]:
    """Return equal parts of a value, of which an array has the shape; [] if it has another.

    They lie along the last axis, whatever the axes before it, or along the only axis in which the
    shapes differ: the channels of an image. Axes of length one at the end do not count.
    """
    whole_shape, shape = _trim_shape(whole.shape), _trim_shape(array.shape)
    if whole_shape and shape and whole_shape[-1] == n_parts * shape[-1]:
        return np.split(whole.reshape(-1, whole_shape[-1]), n_parts, axis=1)
    if len(whole_shape) != len(shape):
        return []
    axes = [axis for axis, length in enumerate(shape) if length != whole_shape[axis]]
    if len(axes) != 1 or axes[0] == 0:
        return []
    return np.split(whole.reshape(whole_shape), n_parts, axis=axes[0])


def _trim_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without the axes of length one at its end."""
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def list_sibling_parts(case: FaultCase, array: AnyArray) -> list[tuple[str, AnyArray, bool]]:
    """Return (name, array, False) of the parts next to an array in the value it was cut from.

    Also at the ends of that value: the parts need not all be equally wide.
    """
    siblings: list[tuple[str, AnyArray, bool]] = []
    width = array.shape[-1] if array.ndim > 1 else 0
    for operand in case.operands:
        total = operand.shape[-1] if operand.shape else 0
        has_rows = 0 < width < total and np.prod(operand.shape) // total == array.size // width
        if not has_rows or not operand.is_floating:
            continue
        rows = operand.array.reshape(-1, total)
        starts = np.flatnonzero(rows[0] == array.reshape(-1)[0]).tolist()
        for start in starts[:1]:
            if not np.array_equal(rows[:, start : start + width], array.reshape(-1, width)):
                continue
            for other in dict.fromkeys((start - width, start + width, 0, total - width)):
                if other == start or not 0 <= other <= total - width:
                    continue
                part = rows[:, other : other + width].reshape(array.shape)
                name = f"{SIBLING_PREFIX}{other} to {other + width - 1} of {operand.name}"
                siblings.append((name, part, False))
    return siblings


def describe_other_part(
    case: FaultCase, region: Region, number: int, array: AnyArray, replacement: AnyArray
) -> tuple[str, str, str] | None:
    """Return (cause, description, contrast) if both tensors are parts of one value."""
    for own, parts in _list_parts(case, array):
        for other_number, part in enumerate(parts):
            if other_number == own.number or part.size != replacement.size:
                continue
            if compute_residual(replacement.reshape(part.shape), part) > _EQUAL_DISTANCE:
                continue
            kinds = {region.steps[number].kind, *region.find_kinds_after(number)}
            is_gate = own.n_parts in _GATE_COUNTS and bool(kinds & _GATE_KINDS)
            whole = "gates" if is_gate else "parts"
            description = (
                f"{region.steps[number].name} ({region.steps[number].kind}) of part {other_number} "
                f"of the {own.n_parts} {whole} {own.name}"
            )
            cause = "gate-order" if is_gate else "split-order"
            return cause, description, f"reads part {own.number}"
    return None


def describe_other_columns(
    case: FaultCase, array: AnyArray, replacement: AnyArray
) -> tuple[str, str, str] | None:
    """Return (cause, what is read, what the other side reads) if both are columns of one value.

    Also if these were repeated or sliced along other axes: the first rows show it. What looks like
    columns of a convolution are places, and others of them are a shift.
    """
    if array.shape != replacement.shape or array.ndim < 2 or array.shape[-1] < 2:
        return None
    width = array.shape[-1]
    rows = [item.reshape(-1, width)[0] for item in (replacement, array)]
    for operand in case.list_shared_operands():
        if len(operand.shape) < 2 or operand.shape[-1] <= width or not operand.is_floating:
            continue
        places = [_find_columns(operand.array, row) for row in rows]
        if None in places or places[0] == places[1]:
            continue
        texts = [f"columns {place} to {place + width - 1}" for place in places if place is not None]
        cause = "causal-shift" if operand.kind == "convolution" else "split-order"
        return cause, f"{texts[0]} of {operand.name}", f"reads {texts[1]}"
    return None


def _find_columns(whole: AnyArray, row: AnyArray) -> int | None:
    """Return the first of the columns that hold a row of numbers; None if none do."""
    total = whole.shape[-1]
    flat = whole.reshape(-1)
    for start in np.flatnonzero(np.isclose(flat, row[0], rtol=_EQUAL_DISTANCE)).tolist():
        is_inside = start % total + row.size <= total
        if is_inside and compute_residual(flat[start : start + row.size], row) <= _EQUAL_DISTANCE:
            return int(start % total)
    return None


def feeds_gate(case: FaultCase, region: Region, number: int) -> bool:
    """Return whether a step computes with one gate of a cell, just before its sigmoid."""
    consumer_kinds = {region.steps[consumer].kind for consumer in region.consumers[number]}
    if consumer_kinds:
        is_before_sigmoid = consumer_kinds == {"sigmoid"}
    else:
        is_before_sigmoid = "sigmoid" in case.consumer_kinds
    if not is_before_sigmoid:
        return False
    for step_input in region.steps[number].inputs:
        part = find_part(case, step_input.array)
        if part is not None and part.n_parts in _GATE_COUNTS:
            return True
    return _is_sum_of_parts(case, region.steps[number])


def _is_sum_of_parts(case: FaultCase, step: Step) -> bool:
    """Return whether values that hold all gates of a cell come before a step's output."""
    width = step.output.shape[-1] if step.output.ndim else 0
    gate_shapes = {(*step.output.shape[:-1], count * width) for count in _GATE_COUNTS}
    return any(operand.shape in gate_shapes for operand in case.list_shared_operands())
