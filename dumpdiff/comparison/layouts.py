"""How one side's tensor is laid out in the other's: found by trying, because equal values prove it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from ..model.arrays import AnyArray, Floats

_SAMPLE = 1 << 16  # elements that a layout is tried on
_MOST_AXES = 5  # 120 orders


def laid_out(target: AnyArray, reference: AnyArray) -> tuple[str, AnyArray, AnyArray]:
    """(layout, target, reference) with both arrays in an order in which element i is element i.

    Tried are the C order of both and every order of the axes of either; the one with the least L2 difference wins,
    if it is less than half of that in C order. ``layout`` is 'same', 'reshape', 'transpose(0,2,1)' (of the
    target's axes) or 'reference transpose(...)'.
    """
    plain = "same" if _squeezed(target) == _squeezed(reference) else "reshape"
    best, least = (plain, target, reference), 0.5 * _gap(target, reference)
    if least == 0:
        return best
    for axes, view in _orders(target):
        if (gap := _gap(view, reference)) < least:
            best, least = (f"transpose({axes})", view, reference), gap
    for axes, view in _orders(reference):
        if (gap := _gap(target, view)) < least:
            best, least = (f"reference transpose({axes})", target, view), gap
    return best


def _squeezed(array: AnyArray) -> tuple[int, ...]:
    return tuple(length for length in array.shape if length != 1)


def _orders(array: AnyArray) -> Iterator[tuple[str, AnyArray]]:
    """Every other order of the axes longer than one element."""
    long_axes = [axis for axis, length in enumerate(array.shape) if length != 1]
    if not 1 < len(long_axes) <= _MOST_AXES:
        return
    short = [axis for axis, length in enumerate(array.shape) if length == 1]
    for order in permutations(long_axes):
        if list(order) != long_axes:
            axes = [*short, *order]
            yield ",".join(map(str, axes)), array.transpose(axes)


def _gap(a: AnyArray, b: AnyArray) -> float:
    """L2 difference of the first elements in C order, over those that are finite."""
    with np.errstate(all="ignore"):
        gap = _head(a) - _head(b)
        gap = gap[np.isfinite(gap)]
        return float(np.sqrt(np.dot(gap, gap)))


def _head(array: AnyArray) -> Floats:
    """The first elements in C order, as float64, without copying what is not needed."""
    while array.ndim > 1 and array.size > _SAMPLE:
        per_row = array.size // array.shape[0]
        if per_row < _SAMPLE:
            array = array[: -(-_SAMPLE // per_row)]
            break
        array = array[0]
    return np.ravel(array)[:_SAMPLE].astype(np.float64)
