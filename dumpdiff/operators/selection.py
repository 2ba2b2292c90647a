"""Operators that select elements or change their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import permutations

import numpy as np

from ..model.arrays import AnyArray
from .call import Call, Interpretations

#: Tensors with more axes are not transposed in every way: 6 axes have 720 orders.
_MAX_AXES = 5


def gather_rows(call: Call) -> Interpretations:
    """Compute table[indices] along every axis that gives the recorded shape, the first one first.

    The two inputs come in either order: embedding(ids, table), gather(table, ids). With batch axes
    (MindSpore's gather), each element of the batch has its own indices. If no shape is recorded,
    the table has two axes, and its rows are taken.
    """
    for table, indices in (call.tensors[:2], call.tensors[1::-1]):
        if not _is_index_array(indices):
            continue
        for axis, length in enumerate(table.shape):
            shape = (*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :])
            is_recorded = shape == call.output_shape or (
                call.output_shape is None and table.ndim == 2 and axis == 0
            )
            if is_recorded and indices.max() < length:
                name = f"axis {axis}" if axis else ""
                yield name, np.take(table, indices, axis).astype(np.float64)
        yield from _gather_rows_of_batch(table, indices, call.output_shape)


def _gather_rows_of_batch(
    table: AnyArray, indices: AnyArray, output_shape: tuple[int, ...] | None
) -> Interpretations:
    """Compute table[b, indices[b]] for tables with at least two axes, (batch, length, ...)."""
    if table.ndim < 2 or indices.ndim < 2 or len(table) != len(indices):
        return
    if (*indices.shape, *table.shape[2:]) == output_shape and indices.max() < table.shape[1]:
        batch = np.arange(len(table)).reshape(-1, *[1] * (indices.ndim - 1))
        yield "of a batch", table[batch, indices].astype(np.float64)


def gather_elements(call: Call) -> Interpretations:
    """Compute take_along_axis along the axis in which the shapes differ, else the last one."""
    if len(call.tensors) < 2:
        return
    x, indices = call.tensors[:2]
    if x.ndim != indices.ndim or not _is_index_array(indices):
        return
    different_axes = [axis for axis in range(x.ndim) if x.shape[axis] != indices.shape[axis]]
    if len(different_axes) > 1:
        return
    axis = x.ndim - 1
    if different_axes:
        axis = different_axes[0]
    if indices.max() < x.shape[axis]:
        yield "", np.take_along_axis(x, indices.astype(np.int64), axis).astype(np.float64)


def _is_index_array(array: AnyArray) -> bool:
    """Return whether the array holds whole numbers, at least one of them, none negative."""
    return array.dtype.kind in "iu" and array.size > 0 and bool(array.min() >= 0)


def reshape_input(call: Call) -> Interpretations:
    """Return the same elements in the recorded shape."""
    x = call.inputs[0]
    if call.output_shape is not None and int(np.prod(call.output_shape)) == x.size:
        yield "", x.reshape(call.output_shape).astype(np.float64)


def transpose_input(call: Call) -> Interpretations:
    """Try every order of the axes that gives the recorded shape, swaps of the last two first."""
    x = call.tensors[0]
    if x.ndim > _MAX_AXES or call.output_shape is None:
        return
    n_leading = max(0, x.ndim - 2)
    identity = tuple(range(x.ndim))
    for axes in sorted(permutations(identity), key=lambda axes: axes[:n_leading]):
        transposed_shape = tuple(x.shape[axis] for axis in axes)
        if transposed_shape == call.output_shape and axes != identity:
            yield f"axes {axes}", np.transpose(x, axes).astype(np.float64)


def concatenate_inputs(call: Call) -> Interpretations:
    """Concatenate along every axis that the shapes allow, the last first."""
    parts = call.tensors
    if len({part.ndim for part in parts}) != 1:
        return
    for axis in range(parts[0].ndim - 1, -1, -1):
        other_lengths = {(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts}
        if len(other_lengths) != 1:
            continue
        joined = np.concatenate(parts, axis=axis).astype(np.float64)
        has_output_shape = call.output_shape is None or joined.shape == call.output_shape
        if has_output_shape:
            yield f"axis {axis}", joined


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {
    "gather_rows": gather_rows,
    "gather_elements": gather_elements,
    "transpose": transpose_input,
    "concat": concatenate_inputs,
    **dict.fromkeys(("reshape", "expand_dims", "squeeze"), reshape_input),
}
