"""Rows selected by number: other rows, or positions with an offset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...model.arrays import AnyArray, Ints
from ...model.formatting import format_first_numbers
from ..fault_case import FaultCase
from ..hypothesis import Candidate, Hypothesis

#: Rows by which a selection may be shifted.
_SHIFTS = (1, -1, 2, -2)
#: Fewest positions that show an offset.
_MIN_POSITIONS = 3
#: Tokens that a sentence lists.
_N_LISTED = 4
#: Parts of a value that joins the states of both directions of a recurrent layer.
_N_DIRECTIONS = 2
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


def suggest_relative_rows(case: FaultCase) -> Iterator[Candidate]:
    """Suggest other rows of a table of relative positions."""
    for candidate in suggest_other_rows(case):
        if candidate.cause == "relative-bias":
            yield candidate


def suggest_other_rows(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that other rows of the same table are read; which ones follows from their values."""
    if not case.is_forward_value or case.faithful.ndim < 2:
        return
    shape = case.faithful.shape
    for table in case.find_matrix_operands():
        if table.shape[1] != shape[-1]:
            continue
        row_numbers = {row.tobytes(): number for number, row in enumerate(table.array)}
        faithful_ids = _find_rows(row_numbers, case.faithful)
        faulty_ids = _find_rows(row_numbers, case.faulty)
        if faithful_ids is None or faulty_ids is None or np.array_equal(faithful_ids, faulty_ids):
            continue
        description, contrast, cause = _describe_rows(faulty_ids, faithful_ids)
        if cause == "row-shift" and _are_given(case, faulty_ids, faithful_ids):
            contrast, cause = "was given other indices in the batch", "batch"
        yield Candidate(
            table.array[faulty_ids].reshape(shape),
            description,
            contrast,
            parameters={"rows": float((faulty_ids != faithful_ids).sum())},
            unchanged=table.array[faithful_ids].reshape(shape),
            cause=cause,
        )


def _are_given(case: FaultCase, ids: Ints, faithful_ids: Ints) -> bool:
    """Return whether both sides read their indices as they were given to the run.

    One side may have read more of them, of which a later op takes a part.
    """
    sides = ((case.faulty_operands, ids), (case.operands, faithful_ids))
    return all(
        any(
            not operand.kind
            and operand.array.dtype.kind in "iu"
            and operand.array.size >= rows.size
            and np.isin(rows, operand.array).all()
            for operand in operands
        )
        for operands, rows in sides
    )


def _find_rows(row_numbers: Mapping[bytes, int], array: AnyArray) -> Ints | None:
    """Return the number of the table's row that each row is; None if one is not in the table."""
    rows = np.ascontiguousarray(array.reshape(-1, array.shape[-1]))
    numbers = [row_numbers.get(row.tobytes(), -1) for row in rows]
    return None if -1 in numbers else np.array(numbers)


def _describe_rows(ids: Ints, faithful_ids: Ints) -> tuple[str, str, str]:
    """Return (description, contrast, cause) of other rows of a table."""
    n_rows, n_wrong = len(ids), int((ids != faithful_ids).sum())
    matrix, faithful_matrix = _read_distances(ids), _read_distances(faithful_ids)
    if matrix is None or faithful_matrix is None:
        return f"other rows of the table ({n_wrong} of {n_rows})", "", "row-shift"
    text = f"other rows of the table of relative positions ({n_wrong} of {n_rows})"
    differences = np.unique(ids - faithful_ids)
    if len(differences) == 1:
        return f"{text}: shifted by {differences[0]}", "", "relative-bias"
    if np.array_equal(matrix, faithful_matrix.T):
        return f"{text}: distances with the other sign", "", "relative-bias"
    counts = [len(np.unique(side_ids)) for side_ids in (ids, faithful_ids)]
    if counts[0] == counts[1]:
        return text, "", "relative-bias"
    return f"{text}: {counts[0]} buckets", f"has {counts[1]}", "relative-bias"


def _read_distances(ids: Ints) -> Ints | None:
    """Return the rows by (query, key), if a row depends on the distance alone; else None."""
    length = int(np.sqrt(len(ids)))
    if length < _MIN_POSITIONS or length * length != len(ids):
        return None
    matrix = ids.reshape(length, length)
    return matrix if np.array_equal(matrix[1:, 1:], matrix[:-1, :-1]) else None


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


def suggest_other_tokens(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that another token stands for each sequence: the last one, not that of its end.

    Both values are one row of each sequence (batch, tokens, size). Recorders leave out an indexing,
    so the rows are found by their numbers.
    """
    if not case.is_forward_value or case.faithful.ndim != 2:
        return
    n_sequences, width = case.faithful.shape
    for operand in case.list_shared_operands():
        is_sequences = len(operand.shape) == 3 and operand.shape[::2] == (n_sequences, width)
        if not is_sequences or not operand.is_floating or operand.shape[1] < 2:
            continue
        for n_parts in (1, _N_DIRECTIONS):  # of both directions of a recurrent layer
            if width % n_parts:
                continue
            wholes = np.split(operand.array, n_parts, axis=-1)
            tokens = [
                [
                    _find_tokens(whole, part)
                    for whole, part in zip(wholes, np.split(rows, n_parts, axis=-1), strict=True)
                ]
                for rows in (case.faulty, case.faithful)
            ]
            if np.array_equal(tokens[0], tokens[1]):
                continue
            predicted, unchanged = (_take_tokens(wholes, each) for each in tokens)
            texts = [_describe_tokens(each, operand.name) for each in tokens]
            (description, _), (_, contrast) = texts
            yield Candidate(predicted, description, contrast, unchanged=unchanged, cause="pooling")


def _take_tokens(wholes: Sequence[AnyArray], tokens: Sequence[Ints]) -> AnyArray:
    """Return one token of each sequence, joined of parts that may be of other tokens."""
    rows = np.arange(len(wholes[0]))
    parts = [whole[rows, each] for whole, each in zip(wholes, tokens, strict=True)]
    return np.concatenate(parts, axis=-1)


def _find_tokens(sequences: AnyArray, rows: AnyArray) -> Ints:
    """Return per sequence the token that is nearest to its row."""
    distances = np.linalg.norm(sequences - rows[:, None], axis=-1)
    nearest: Ints = np.argmin(distances, axis=1)
    return nearest


def _describe_tokens(tokens: Sequence[Ints], name: str) -> tuple[str, str]:
    """Return (description, contrast) of one token of each sequence; of several parts, of each."""
    lists = []
    for each in tokens:
        is_one = (each == each[0]).all()
        numbers = format_first_numbers(each.tolist(), _N_LISTED)
        lists.append(f"token {each[0]}" if is_one else f"tokens {numbers}")
    if len(lists) == 1 and lists[0].startswith("token "):
        return f"{lists[0]} for each sequence of {name}", f"takes {lists[0]}"
    text = lists[0]
    if len(lists) > 1:
        text = " and ".join(f"{each} in part {n}" for n, each in enumerate(lists, 1))
    return f"{text} for the sequences of {name}", f"takes {text}"


HYPOTHESES = (
    Hypothesis("pooling", suggest_other_tokens),
    Hypothesis("relative-bias", suggest_relative_rows),
    Hypothesis("row-shift", suggest_shifted_rows),
    Hypothesis("position-offset", suggest_position_offset),
    Hypothesis("row-shift", suggest_other_rows),
)
