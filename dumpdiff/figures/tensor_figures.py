"""Figures of two whole tensors, read once: how their values are distributed, where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from ..comparison.mask_fill import find_fill_limit, flag_fill
from ..model.arrays import AnyArray, Flags, Floats, Ints
from ..model.finding_context import DifferenceMap, Histogram
from .histograms import Bins, count_values, merge_bins

MAX_BLOCKS = 64  #: of a difference map, along either axis
_SLAB = 1 << 15  #: elements processed together: 256 KiB as float64, which stay in cache


def draw_tensors(
    target: AnyArray, reference: AnyArray, has_mask_fill: bool = False
) -> tuple[Histogram | None, DifferenceMap | None]:
    """Return the histogram and the difference map of two arrays of one shape.

    Both are None for a single number. Elements that are not finite are in no bin and count as equal
    if they are the same on both sides; so is mask fill, if ``has_mask_fill`` says that there can be
    any. The arrays are never copied as a whole, so they may be mapped from files.
    """
    if target.size < 2:
        return None, None
    shape = (*reference.shape, 2) if reference.dtype.kind == "c" else reference.shape
    *row_axes, column_axis = (axis for axis, length in enumerate(shape) if length > 1)
    n_rows, n_columns = prod(shape[axis] for axis in row_axes), shape[column_axis]
    maxima = np.zeros((min(n_rows, MAX_BLOCKS), min(n_columns, MAX_BLOCKS)))
    bins: Bins | None = None
    sum_of_squares, n_finite = 0.0, 0
    target_limit, reference_limit = 0.0, 0.0
    with np.errstate(all="ignore"):
        if has_mask_fill:
            target_limit, reference_limit = find_fill_limit(target), find_fill_limit(reference)
        for start, target_slab, reference_slab in _iterate_slabs(target, reference, 0):
            target_values = _flatten_to_float64(target_slab)
            reference_values = _flatten_to_float64(reference_slab)
            target_excluded = _find_excluded(target_values, target_limit)
            reference_excluded = _find_excluded(reference_values, reference_limit)
            target_counted = _remove_excluded(target_values, target_excluded)
            reference_counted = _remove_excluded(reference_values, reference_excluded)
            bins = _add_bins(bins, count_values(target_counted, reference_counted))
            sum_of_squares += float(np.dot(reference_counted, reference_counted))
            n_finite += reference_counted.size
            difference = _compute_difference(
                target_values, reference_values, target_excluded, reference_excluded
            )
            _update_block_maxima(maxima, start, n_columns, n_rows, difference)
    difference_map = DifferenceMap(
        values=tuple(map(tuple, maxima.tolist())),
        rows=_format_axes(shape, row_axes),
        columns=_format_axes(shape, [column_axis]),
        scale=float(np.sqrt(sum_of_squares / n_finite)) if n_finite else np.nan,
    )
    return (None if bins is None else bins.to_histogram()), difference_map


def _iterate_slabs(
    target: AnyArray, reference: AnyArray, start: int
) -> Iterator[tuple[int, AnyArray, AnyArray]]:
    """Yield (number of the first element, slab of either array) in C order.

    A slab is several whole rows of the last axis, or a part of one row.
    """
    if target.size <= _SLAB:
        yield start, target, reference
        return
    row_size = target.size // len(target)
    step = max(1, _SLAB // row_size)
    for index in range(0, len(target), step):
        row_start = start + index * row_size
        if row_size > _SLAB:
            yield from _iterate_slabs(target[index], reference[index], row_start)
        else:
            yield row_start, target[index : index + step], reference[index : index + step]


def _remove_excluded(values: Floats, excluded: Flags | None) -> Floats:
    return values if excluded is None else values[~excluded]


def _add_bins(bins: Bins | None, new_bins: Bins | None) -> Bins | None:
    if bins is None or new_bins is None:
        return bins or new_bins
    return merge_bins((bins, new_bins))


def _compute_difference(
    target: Floats,
    reference: Floats,
    target_excluded: Flags | None,
    reference_excluded: Flags | None,
) -> Floats:
    """Return |target - reference|.

    It is 0 where both are masked or non-finite in the same way, NaN where only one side is
    non-finite, or both are in different ways.
    """
    difference: Floats = np.abs(target - reference)
    if target_excluded is not None and reference_excluded is not None:
        same_nan = np.isnan(target) == np.isnan(reference)
        same_sign = (target < 0) == (reference < 0)
        difference[target_excluded & reference_excluded & same_nan & same_sign] = 0.0
    if target_excluded is not None or reference_excluded is not None:
        difference[~np.isfinite(difference)] = np.nan
    return difference


def _update_block_maxima(
    maxima: Floats, start: int, n_columns: int, n_rows: int, difference: Floats
) -> None:
    """Raise the block maxima to those of a slab that begins at element ``start``; NaN stays."""
    first_row, first_column = divmod(start, n_columns)
    is_part_of_row = difference.size < n_columns
    matrix = difference.reshape(1, -1) if is_part_of_row else difference.reshape(-1, n_columns)
    row_blocks, row_starts = _map_lines_to_blocks(
        first_row, matrix.shape[0], n_rows, maxima.shape[0]
    )
    column_blocks, column_starts = _map_lines_to_blocks(
        first_column, matrix.shape[1], n_columns, maxima.shape[1]
    )
    row_maxima = np.maximum.reduceat(matrix, row_starts, axis=0)
    slab_maxima = np.maximum.reduceat(row_maxima, column_starts, axis=1)
    region = np.ix_(row_blocks, column_blocks)
    maxima[region] = np.maximum(maxima[region], slab_maxima)


def _map_lines_to_blocks(first: int, count: int, total: int, n_blocks: int) -> tuple[Ints, Ints]:
    """Return (numbers of the blocks of some lines, the first of these lines in each block).

    The lines are ``count`` of ``total`` from ``first`` on. Line i is in block
    i * n_blocks // total.
    """
    blocks = np.arange(first * n_blocks // total, (first + count - 1) * n_blocks // total + 1)
    return blocks, np.maximum(-(-blocks * total // n_blocks) - first, 0)


def _flatten_to_float64(slab: AnyArray) -> Floats:
    return _split_complex(slab).reshape(-1).astype(np.float64)


def _split_complex(array: AnyArray) -> AnyArray:
    """Return complex numbers as pairs of real ones along a new last axis; others unchanged."""
    return np.stack((array.real, array.imag), axis=-1) if array.dtype.kind == "c" else array


def _find_excluded(values: Floats, fill_limit: float) -> Flags | None:
    """Return which elements are mask fill or non-finite, None if there are none."""
    excluded: Flags = ~np.isfinite(values) | flag_fill(values, fill_limit)
    return excluded if excluded.any() else None


def _format_axes(shape: Sequence[int], axes: Sequence[int]) -> str:
    """Format axes and their lengths, 'axes 0, 1 (2 x 16)'; '' for none."""
    if not axes:
        return ""
    word = "axis" if len(axes) == 1 else "axes"
    numbers = ", ".join(map(str, axes))
    lengths = " x ".join(str(shape[axis]) for axis in axes)
    return f"{word} {numbers} ({lengths})"
