"""Two whole tensors walked once, side by side: how their values are spread, and where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from ..comparison.metrics import aside
from ..model.arrays import AnyArray, Flags, Floats, Ints
from ..model.dtypes import MASK
from ..model.finding_context import DifferenceMap, Histogram
from .histograms import Bins, counted, joined

BLOCKS = 64  #: of a difference map, along either axis
_SLAB = 1 << 15  # elements looked at together: 256 KiB as float64, which stay in cache


def pictures(
    target: AnyArray, reference: AnyArray
) -> tuple[Histogram | None, DifferenceMap | None]:
    """The histogram and the difference map of two arrays of one shape; None for a single number.

    Elements that are masked (at their tensor's large negative constant) or infinite on both sides are in no bin and
    count as equal. No copy of the whole is made, so that the arrays may be mapped from files.
    """
    if target.size < 2:
        return None, None
    shape = (*reference.shape, 2) if reference.dtype.kind == "c" else reference.shape
    *down, across = (axis for axis, length in enumerate(shape) if length > 1)
    rows, columns = prod(shape[axis] for axis in down), shape[across]
    values = np.zeros((min(rows, BLOCKS), min(columns, BLOCKS)))
    bins: Bins | None = None
    squares, finite = 0.0, 0
    with np.errstate(all="ignore"):
        for start, t, r in _slabs(target, reference, 0):
            ours, theirs = _numbers(t), _numbers(r)
            out_t, out_r = _aside(ours), _aside(theirs)
            kept_t, kept_r = (
                v if out is None else v[~out] for v, out in ((ours, out_t), (theirs, out_r))
            )
            found = counted(kept_t, kept_r)
            bins = found if bins is None else bins if found is None else joined((bins, found))
            squares, finite = squares + float(np.dot(kept_r, kept_r)), finite + kept_r.size
            _note(values, start, columns, rows, _gap(ours, theirs, out_t, out_r))
    return (
        None if bins is None else bins.histogram(),
        DifferenceMap(
            values=tuple(map(tuple, values.tolist())),
            rows=_said(shape, down),
            columns=_said(shape, [across]),
            scale=float(np.sqrt(squares / finite)) if finite else np.nan,
        ),
    )


def _slabs(t: AnyArray, r: AnyArray, start: int) -> Iterator[tuple[int, AnyArray, AnyArray]]:
    """(number of the first element, piece of either array) in C order: whole rows of the last axis, or parts of one."""
    if t.size <= _SLAB:
        yield start, t, r
        return
    inner = t.size // len(t)
    step = max(1, _SLAB // inner)
    for at in range(0, len(t), step):
        if inner > _SLAB:
            yield from _slabs(t[at], r[at], start + at * inner)
        else:
            yield start + at * inner, t[at : at + step], r[at : at + step]


def _gap(t: Floats, r: Floats, out_t: Flags | None, out_r: Flags | None) -> Floats:
    """|t - r|: 0 where both are masked or not finite alike, NaN where they are not finite in another way."""
    gap: Floats = np.abs(t - r)
    if out_t is not None and out_r is not None:
        gap[out_t & out_r & (np.isnan(t) == np.isnan(r)) & ((t < 0) == (r < 0))] = 0.0
    if out_t is not None or out_r is not None:
        gap[~np.isfinite(gap)] = np.nan
    return gap


def _note(values: Floats, start: int, columns: int, rows: int, gap: Floats) -> None:
    """Raise the blocks of the map to what a slab that begins at element ``start`` holds; NaN stays."""
    first_row, first_column = divmod(start, columns)
    matrix = gap.reshape(-1, columns) if gap.size >= columns else gap.reshape(1, -1)
    down, row_starts = _cut(first_row, matrix.shape[0], rows, values.shape[0])
    across, column_starts = _cut(first_column, matrix.shape[1], columns, values.shape[1])
    found = np.maximum.reduceat(
        np.maximum.reduceat(matrix, row_starts, axis=0), column_starts, axis=1
    )
    region = np.ix_(down, across)
    values[region] = np.maximum(values[region], found)


def _cut(first: int, count: int, total: int, blocks: int) -> tuple[Ints, Ints]:
    """(numbers of the blocks that ``count`` of ``total`` lines from ``first`` on are in, where each begins)."""
    block = np.arange(first * blocks // total, (first + count - 1) * blocks // total + 1)
    return block, np.maximum(
        -(-block * total // blocks) - first, 0
    )  # line i is in block i * blocks // total


def _numbers(piece: AnyArray) -> Floats:
    return _real(piece).reshape(-1).astype(np.float64)


def _real(array: AnyArray) -> AnyArray:
    """Complex numbers as pairs of real ones along a further axis."""
    return np.stack((array.real, array.imag), axis=-1) if array.dtype.kind == "c" else array


def _aside(numbers: Floats) -> Flags | None:
    """Elements that are masked or not finite, None where there are none."""
    if not numbers.size or (numbers.min() > -MASK and numbers.max() < np.inf):
        return None
    return aside(numbers)


def _said(shape: Sequence[int], axes: Sequence[int]) -> str:
    """Axes and their lengths, in words: 'axes 0, 1 (2 x 16)'; '' for none."""
    numbers, lengths = ", ".join(map(str, axes)), " x ".join(str(shape[axis]) for axis in axes)
    return f"{'axis' if len(axes) == 1 else 'axes'} {numbers} ({lengths})" if axes else ""
