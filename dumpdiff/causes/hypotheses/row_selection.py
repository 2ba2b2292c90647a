"""Rows selected by number: other rows, or positions with an offset."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...model.arrays import AnyArray
from ..fault_case import FaultCase
from ..hypothesis import Candidate, Hypothesis

#: Rows by which a selection may be shifted.
_SHIFTS = (1, -1, 2, -2)
#: Fewest positions that show an offset.
_MIN_POSITIONS = 3
_COMPUTED_FINDINGS = ("introduced", "region")


def suggest_shifted_rows(case: FaultCase) -> Iterator[Candidate]:
    """Suggest faulty = table[ids + k] if faithful = table[ids]; ids 0, 1, 2, ... are positions."""
    if not case.is_forward_value or case.faithful.ndim < 2:
        return
    shape = case.faithful.shape
    integer_arrays = [
        operand.array
        for operand in case.operands
        if operand.array.dtype.kind in "iu" and operand.shape
    ]
    for table in case.find_matrix_operands():
        n_rows, width = table.shape
        if width != shape[-1]:
            continue
        n_ids = case.faithful.size // width
        for ids in (*integer_arrays, np.arange(n_ids)):
            if ids.size != n_ids or ids.min() < 0 or ids.max() >= n_rows:
                continue
            unchanged = table.array[ids.reshape(-1)].reshape(shape)
            if not case.matches_faithful(unchanged):
                continue
            first_row = ids.reshape(-1)[: ids.shape[-1]]
            for shift in _SHIFTS:
                description, contrast, cause = f"rows shifted by {shift}", "", "row-shift"
                if _counts_up(first_row):
                    description, contrast = format_position_offset(shift, int(first_row[0]))
                    cause = "position-offset"
                shifted_ids = (ids.reshape(-1) + shift) % n_rows
                yield Candidate(
                    table.array[shifted_ids].reshape(shape),
                    description,
                    contrast,
                    parameters={"shift": float(shift)},
                    unchanged=unchanged,
                    cause=cause,
                )


def format_position_offset(offset: int, first_position: int) -> tuple[str, str]:
    """Return (description, contrast) of other positions than those from ``first_position`` on."""
    description = f"positions shifted by {offset}, from {first_position + offset} on"
    return description, f"begins at {first_position}"


def _counts_up(numbers: AnyArray) -> bool:
    """Return whether the numbers increase by 1 along the last axis."""
    return bool(np.array_equal(np.unique(np.diff(numbers, axis=-1)), [1]))


def suggest_position_offset(case: FaultCase) -> Iterator[Candidate]:
    """Suggest another first position, if the faithful side counts up."""
    if not case.is_discrete or case.faithful.size < _MIN_POSITIONS:
        return
    if not case.is_source and case.finding.kind not in _COMPUTED_FINDINGS:
        return
    offset = float(case.faulty.flat[0] - case.faithful.flat[0])
    rows = case.faithful.reshape(-1, case.faithful.shape[-1])
    if offset and _counts_up(rows):
        yield Candidate(
            case.faithful + offset,
            *format_position_offset(int(offset), int(case.faithful.flat[0])),
            parameters={"offset": offset},
            unchanged=case.faithful,
            cause="position-offset",
        )


HYPOTHESES = (
    Hypothesis("row-shift", suggest_shifted_rows),
    Hypothesis("position-offset", suggest_position_offset),
)
