"""Operators that pick elements or bring them into another order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import permutations

import numpy as np

from .call import Call, Readings


def rows(call: Call) -> Readings:
    """table[indices] along the first axis, the two in either order: embedding(ids, table), gather(table, ids)."""
    for table, indices in (call.tensors[:2], call.tensors[1::-1]):
        if table.ndim == 2 and indices.dtype.kind in "iu" and indices.size and indices.min() >= 0:
            if indices.max() < table.shape[0]:
                yield "", table[indices].astype(np.float64)
            return


def elements(call: Call) -> Readings:
    """take_along_axis, along the axis where the shapes differ, else the last."""
    if (
        len(call.tensors) >= 2
        and call.tensors[1].dtype.kind in "iu"
        and call.tensors[0].ndim == call.tensors[1].ndim
    ):
        x, indices = call.tensors[:2]
        other = [
            axis for axis, (a, b) in enumerate(zip(x.shape, indices.shape, strict=True)) if a != b
        ]
        axis = other[0] if other else x.ndim - 1
        if (
            len(other) <= 1
            and indices.size
            and indices.min() >= 0
            and indices.max() < x.shape[axis]
        ):
            yield "", np.take_along_axis(x, indices.astype(np.int64), axis).astype(np.float64)


def reshaped(call: Call) -> Readings:
    """The same elements in the recorded shape."""
    x = call.tensors[0]
    if call.shape is not None and int(np.prod(call.shape)) == x.size:
        yield "", x.reshape(call.shape).astype(np.float64)


def transposed(call: Call) -> Readings:
    """Every order of the axes that gives the recorded shape, swaps of the last two first."""
    x = call.tensors[0]
    if x.ndim > 5 or call.shape is None:
        return
    for axes in sorted(
        permutations(range(x.ndim)), key=lambda axes: axes[: max(0, x.ndim - 2)], reverse=False
    ):
        if tuple(x.shape[axis] for axis in axes) == call.shape and axes != tuple(range(x.ndim)):
            yield f"axes {axes}", np.transpose(x, axes).astype(np.float64)


def joined(call: Call) -> Readings:
    """Concatenation along the axis that the shapes allow, the last first."""
    parts = call.tensors
    if len({part.ndim for part in parts}) != 1:
        return
    for axis in range(parts[0].ndim - 1, -1, -1):
        rest = {(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts}
        if len(rest) == 1:
            made = np.concatenate(parts, axis=axis).astype(np.float64)
            if call.shape is None or made.shape == call.shape:
                yield f"axis {axis}", made


TABLE: Mapping[str, Callable[[Call], Readings]] = {
    "gather_rows": rows,
    "gather_elements": elements,
    "transpose": transposed,
    "concat": joined,
    **dict.fromkeys(("reshape", "expand_dims", "squeeze"), reshaped),
}
