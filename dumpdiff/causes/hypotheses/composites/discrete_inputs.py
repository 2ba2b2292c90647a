"""Whole numbers that a region reads: labels, indices and masks, shifted or taken from elsewhere.

The region is run with the numbers that the other side recorded, or with shifted ones. Several steps
may read the same numbers, such as both halves of a contrastive loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

import numpy as np

from ....comparison.mask_fill import FILLING_KINDS
from ....model.arrays import AnyArray
from ....model.formatting import format_first_numbers
from ...fault_case import FaultCase
from ...region import Region, Step, StepInput
from .change import Change

#: Kinds of ops whose whole numbers follow from floating values: noise, or the fault itself, changes
#: them, and they are no cause unless they agree.
_DECIDING_KINDS = {
    "topk", "argmax", "argmin", "sort", "argsort", "searchsorted", "bucketize", "round", "floor",
    "ceil", "cast", "gt", "ge", "lt", "le", "multinomial", "bernoulli", "randperm",
}  # fmt: skip
#: Kinds of losses that read labels, and kinds that look rows up.
_LOSS_KINDS = {"cross_entropy", "nll_loss", "bce_loss", "ctc_loss", "one_hot"}
_LOOKUP_KINDS = {"gather_rows", "gather_elements", "gather_nd", "embedding_bag"}
#: Kinds that sum rows up behind indices; rows of negative numbers are left out when they are run.
_SUM_KINDS = {"segment_sum", "scatter_add"}
_MASKING_KINDS = {*FILLING_KINDS, "attention"}
#: Places by which numbers may be shifted, and numbers that may be added to them.
_SHIFTS = (1, -1, 2, -2)
#: Fewest numbers of a tensor that is shifted, and share of them that must fit a shift: others come
#: in at the ends of rows.
_MIN_NUMBERS, _MIN_SHARE = 4, 0.7
#: Offsets that a sentence lists.
_N_LISTED = 4
#: Tensors of the other side that are tried in place of one.
_MAX_REPLACEMENTS = 6


def list_other_numbers(case: FaultCase, region: Region) -> Iterator[Change]:
    """Read other whole numbers: those of the other side, or shifted ones."""
    for number, item in _list_discrete_inputs(region):
        equal_items = _find_equal_inputs(region, item)
        values = {own.value for _, own in equal_items}
        kinds = {step.kind for step, _ in equal_items}
        others: list[tuple[str, AnyArray]] = []  # names of their ops, '' of shifted ones
        for operand in case.faulty_operands:
            other = operand.array
            if other.dtype.kind not in "iub" or other.size != item.array.size:
                continue
            is_decided = operand.kind in _DECIDING_KINDS and not operand.agrees
            if is_decided or (other.dtype == bool) != _is_mask(item):
                continue
            other = other.reshape(item.array.shape)
            # one side may mask what the other one keeps
            readings = (other, ~other) if _is_mask(item) else (other,)
            others += [
                (operand.name, array) for array in readings if not np.array_equal(array, item.array)
            ]
        others = others[:_MAX_REPLACEMENTS]
        if not _is_mask(item) and item.array.size >= _MIN_NUMBERS:
            others += [("", array) for array in _shift(item.array)]
        for name, other in others:
            cause, text, contrast = _describe_numbers(kinds, item, name, other)
            yield Change(
                number,
                region.steps[number].output,
                cause,
                text,
                contrast,
                replaced_values=dict.fromkeys(values, other),
            )


def list_exchanged_numbers(case: FaultCase, region: Region) -> Iterator[Change]:
    """Exchange two tensors of whole numbers, as the two ends of edges."""
    del case
    inputs = [
        (number, item) for number, item in _list_discrete_inputs(region) if not _is_mask(item)
    ]
    for (number, item), (_, other) in combinations(inputs, 2):
        if item.array.shape != other.array.shape:
            continue
        readers = [_find_equal_inputs(region, own) for own in (item, other)]
        values, other_values = ({own.value for _, own in equal} for equal in readers)
        kinds, other_kinds = (_format_kinds(equal) for equal in readers)
        yield Change(
            number,
            region.steps[number].output,
            "input-order",
            f"the indices of {kinds} and of {other_kinds} exchanged",
            replaced_values={
                **dict.fromkeys(values, other.array),
                **dict.fromkeys(other_values, item.array),
            },
        )


def list_lost_numbers(case: FaultCase, region: Region) -> Iterator[Change]:
    """Sum up only the first or last rows, as many as the other side has indices of that order."""
    for number, item in _list_discrete_inputs(region):
        readers = _find_equal_inputs(region, item)
        if item.array.ndim != 1 or not {step.kind for step, _ in readers} & _SUM_KINDS:
            continue
        for operand in case.faulty_operands:
            kept, n_lost = operand.array, item.array.size - operand.array.size
            if kept.dtype.kind not in "iu" or kept.ndim != 1 or n_lost <= 0 or len(kept) < n_lost:
                continue
            n_rows, lost = item.array.size, np.full(n_lost, -1)
            for other, text in (
                (np.concatenate([kept, lost]), f"without the last {n_lost} of {n_rows} rows"),
                (np.concatenate([lost, kept]), f"without the first {n_lost} of {n_rows} rows"),
            ):
                if np.array_equal(other[other >= 0], item.array[other >= 0]):
                    yield Change(
                        number,
                        region.steps[number].output,
                        "missing-term",
                        text,
                        f"sums all of them up ({_format_kinds(readers)})",
                        predicted=_replace_numbers(region, item, other).unchanged,
                    )


def _replace_numbers(region: Region, item: StepInput, numbers: AnyArray) -> Region:
    """Return the region with other numbers in place of an input; rows of lost ones are any rows."""
    steps = {}
    for number, step in enumerate(region.steps):
        array = numbers if step.kind in _SUM_KINDS else numbers.clip(min=0)
        inputs = tuple(
            replace(own, value=-1, array=array) if np.array_equal(own.array, item.array) else own
            for own in step.inputs
        )
        steps[number] = replace(step, inputs=inputs)
    return region.replace_steps(steps)


def _format_kinds(readers: list[tuple[Step, StepInput]]) -> str:
    return ", ".join(sorted({step.kind for step, _ in readers}))


def _find_equal_inputs(region: Region, item: StepInput) -> list[tuple[Step, StepInput]]:
    """Return (step, input) of all that read the same numbers, which each op may have recorded."""
    return [
        (step, own)
        for step in region.steps
        for own in step.inputs
        if own.value == item.value or (own.value >= 0 and np.array_equal(own.array, item.array))
    ]


def _list_discrete_inputs(region: Region) -> Iterator[tuple[int, StepInput]]:
    """Yield (number of the first step that reads it, input) of whole numbers and masks."""
    known: list[AnyArray] = []
    for number, step in enumerate(region.steps):
        for item in step.inputs:
            is_discrete = item.array.dtype.kind in "iub" and item.array.ndim > 0
            is_decided = item.producer_kind in _DECIDING_KINDS and not item.agrees
            if not is_discrete or item.value < 0 or is_decided:
                continue
            if not any(np.array_equal(item.array, array) for array in known):
                known.append(item.array)
                yield number, item


def _is_mask(item: StepInput) -> bool:
    return item.array.dtype == bool


def _shift(array: AnyArray) -> list[AnyArray]:
    """Return the numbers shifted along the last axis, and the next numbers; never below zero."""
    shifted = [np.roll(array, shift, axis=-1) for shift in _SHIFTS]
    for addend in _SHIFTS:
        moved = array + addend
        if moved.min() >= 0 and array.min() >= 0:
            shifted.append(moved)
    return [other for other in shifted if not np.array_equal(other, array)]


def _describe_numbers(
    kinds: set[str], item: StepInput, name: str, other: AnyArray
) -> tuple[str, str, str]:
    """Return (cause, description, contrast) of other numbers in place of an input."""
    noun = "labels" if kinds & _LOSS_KINDS else "indices"
    if _is_mask(item):
        return _describe_mask(kinds, item.array, name, other)
    if kinds == {"ctc_loss"} and item.array.ndim == 1:
        return _describe_lengths(item.array, other)
    relation = _find_relation(item.array, other)
    if relation and noun == "labels":
        return "label-shift", f"labels {relation}", ""
    offsets = _find_offsets(item.array, other)
    if offsets:
        listed = format_first_numbers(offsets, _N_LISTED)
        text = f"indices without the offsets {listed} of their columns"
        return "missing-term", text, f"has those of {item.name}"
    if relation:
        cause = "position-offset" if kinds & _LOOKUP_KINDS else "row-shift"
        return cause, f"indices {relation}", f"has those of {item.name}"
    cause = "loss-target" if noun == "labels" else "input-source"
    readers = ", ".join(sorted(kinds))
    return cause, f"other {noun} ({readers})", f"reads {item.name}"


def _describe_lengths(lengths: AnyArray, others: AnyArray) -> tuple[str, str, str]:
    """Return (cause, description, contrast) of other numbers of steps or labels that count."""
    is_all = any(len(array) > 1 and np.ptp(array) == 0 for array in (lengths, others))
    listed, other_listed = (
        format_first_numbers(array.tolist(), _N_LISTED) for array in (lengths, others)
    )
    cause = "mask-missing" if is_all else "input-source"
    return cause, f"sequences of lengths {other_listed}", f"takes {listed}"


def _describe_mask(
    kinds: set[str], array: AnyArray, name: str, other: AnyArray
) -> tuple[str, str, str]:
    """Return (cause, description, contrast) of another mask in place of one."""
    cause = "mask-kind" if kinds & _MASKING_KINDS else "input-source"
    if np.array_equal(array, ~other):
        return cause, "the inverse of the mask", ""
    shift = _find_shift(array, other, min_share=1.0)
    if shift is not None:
        cause = "mask-shifted" if kinds & _MASKING_KINDS else "row-shift"
        return cause, f"a mask shifted by {shift[1]} along axis {shift[0]}", ""
    counts = int(array.sum()), int(other.sum())
    text = f"another mask ({name}), of {counts[1]} of {other.size} elements"
    return cause, text, f"masks {counts[0]}"


def _find_shift(array: AnyArray, other: AnyArray, min_share: float) -> tuple[int, int] | None:
    """Return (axis, shift) by which that share of the elements follows from others."""
    for axis, shift in product(range(array.ndim), _SHIFTS):
        is_shifted = np.roll(array, shift, axis) == other
        if array.shape[axis] > 1 and np.mean(is_shifted) >= min_share:
            return axis, shift
    return None


def _find_offsets(array: AnyArray, other: AnyArray) -> list[int]:
    """Return what is added to each column of numbers, if that differs by column; else nothing.

    The fields of a common table of embeddings begin at other rows.
    """
    if array.ndim < 2 or array.shape != other.shape:
        return []
    difference = (array.astype(np.int64) - other.astype(np.int64)).reshape(-1, array.shape[-1])
    offsets = difference[0]
    is_by_column = len(difference) > 1 and bool(np.all(difference == offsets))
    is_growing = len(offsets) > 1 and bool(np.all(np.diff(offsets) > 0)) and offsets[0] == 0
    return offsets.tolist() if is_by_column and is_growing else []


def _find_relation(array: AnyArray, other: AnyArray) -> str:
    """Return how numbers follow from others, '' if in no simple way."""
    difference = other.astype(np.int64) - array.astype(np.int64)
    if np.ptp(difference) == 0:
        return f"plus {difference.flat[0]}"
    modulus = int(array.max()) + 1
    remainders = difference % modulus
    if np.ptp(remainders) == 0 and other.min() >= 0 and other.max() < modulus:
        addend = int(remainders.flat[0])
        addend = addend - modulus if addend > modulus // 2 else addend
        return f"plus {addend}, modulo {modulus}"
    if array.size < _MIN_NUMBERS:
        return ""
    shift = _find_shift(array, other, _MIN_SHARE)
    return "" if shift is None else f"shifted by {shift[1]}"
