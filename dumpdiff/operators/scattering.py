"""Operators whose indices and sizes are inputs: slices, tiles, scatters, one-hot codes, top-k."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Interpretations, OutputSets

#: Ways in which the masks of a strided slice may be set, over all axes; more are not tried.
_MAX_MASKS = 64


def slice_input(call: Call) -> Interpretations:
    """Compute Slice(x, begin, size) or StridedSlice(x, begin, end, strides).

    Masks are not recorded: an axis that has another length in the output is not limited by
    ``begin`` or by ``end``, whichever gives that length.
    """
    if not call.tensors or call.output_shape is None:
        return
    x, *numbers = call.tensors
    if any(array.dtype.kind not in "iu" or array.shape != (x.ndim,) for array in numbers):
        return
    if len(numbers) == 2:
        begins, sizes = (array.tolist() for array in numbers)
        limits = zip(begins, sizes, x.shape, strict=True)
        parts = tuple(
            slice(begin, length if size < 0 else begin + size) for begin, size, length in limits
        )
        yield "", x[parts].astype(np.float64)
    elif len(numbers) == 3:
        for selection in _list_strided_slices(x.shape, numbers, call.output_shape):
            yield "", x[selection].astype(np.float64)


def scatter_slice(call: Call) -> Interpretations:
    """Compute StridedSliceGrad(dy, shape, begin, end, strides): dy in place of what was sliced."""
    if len(call.tensors) != 5 or call.output_shape is None:
        return
    gradient, _, *numbers = call.tensors
    n_axes = len(call.output_shape)
    if any(array.dtype.kind not in "iu" or array.shape != (n_axes,) for array in numbers):
        return
    for selection in _list_strided_slices(call.output_shape, numbers, gradient.shape):
        result = np.zeros(call.output_shape)
        result[selection] = gradient
        yield "", result


def _list_strided_slices(
    shape: tuple[int, ...], numbers: list[AnyArray], sliced_shape: tuple[int, ...]
) -> Iterator[tuple[slice, ...]]:
    """Yield the slices of an array of ``shape`` that have ``sliced_shape``."""
    if len(shape) != len(sliced_shape):
        return
    begins, ends, strides = (array.tolist() for array in numbers)
    choices = []
    for axis, length in enumerate(shape):
        begin, end, stride = begins[axis], ends[axis], strides[axis]
        candidates: dict[range, slice] = {}
        for part in (
            slice(begin, end, stride),
            slice(None, end, stride),
            slice(begin, None, stride),
            slice(None, None, stride),
        ):
            indices = range(*part.indices(length))
            if len(indices) == sliced_shape[axis]:
                candidates.setdefault(indices, part)
        choices.append(list(candidates.values()))
    if np.prod([len(parts) for parts in choices]) <= _MAX_MASKS:
        yield from product(*choices)


def expand_input(call: Call) -> Interpretations:
    """Compute Tile(x, multiples), a broadcast, or every element repeated along an axis."""
    if not call.inputs or call.output_shape is None:
        return
    x, shape = call.inputs[0], call.output_shape
    for multiples in call.tensors[1:2]:
        if multiples.dtype.kind in "iu" and multiples.ndim == 1:
            tiled = np.tile(x, multiples.tolist())
            if tiled.shape == shape:
                yield "tiled", tiled.astype(np.float64)
    if len(shape) >= x.ndim:
        aligned = (1,) * (len(shape) - x.ndim) + x.shape
        if all(length in (1, whole) for length, whole in zip(aligned, shape, strict=True)):
            yield "broadcast", np.broadcast_to(x, shape).astype(np.float64)
    if len(shape) != x.ndim or any(
        whole % max(length, 1) for length, whole in zip(x.shape, shape, strict=True)
    ):
        return
    counts = [whole // max(length, 1) for length, whole in zip(x.shape, shape, strict=True)]
    yield "tiled", np.tile(x, counts).astype(np.float64)
    repeated = x
    for axis, count in enumerate(counts):
        repeated = np.repeat(repeated, count, axis=axis)
    yield "repeated", repeated.astype(np.float64)


def scatter_updates(call: Call) -> Interpretations:
    """Compute ScatterNd(indices, updates, shape): sums of updates at their places."""
    if len(call.tensors) < 2 or call.output_shape is None:
        return
    indices, updates = call.tensors[:2]
    if indices.dtype.kind not in "iu" or indices.shape[-1] > len(call.output_shape):
        return
    result = np.zeros(call.output_shape)
    np.add.at(result, tuple(np.moveaxis(indices, -1, 0)), updates)
    yield "", result


def sum_segments(call: Call) -> Interpretations:
    """Compute UnsortedSegmentSum(x, ids, number of segments); negative ids are left out."""
    if len(call.tensors) < 2 or call.output_shape is None:
        return
    x, ids = call.tensors[:2]
    n_axes = ids.ndim
    if ids.dtype.kind not in "iu" or x.shape[:n_axes] != ids.shape:
        return
    if call.output_shape[1:] != x.shape[n_axes:]:
        return
    rows = x.reshape(-1, *x.shape[n_axes:])
    segments = ids.reshape(-1)
    is_counted = segments >= 0
    result = np.zeros(call.output_shape)
    np.add.at(result, segments[is_counted], rows[is_counted])
    yield "", result


def add_updates(call: Call) -> Interpretations:
    """Compute index_add, scatter_add or TensorScatterAdd: updates added to x at their indices.

    These are the numbers of rows along one axis, places along one axis for each update, or places
    along the first axes. Negative numbers of rows are left out.
    """
    floats = [array for array in call.tensors if array.dtype.kind == "f"]
    whole_numbers = [array for array in call.tensors if array.dtype.kind in "iu"]
    if len(floats) != 2 or len(whole_numbers) != 1:
        return
    x, updates = floats
    (indices,) = whole_numbers
    if indices.ndim == 1 and updates.ndim == x.ndim:
        for axis, length in enumerate(updates.shape):
            other_axes = (*x.shape[:axis], length, *x.shape[axis + 1 :])
            if length == len(indices) and updates.shape == other_axes:
                result = np.moveaxis(x.copy(), axis, 0)
                is_counted = indices >= 0
                rows = np.moveaxis(updates, axis, 0)[is_counted]
                np.add.at(result, indices[is_counted], rows)
                yield f"axis {axis}", np.moveaxis(result, 0, axis)
    elif indices.shape == updates.shape and indices.ndim == x.ndim:
        for axis in range(x.ndim):
            result, places = x.copy(), list(np.indices(indices.shape))
            places[axis] = indices
            np.add.at(result, tuple(places), updates)
            yield f"axis {axis}", result
    elif indices.shape[-1] <= x.ndim:
        result = x.copy()
        np.add.at(result, tuple(np.moveaxis(indices, -1, 0)), updates)
        yield "places", result


def scatter_elements(call: Call) -> Interpretations:
    """Compute GatherDGrad(x, axis, indices, dy): dy added where it was gathered from."""
    if len(call.tensors) < 3 or call.output_shape is None:
        return
    indices, gradient = call.tensors[-2:]
    if indices.dtype.kind not in "iu" or indices.shape != gradient.shape:
        return
    for axis in call.list_axis_numbers(len(call.output_shape))[:1]:
        places = list(np.indices(indices.shape))
        places[axis] = indices
        result = np.zeros(call.output_shape)
        np.add.at(result, tuple(places), gradient)
        yield "", result


def encode_one_hot(call: Call) -> Interpretations:
    """Compute OneHot(indices, depth, on, off, axis); the axis is one that the output adds."""
    if not call.tensors or call.output_shape is None:
        return
    indices, shape = call.tensors[0], call.output_shape
    if indices.dtype.kind not in "iu" or len(shape) != indices.ndim + 1:
        return
    floats = [float(array) for array in call.inputs[1:] if array.size == 1 and array.dtype == float]
    on, off = (*floats, 1.0, 0.0)[:2] if len(floats) != 1 else (1.0, 0.0)
    for axis in range(len(shape) - 1, -1, -1):
        if (*shape[:axis], *shape[axis + 1 :]) != indices.shape:
            continue
        codes = np.arange(shape[axis]).reshape(-1, *(1,) * (len(shape) - 1 - axis))
        is_on = np.expand_dims(indices, axis) == codes
        yield f"axis {axis}", np.where(is_on, on, off)


def select_largest(call: Call) -> OutputSets:
    """Compute the values and indices of topk along the last axis, the largest first.

    Indices are left out if values are equal, because either may come first.
    """
    if not call.tensors or call.output_shape is None:
        return
    x = call.tensors[0]
    n_selected = call.output_shape[-1]
    if call.output_shape[:-1] != x.shape[:-1] or n_selected > x.shape[-1]:
        return
    order = np.argsort(-x, axis=-1, kind="stable")
    ordered = np.take_along_axis(x, order, axis=-1).astype(np.float64)
    indices: Floats | None = order[..., :n_selected].astype(np.float64)
    candidates = ordered[..., : n_selected + 1]
    if (candidates[..., 1:] == candidates[..., :-1]).any():
        indices = None
    yield "", (ordered[..., :n_selected], indices)


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {
    "slice": slice_input,
    "grad:slice": scatter_slice,
    "expand": expand_input,
    "scatter": scatter_updates,
    "segment_sum": sum_segments,
    "grad:gather_elements": scatter_elements,
    "one_hot": encode_one_hot,
}
