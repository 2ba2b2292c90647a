"""Find how one side's tensor is laid out in the other's, by trying: equal values prove a layout."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from ..model.arrays import AnyArray, Floats
from ..model.recorded_shapes import drop_unit_axes
from ..model.scaled_sums import compute_norm

#: Elements on which a layout is tried.
_SAMPLE = 1 << 16
#: Tensors with more axes are not transposed: 5 axes have 120 orders, 6 have 720.
_MAX_AXES = 5
#: Relative L2: two tensors with the same elements in another order differ by more than this.
REARRANGED_ERROR = 0.2
#: A layout must reduce the distance in C order to less than this share of it.
_MAX_DISTANCE_SHARE = 0.5


def find_common_layout(target: AnyArray, reference: AnyArray) -> tuple[str, AnyArray, AnyArray]:
    """Return (layout, target, reference), both arrays in an order in which element i is element i.

    The C order of both and every order of the axes of either one are tried. The order with the
    least L2 difference is returned, if that is less than half of the difference in C order.
    ``layout`` is 'same', 'reshape', 'transpose(0,2,1)' (of the target's axes) or
    'reference transpose(...)'.
    """
    has_same_shape = drop_unit_axes(target.shape) == drop_unit_axes(reference.shape)
    nearest = ("same" if has_same_shape else "reshape", target, reference)
    least = _MAX_DISTANCE_SHARE * _compute_distance(target, reference)
    if least == 0:
        return nearest
    for axes, view in _iterate_transposes(target):
        distance = _compute_distance(view, reference)
        if distance < least:
            nearest, least = (f"transpose({axes})", view, reference), distance
    for axes, view in _iterate_transposes(reference):
        distance = _compute_distance(target, view)
        if distance < least:
            nearest, least = (f"reference transpose({axes})", target, view), distance
    return nearest


def has_common_order(target: AnyArray, reference: AnyArray) -> bool:
    """Return whether some order of the axes puts two tensors of the same numbers in one order."""
    _, target_array, reference_array = find_common_layout(target, reference)
    scale = max(_compute_norm(target_array), _compute_norm(reference_array))
    return _compute_distance(target_array, reference_array) <= REARRANGED_ERROR * scale


def _iterate_transposes(array: AnyArray) -> Iterator[tuple[str, AnyArray]]:
    """Yield (axes, view) of every other order of the axes longer than one element."""
    lengths = np.array(array.shape)
    long_axes = np.flatnonzero(lengths != 1).tolist()
    unit_axes = np.flatnonzero(lengths == 1).tolist()
    if not 1 < len(long_axes) <= _MAX_AXES:
        return
    for order in permutations(long_axes):
        axes = [*unit_axes, *order]
        if list(order) != long_axes:
            yield ",".join(map(str, axes)), array.transpose(axes)


def _compute_distance(a: AnyArray, b: AnyArray) -> float:
    """Return the L2 difference of the first elements in C order, over those that are finite."""
    with np.errstate(all="ignore"):
        difference = _take_sample(a) - _take_sample(b)
        return compute_norm(difference[np.isfinite(difference)])


def _compute_norm(array: AnyArray) -> float:
    """Return the L2 norm of the first elements in C order, over those that are finite."""
    sample = _take_sample(array)
    return compute_norm(sample[np.isfinite(sample)])


def _take_sample(array: AnyArray) -> Floats:
    """Return the first elements in C order as float64, without copying the others."""
    while array.ndim > 1 and array.size > _SAMPLE:
        row_size = array.size // array.shape[0]
        if row_size < _SAMPLE:
            n_rows = -(-_SAMPLE // row_size)
            array = array[:n_rows]
            break
        array = array[0]
    return np.ravel(array)[:_SAMPLE].astype(np.float64)
