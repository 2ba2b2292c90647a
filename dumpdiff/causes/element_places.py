"""Places of elements: which element of one tensor each element of another is, by value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, permutations, product
from typing import Any

import numpy as np

from ..model.arrays import AnyArray, Floats, Ints
from ..model.recorded_shapes import drop_unit_axes
from ..operators import compute_relative_distance
from ..operators.convolution import PADDING_MODES

#: Relative L2 within which two records of one value are equal: a cast to bfloat16 and back.
CAST_DISTANCE = 1e-2
#: Share of elements that must be unique for their places to be recognized by value.
_MIN_UNIQUE_SHARE = 0.99
#: Axes of a tensor whose transpositions are tried.
_MAX_TRANSPOSED_AXES = 5
#: Elements that rule out most orders.
_ORDER_SAMPLE = 64
#: Places in a padded tensor at which the tensor may begin, at most.
_MAX_PADDINGS = 256
#: Places per axis between two windows of one tensor, at most.
_MAX_WINDOW_SHIFT = 8
#: Place of an element that is no element of an input: a zero of padding.
_PADDING = -1


def find_places(inputs: Sequence[AnyArray], output: AnyArray) -> Ints | None:
    """Return where the output's elements are among the inputs' elements; None if they are not.

    Zeros may be padding. Elements are recognized by value, so nearly all must be unique.
    """
    if output.dtype.kind != "f" or not any(array.dtype.kind == "f" for array in inputs):
        return None
    source = _join_elements(inputs)
    order = np.argsort(source, kind="stable")
    sorted_source = source[order]
    is_repeated = np.diff(sorted_source) == 0
    if is_repeated.mean() > 1 - _MIN_UNIQUE_SHARE if len(is_repeated) else False:
        return None
    flat = output.reshape(-1)
    rows = np.searchsorted(sorted_source, flat).clip(max=len(source) - 1)
    is_found = sorted_source[rows] == flat
    if not np.all(is_found | (flat == 0)) or not is_found.any():
        return None
    places: Ints = np.where(is_found, order[rows], _PADDING)
    return places


def find_join(inputs: Sequence[AnyArray], output: AnyArray) -> Ints | None:
    """Return the places of a tensor that is joined, or stacked, of all inputs in some order.

    Also of repeated elements, which are not recognized by value: zeros of relu, or the neighbors of
    an interpolation. None if it is not joined of them.
    """
    starts = np.cumsum([0, *(array.size for array in inputs)])
    for axis in range(output.ndim):
        parts = [_as_part(array, output.shape, axis) for array in inputs]
        lengths = [part.shape[axis] for part in parts if part is not None]
        if len(lengths) != len(inputs) or sum(lengths) != output.shape[axis]:
            continue
        places = np.empty(output.shape, dtype=int)
        rest = {number: part for number, part in enumerate(parts) if part is not None}
        begin = 0
        while rest:
            window: list[slice] = [slice(None)] * output.ndim
            for number, part in rest.items():
                window[axis] = slice(begin, begin + part.shape[axis])
                if np.array_equal(output[tuple(window)], part):
                    own_places = starts[number] + np.arange(part.size)
                    places[tuple(window)] = own_places.reshape(part.shape)
                    break
            else:
                break
            begin += rest.pop(number).shape[axis]
        if not rest:
            return places.reshape(-1)
    return None


def _as_part(array: AnyArray, shape: tuple[int, ...], axis: int) -> AnyArray | None:
    """Return an array as a part of a shape along an axis; None if it cannot be one.

    An axis may be new, as in a stack, and axes may have been made one before.
    """
    rest_size = math.prod(length for place, length in enumerate(shape) if place != axis)
    if array.dtype.kind != "f" or not array.size or not rest_size or array.size % rest_size:
        return None
    return array.reshape(*shape[:axis], -1, *shape[axis + 1 :])


def take_places(inputs: Sequence[AnyArray], places: Ints, shape: tuple[int, ...]) -> AnyArray:
    """Return the elements at these places among the inputs' elements, in a shape.

    Single numbers count, of which a stack was made.
    """
    source = _join_elements([np.atleast_1d(array) for array in inputs])
    taken: AnyArray = np.where(places == _PADDING, 0.0, source[places])
    return taken.reshape(shape)


def arrange_like(array: Floats, other: Floats) -> Floats:
    """Return an array in the shape of another one.

    If it has the same axes in another order, such as (tokens, batch, size) and (batch, tokens,
    size), they are exchanged: the numbers diverge, and cannot show the order. Of several orders
    that fit, the one with the largest cosine is taken.
    """
    shape, other_shape = drop_unit_axes(array.shape), drop_unit_axes(other.shape)
    has_same_axes = sorted(shape) == sorted(other_shape)
    has_same_axes &= len(shape) <= _MAX_TRANSPOSED_AXES
    if shape == other_shape or not has_same_axes:
        return array.reshape(other.shape)
    compact = array.reshape(shape)
    candidates = [
        compact.transpose(axes).reshape(other.shape)
        for axes in permutations(range(len(shape)))
        if tuple(shape[axis] for axis in axes) == other_shape
    ]
    flat = other.reshape(-1)
    return max(candidates, key=lambda candidate: abs(float(candidate.reshape(-1) @ flat)))


def find_order(source: AnyArray, array: AnyArray) -> tuple[bool, Ints | None]:
    """Return (whether the elements of ``array`` are those of ``source``, their places there).

    The places are None if both have one order. Small differences, as after a cast, do not count.
    """
    flat_source, flat = source.reshape(-1), array.reshape(-1)
    if flat_source.size == flat.size and np.array_equal(flat_source, flat, equal_nan=False):
        return True, None
    if flat_source.size != flat.size or source.dtype.kind != "f" or flat.size < 2:
        return False, None
    if compute_relative_distance(flat_source, flat) < CAST_DISTANCE:
        return True, None
    moved_order = _find_exchanged_axes(source, array)
    if moved_order is not None:
        return True, moved_order
    order = np.argsort(flat_source, kind="stable")
    sorted_source = flat_source[order]
    is_unique = np.mean(np.diff(sorted_source) == 0) <= 1 - _MIN_UNIQUE_SHARE
    rows = np.searchsorted(sorted_source, flat).clip(max=len(order) - 1)
    if not is_unique or not np.array_equal(sorted_source[rows], flat):
        return False, None
    return True, order[rows]


def find_exchanged_lengths(order: Ints) -> tuple[int, int] | None:
    """Return the lengths of two axes whose exchange, in each of some blocks, is an order.

    What is before the first block and behind the last one keeps its place. None if it is no such
    order.

    >>> find_exchanged_lengths(np.array([0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11, 12]))
    (2, 3)
    """
    moved_places = np.flatnonzero(order != np.arange(len(order)))
    if not len(moved_places):
        return None
    # the first and the last element of each block stay where they are
    start, stop = int(moved_places[0]) - 1, int(moved_places[-1]) + 2
    if start < 0 or stop > len(order):
        return None
    part = order[start:stop] - start
    second = int(part[1])
    first = int(np.argmin(part == second * np.arange(len(part))))
    if second < 2 or first < 2 or len(part) % (first * second):
        return None
    rows = np.arange(len(part)).reshape(-1, first, second)
    is_exchange = np.array_equal(rows.swapaxes(1, 2).reshape(-1), part)
    return (first, second) if is_exchange else None


def find_window(source: AnyArray, array: AnyArray) -> Ints | None:
    """Return the places of a tensor that is cut from another one along one of its axes.

    The axes may be in another order, and an axis of one place may be left out, as by an index. Also
    of repeated elements, which are not recognized by value: zeros of padding or of relu. None if it
    is not cut this way.
    """
    is_larger = source.size > array.size > 1
    if not is_larger or source.ndim > _MAX_TRANSPOSED_AXES or source.dtype.kind != "f":
        return None
    if array.ndim == source.ndim:
        return _find_window(source, array)
    if array.ndim != source.ndim - 1:
        return None
    windows = (_find_window(source, np.expand_dims(array, axis)) for axis in range(source.ndim))
    return next((places for places in windows if places is not None), None)


def _find_window(source: AnyArray, array: AnyArray) -> Ints | None:
    """Return the places of a tensor of as many axes as its source; None if it is no part of it."""
    n_axes = source.ndim
    sample = np.flatnonzero(array)[:_ORDER_SAMPLE]
    for axes in permutations(range(n_axes)):
        view = source.transpose(axes)
        cut_axes = [i for i in range(n_axes) if view.shape[i] != array.shape[i]]
        if len(cut_axes) != 1 or not len(sample):
            continue
        for start in _find_likely_starts(view, array, cut_axes[0], sample).tolist():
            window = [slice(None)] * n_axes
            window[cut_axes[0]] = slice(start, start + array.shape[cut_axes[0]])
            if np.array_equal(view[tuple(window)], array):
                all_places = np.arange(source.size).reshape(source.shape).transpose(axes)
                places: Ints = all_places[tuple(window)].reshape(-1)
                return places
    return None


def find_selection(inputs: Sequence[AnyArray], output: AnyArray) -> Ints | None:
    """Return the places of what a mask among the inputs selects of the first one: ``x[mask]``.

    None if no mask gives the output.
    """
    if not inputs:
        return None
    places = np.arange(inputs[0].size).reshape(inputs[0].shape)
    for mask in inputs[1:]:
        is_mask = mask.dtype.kind == "b" and 0 < mask.ndim <= places.ndim
        if not is_mask or mask.shape != places.shape[: mask.ndim]:
            continue
        selected: Ints = places[mask].reshape(-1)
        if np.array_equal(inputs[0].reshape(-1)[selected], output.reshape(-1)):
            return selected
    return None


def find_padding(source: AnyArray, output: AnyArray) -> Ints | None:
    """Return the places of a tensor that is padded, in any mode; None if it is not.

    Its axes may be in another order. Also of repeated elements, which are not recognized by value:
    zeros of relu.
    """
    is_larger = output.size > source.size > 1 and source.ndim == output.ndim
    if not is_larger or source.ndim > _MAX_TRANSPOSED_AXES or source.dtype.kind != "f":
        return None
    if not source.any():
        return None
    own_places = np.arange(source.size).reshape(source.shape)
    for axes in permutations(range(source.ndim)):
        inner = source.transpose(axes)
        n_starts = [length - own + 1 for own, length in zip(inner.shape, output.shape, strict=True)]
        if min(n_starts) < 1 or np.prod(n_starts) > _MAX_PADDINGS:
            continue
        # what is twice as long may be repeated, not padded
        is_long = any(n > own for n, own in zip(n_starts, inner.shape, strict=True))
        modes = ["zeros"] if is_long else list(PADDING_MODES)
        for starts in np.ndindex(*n_starts):
            window = tuple(map(slice, starts, np.add(starts, inner.shape)))
            if not np.array_equal(output[window], inner):
                continue
            for mode in modes:
                places = _pad_places(own_places.transpose(axes), starts, output.shape, mode)
                if places is not None and np.array_equal(
                    take_places([source], places, output.shape), output
                ):
                    return places
    return None


def _pad_places(
    places: Ints, starts: Sequence[int], shape: Sequence[int], mode: str
) -> Ints | None:
    """Return places with those of the padding around them; None if the mode cannot pad so far."""
    widths = [
        (start, length - start - own)
        for start, own, length in zip(starts, places.shape, shape, strict=True)
    ]
    try:
        padded = np.pad(places + 1, widths, mode=PADDING_MODES[mode])  # type: ignore[call-overload]
    except ValueError:
        return None
    moved: Ints = padded.reshape(-1) - 1  # zeros of padding become _PADDING
    return moved


def _find_likely_starts(source: AnyArray, array: AnyArray, axis: int, sample: Ints) -> Ints:
    """Return where along an axis a window of the source may begin that is the array.

    ``sample``: the elements of the array that are compared.
    """
    n_starts = max(0, source.shape[axis] - array.shape[axis] + 1)
    coordinates = list(np.unravel_index(sample, array.shape))
    starts = np.arange(n_starts)[:, None]
    coordinates[axis] = coordinates[axis][None, :] + starts
    is_equal = source[tuple(coordinates)] == array.reshape(-1)[sample]
    likely: Ints = np.flatnonzero(is_equal.all(axis=1))
    return likely


def find_nearest_rows(table: AnyArray, rows: AnyArray) -> Ints:
    """Return per row (rows, size) the number of the nearest row of a table (numbers, size)."""
    # |a - b|^2 without |a|^2, which is the same for all rows of the table
    distances = np.sum(table * table, axis=1) - 2 * rows @ table.T
    nearest: Ints = np.argmin(distances, axis=1)
    return nearest


def is_rotation(order: Sequence[int] | Ints) -> bool:
    """Return whether an order exchanges two parts, of one size or of two.

    >>> is_rotation([2, 3, 0, 1]), is_rotation([1, 0, 3, 2])
    (True, False)
    """
    return np.array_equal(order, np.roll(np.arange(len(order)), -int(order[0])))


def _find_exchanged_axes(source: AnyArray, array: AnyArray) -> Ints | None:
    """Return the places of the elements of a tensor whose axes were exchanged; None if none fits.

    Those of the source, or those that it was cut into before, as heads are cut from a projection.
    Also of repeated elements, which are not recognized by value: sequences begin with one token.
    """
    places = np.arange(source.size)
    flat_source, flat = source.reshape(-1), array.reshape(-1)
    for view in chain(_list_transposes(places, source), _list_cut_views(places, array)):
        sample = view.flat[:_ORDER_SAMPLE]
        if np.array_equal(flat_source[sample], flat[:_ORDER_SAMPLE]):
            order: Ints = view.reshape(-1)
            if np.array_equal(flat_source[order], flat):
                return order
    return None


def _list_transposes(places: Ints, source: AnyArray) -> Iterator[Ints]:
    """Yield the places of the elements of a tensor with its axes in any order."""
    if 1 < source.ndim <= _MAX_TRANSPOSED_AXES:
        for axes in permutations(range(source.ndim)):
            yield places.reshape(source.shape).transpose(axes)


def _list_cut_views(places: Ints, array: AnyArray) -> Iterator[Ints]:
    """Yield the places of the elements of what becomes an array when its axes are exchanged."""
    if 2 < array.ndim <= _MAX_TRANSPOSED_AXES:
        for axes in permutations(range(array.ndim)):
            shape = [array.shape[axis] for axis in axes]
            yield places.reshape(shape).transpose(np.argsort(axes))


def _join_elements(arrays: Sequence[AnyArray]) -> AnyArray:
    """Return the elements of all floating tensors, one after the other; masks become NaN."""
    parts = []
    for array in arrays:
        is_tensor = array.dtype.kind == "f" and array.ndim > 0
        parts.append(array.reshape(-1) if is_tensor else np.full(array.size, np.nan))
    joined: AnyArray = np.concatenate(parts)
    return joined


def find_window_shift(array: AnyArray, other: AnyArray) -> tuple[int, ...] | None:
    """Return by how many places another window was cut from the tensor of ``array``.

    Windows move along the last two axes. They overlap in at least half of their elements, which are
    equal. None if they do not, or if both are one window.

    >>> find_window_shift(np.arange(6.0), np.arange(2.0, 8.0))
    (2,)
    """
    lengths = array.shape[-2:]
    if array.shape != other.shape or not lengths:
        return None
    limits = [min(_MAX_WINDOW_SHIFT, length // 2) for length in lengths]
    for shift in product(*(range(-limit, limit + 1) for limit in limits)):
        part, other_part = (
            source[_cut_overlap(lengths, places)]
            for source, places in ((array, shift), (other, [-place for place in shift]))
        )
        is_moved = any(shift) and 2 * part.size >= array.size
        if is_moved and part.flat[0] == other_part.flat[0] and np.array_equal(part, other_part):
            return shift
    return None


def _cut_overlap(lengths: Sequence[int], shift: Sequence[int]) -> tuple[Any, ...]:
    """Return the part of the last axes that a window shares with one ``shift`` places later."""
    parts = [
        slice(max(places, 0), length + min(places, 0))
        for length, places in zip(lengths, shift, strict=True)
    ]
    return (..., *parts)
