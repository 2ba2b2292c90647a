"""Masks that no recorded op produced, and that are the opposite of one that an op did.

PyTorch's ``~mask`` is an operator that no recorder shows.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..model.arrays import AnyArray, Flags, Ints
from ..model.recorded_shapes import load_readable_tensor
from ..model.trace import Trace

#: Elements of a mask that is read, and earlier masks of its size that are tried, the latest first.
_MAX_ELEMENTS, _MAX_CANDIDATES = 1 << 22, 8


def find_opposite_masks(
    trace: Trace, tensors: Ints, sizes: Ints, producers: Ints, first_reads: Ints, is_mask: Flags
) -> dict[int, int]:
    """Return mask -> the latest mask before its first reader of which it is the opposite, by class.

    All arrays are (classes,): the tensor that stands for a class, its elements, the op that
    produced it, -1 for none, the op that reads it first, and whether it holds booleans.
    """
    computed: defaultdict[int, list[int]] = defaultdict(list)
    for value in np.flatnonzero(is_mask & (producers >= 0) & (sizes > 1)).tolist():
        computed[int(sizes[value])].append(value)
    opposite_of: dict[int, int] = {}
    for mask in np.flatnonzero(is_mask & (producers < 0) & (first_reads >= 0)).tolist():
        candidates = [
            value
            for value in computed.get(int(sizes[mask]), ())
            if producers[value] < first_reads[mask]
        ]
        if not candidates or sizes[mask] > _MAX_ELEMENTS:
            continue
        array = _load(trace, int(tensors[mask]))
        if array is None or array.all() or not array.any():
            continue
        latest = sorted(candidates, key=producers.__getitem__)[: -_MAX_CANDIDATES - 1 : -1]
        for value in latest:
            other = _load(trace, int(tensors[value]))
            if other is not None and np.array_equal(other, ~array):
                opposite_of[mask] = value
                break
    return opposite_of


def _load(trace: Trace, tensor: int) -> AnyArray | None:
    """Return a mask as one row of booleans, None if it cannot be read."""
    array = load_readable_tensor(trace, tensor)
    return None if array is None or array.dtype != np.bool_ else array.reshape(-1)
