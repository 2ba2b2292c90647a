"""Rows of a value that lie elsewhere: other ones, or in another order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from ...model.arrays import Ints
from ...model.formatting import format_first_numbers
from ..element_places import find_exchanged_lengths, find_nearest_rows
from ..fault_case import FaultCase
from ..hypothesis import Candidate, Hypothesis

#: Products of the elements of a value and the rows of a table that are compared with each other.
_MAX_DISTANCES = 1 << 26
#: Rows that a sentence lists.
_N_LISTED = 4
_OWN_ROWS = "its rows"


def suggest_rows_elsewhere(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that both sides hold rows of one value: other ones, or in another order.

    Which ones follows from their numbers, so no op that selects or moves them needs to be recorded.
    """
    if not case.is_forward_value or case.faithful.ndim < 2:
        return
    grid, width = case.faithful.shape[:-1], case.faithful.shape[-1]
    n_rows = case.faithful.size // width
    tables = [
        (operand.name, operand.array)
        for operand in case.list_shared_operands()
        if operand.is_floating and operand.shape[-1:] == (width,)
    ]
    tables.append((_OWN_ROWS, case.faithful))
    for name, array in tables:
        table = array.reshape(-1, width)
        if width < 2 or n_rows < 2 or len(table) * case.faithful.size > _MAX_DISTANCES:
            continue
        faithful_ids, faulty_ids = (
            find_nearest_rows(table, rows.reshape(-1, width))
            for rows in (case.faithful, case.faulty)
        )
        is_permutation = np.array_equal(np.sort(faithful_ids), np.sort(faulty_ids))
        if np.array_equal(faithful_ids, faulty_ids) or (name == _OWN_ROWS and not is_permutation):
            continue
        cause, description, contrast = _describe_moved_rows(name, faulty_ids, faithful_ids, grid)
        yield Candidate(
            table[faulty_ids].reshape(case.faithful.shape),
            description,
            contrast,
            unchanged=table[faithful_ids].reshape(case.faithful.shape),
            cause=cause,
        )


def _describe_moved_rows(
    name: str, ids: Ints, faithful_ids: Ints, grid: tuple[int, ...]
) -> tuple[str, str, str]:
    """Return (cause, description, contrast) of other rows of a value; ``grid``: all axes but one.

    The rows of an image may lie on one axis.
    """
    is_unique = len(np.unique(faithful_ids)) == len(ids)
    if is_unique and np.array_equal(np.sort(ids), np.sort(faithful_ids)):
        places = np.empty(int(faithful_ids.max()) + 1, int)
        places[faithful_ids] = np.arange(len(ids))
        return _describe_order(name, places[ids], grid)
    length = _find_missing_offset(faithful_ids - ids, grid)
    if length:
        text = (
            f"rows of {name} counted in each of {grid[0]} blocks, without {length} times its number"
        )
        return "missing-term", text, "adds that offset"
    length = _find_missing_offset(ids - faithful_ids, grid)
    if length:
        text = f"rows of {name} counted from the first of {grid[0]} blocks on"
        return "missing-term", text, f"counts them in each block, without {length} times its number"
    differences = np.unique(ids - faithful_ids)
    if len(differences) == 1:
        return "row-shift", f"rows of {name} shifted by {differences[0]}", ""
    numbers, own_numbers = (
        format_first_numbers(each.tolist(), _N_LISTED) for each in (ids, faithful_ids)
    )
    return "input-source", f"rows {numbers} of {name}", f"takes rows {own_numbers}"


def _describe_order(name: str, order: Ints, grid: tuple[int, ...]) -> tuple[str, str, str]:
    """Return (cause, description, contrast) of the same rows in another order."""
    subject = name if name == _OWN_ROWS else f"the rows of {name}"
    for shape in _list_grids(grid):
        moved = _describe_move(order, shape)
        if moved is not None:
            return moved[0], f"{subject} {moved[1]}", ""
    lengths = find_exchanged_lengths(order)
    if lengths is not None:
        text = f"{subject} read with its axes of {lengths[0]} and {lengths[1]} exchanged"
        return "axes-swapped", text, ""
    numbers = format_first_numbers(order.tolist(), _N_LISTED)
    if name == _OWN_ROWS:
        return "input-order", f"its rows in the order {numbers}", ""
    return "input-order", f"the rows of {name} in the order {numbers}", ""


def _find_missing_offset(differences: Ints, grid: tuple[int, ...]) -> int:
    """Return k if the rows of the i-th block are i k apart, 0 if they are not.

    An index into a flat batch is that in its sequence plus the number of the sequence times its
    length.
    """
    if len(grid) < 2 or grid[0] < 2:
        return 0
    by_block = differences.reshape(grid[0], -1)
    length = int(by_block[1, 0])
    is_growing = bool(np.all(by_block == length * np.arange(grid[0])[:, None]))
    return length if length > 0 and is_growing else 0


def _list_grids(grid: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the axes of rows, then those with the last one cut into the two of an image."""
    yield grid
    for height in range(2, grid[-1] // 2 + 1):
        if grid[-1] % height == 0:
            yield (*grid[:-1], height, grid[-1] // height)


def _describe_move(order: Ints, shape: tuple[int, ...]) -> tuple[str, str] | None:
    """Return (cause, description) of rows that are rolled, reversed or transposed; else None."""
    rows = np.arange(len(order)).reshape(shape)
    places = np.stack(np.unravel_index(np.arange(len(order)), shape))
    lengths = np.array(shape)[:, None]
    shifts = (places - np.stack(np.unravel_index(order, shape))) % lengths
    if np.all(shifts == shifts[:, :1]):
        signed = np.where(2 * shifts > lengths, shifts - lengths, shifts)[:, 0].tolist()
        texts = [f"by {shift} along axis {axis}" for axis, shift in enumerate(signed) if shift]
        return "row-shift", f"rolled {' and '.join(texts)} of {shape}"
    for axis, length in enumerate(shape):
        if length > 1 and np.array_equal(np.flip(rows, axis).reshape(-1), order):
            return "scan-direction", f"reversed along axis {axis} of {shape}"
    for first, second in combinations(range(len(shape)), 2):
        if np.array_equal(np.swapaxes(rows, first, second).reshape(-1), order):
            text = f"read with axes {first} and {second} of {shape} exchanged"
            return "axes-swapped", text
    return None


#: They say which numbers are there, not which op put them there.
LAST_HYPOTHESES = (Hypothesis("row-shift", suggest_rows_elsewhere),)
