"""The elements of a part of two tensors next to each other, and where they differ most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..model.arrays import AnyArray, Floats

MAX_ROWS, MAX_COLUMNS = 12, 5  #: elements of a window along either axis, as fit next to a table
_SLAB = 1 << 18  #: elements that are compared together, 2 MiB as float64


@dataclass(frozen=True)
class ValueWindow:
    """Elements of two tensors of one shape: along two axes, at one index of every other axis.

    A tensor of one axis is a column; one of none is a single element.
    """

    shape: tuple[int, ...]
    start: tuple[int, ...]  #: the index of the first element that is shown
    row_axis: int  #: -1 if the tensor has no axis
    column_axis: int  #: -1 if the tensor has one axis
    target: tuple[tuple[float, ...], ...]
    reference: tuple[tuple[float, ...], ...]


def find_largest_difference(
    target: AnyArray, reference: AnyArray
) -> tuple[tuple[int, ...], float] | None:
    """Return the index of the largest |target - reference| and that difference.

    A number that is not finite on one side, or in another way, differs by infinity. Of equal
    differences the first counts. None if the tensors are empty.
    """
    if target.size == 0:
        return None
    flat_target, flat_reference = target.reshape(-1), reference.reshape(-1)
    largest, position = -1.0, 0
    for start in range(0, target.size, _SLAB):
        part = slice(start, start + _SLAB)
        difference = compute_differences(flat_target[part], flat_reference[part])
        place = int(np.argmax(difference))
        if difference[place] > largest:
            largest, position = float(difference[place]), start + place
    index = np.unravel_index(position, target.shape)
    return tuple(int(number) for number in index), largest


def compute_differences(target: AnyArray, reference: AnyArray) -> Floats:
    """Return |target - reference| of every element, infinite where only one side is finite."""
    kind = np.complex128 if "c" in (target.dtype.kind, reference.dtype.kind) else np.float64
    wide_target, wide_reference = target.astype(kind), reference.astype(kind)
    with np.errstate(all="ignore"):
        difference = np.abs(wide_target - wide_reference)
        is_same = (wide_target == wide_reference) | (
            np.isnan(wide_target) & np.isnan(wide_reference)
        )
    difference = np.where(np.isnan(difference), np.inf, difference)
    return np.where(is_same, 0.0, difference)


def cut_window(
    target: AnyArray,
    reference: AnyArray,
    start: Sequence[int] = (),
    axes: tuple[int, int] | None = None,
) -> ValueWindow:
    """Return a window of two tensors of one shape that begins near the index ``start``.

    ``axes`` are those of the rows and of the columns; without them the last two are taken that
    have more than one element. Indices and axes outside of the tensor are moved into it.
    """
    shape = tuple(target.shape)
    row_axis, column_axis = _choose_axes(shape, axes)
    first = [0] * len(shape)
    for axis, length in enumerate(shape):
        wanted = start[axis] if axis < len(start) else 0
        shown = {row_axis: MAX_ROWS, column_axis: MAX_COLUMNS}.get(axis, 1)
        first[axis] = max(0, min(wanted, length - shown))
    parts: list[slice | int] = list(first)
    for axis, count in ((row_axis, MAX_ROWS), (column_axis, MAX_COLUMNS)):
        if axis >= 0:
            parts[axis] = slice(first[axis], first[axis] + count)
    windows = []
    for array in (target, reference):
        window = np.asarray(array[tuple(parts)])
        if 0 <= column_axis < row_axis:
            window = window.T
        windows.append(_to_rows(window.reshape(-1, 1) if column_axis < 0 else window))
    return ValueWindow(shape, tuple(first), row_axis, column_axis, windows[0], windows[1])


def _choose_axes(shape: tuple[int, ...], axes: tuple[int, int] | None) -> tuple[int, int]:
    """Return the axes of the rows and of the columns, -1 for one that the tensor does not have."""
    n_axes = len(shape)
    if n_axes < 2:
        return n_axes - 1, -1
    is_chosen = axes is not None and axes[0] != axes[1]
    if axes is not None and is_chosen and all(0 <= axis < n_axes for axis in axes):
        return axes
    long_axes = [axis for axis, length in enumerate(shape) if length > 1]
    other_axes = [axis for axis in reversed(range(n_axes)) if axis not in long_axes]
    row_axis, column_axis = sorted((*long_axes[-2:], *other_axes[: 2 - len(long_axes[-2:])]))
    return row_axis, column_axis


def _to_rows(window: AnyArray) -> tuple[tuple[float, ...], ...]:
    """Return the elements as numbers of Python; of complex ones the magnitude."""
    values = np.abs(window) if window.dtype.kind == "c" else window.astype(np.float64)
    return tuple(tuple(map(float, row)) for row in values.tolist())


def find_window_start(window: ValueWindow, index: Sequence[int]) -> tuple[int, ...]:
    """Return where a window begins that has the element ``index`` in its middle."""
    half = {window.row_axis: MAX_ROWS // 2, window.column_axis: MAX_COLUMNS // 2}
    return tuple(number - half.get(axis, 0) for axis, number in enumerate(index))
