"""Tensors of whole numbers with equal statistics: do they hold them in the same order?

An undirected graph has each edge in both directions, so that its sources are its targets in another
order. One value would make the two ends of every edge one. Labels may be the tokens, rolled by one.
Of a mask, only the number of elements is recorded: what is read may be another one. So it is with
floating zeros and ones, such as those of the steps of an episode that go on, with a mask times
a number, as dropout multiplies by it, and with samples whose gradient is that of probabilities,
which were added and taken away again.
"""

from __future__ import annotations

from itertools import permutations
from zlib import crc32

import numpy as np
import pandas as pd

from ..model.arrays import AnyArray, Flags, Floats, Ints
from ..model.dtypes import is_discrete
from ..model.recorded_shapes import load_readable_tensor
from ..model.trace import Trace

#: Elements up to which a vector is read for this, and a tensor of more axes, whose elements are put
#: in the order of any of its transposes.
_MAX_ELEMENTS, _MAX_ELEMENTS_OF_TRANSPOSES = 1 << 20, 1 << 16
#: Axes of more than one element up to which this is done.
_MAX_AXES = 3
#: Largest whole number of a floating tensor: above, float32 holds no others.
_MAX_WHOLE = 1 << 24
#: Distance to a whole number up to which a ratio of sums, of six digits, is a count.
_COUNT_ERROR = 1e-3
#: Share of the number of a mask by which its elements may differ from it, or from zero: rounding.
_MASK_ERROR = 1e-6
_STATISTICS = ["size", "max", "min"]


def compute_content_checksums(trace: Trace, tensors: pd.DataFrame) -> Ints:
    """Return (tensors,) equal checksums for equal contents, -1 where nothing is known.

    A tensor, its transposes and what they are reshaped to have equal contents. Only those are read
    that have the statistics of another one; what an op reads of a recorded output is what that was.
    """
    contents = np.full(len(tensors), -1)
    is_readable = _flag_readable(tensors)
    sources = tensors["source_tensor"].to_numpy()
    rows = np.flatnonzero(is_readable)
    rows = rows[tensors.iloc[rows].duplicated(_STATISTICS, keep=False).to_numpy()]
    has_source = (sources[rows] >= 0) & is_readable[sources[rows]]
    checksums: dict[bytes, int] = {}
    for row in rows[~has_source].tolist():
        array = load_readable_tensor(trace, row)
        if array is None:
            continue
        if _holds_whole_numbers(array):
            array = array.astype(np.int64)
        elif (array := _round_scaled_mask(array)) is None:
            continue
        keys = _list_keys(array.squeeze())
        known_checksums = [checksums[key] for key in keys if key in checksums]
        contents[row] = known_checksums[0] if known_checksums else crc32(min(keys))
        checksums.update(dict.fromkeys(keys, int(contents[row])))
    contents[rows[has_source]] = contents[sources[rows[has_source]]]
    return contents


def _holds_whole_numbers(array: AnyArray) -> bool:
    is_floating = array.dtype.kind == "f"
    return array.dtype.kind in "iub" or (is_floating and np.array_equal(array, np.round(array)))


def _round_scaled_mask(array: AnyArray) -> Floats | None:
    """Return zeros and the one other number of a mask, None for what is no mask."""
    high = float(array.max())
    is_high = array > high / 2
    mask: Floats = np.where(is_high, high, 0.0)
    return mask if np.abs(array - mask).max() <= _MASK_ERROR * abs(high) else None


def _list_keys(array: AnyArray) -> list[bytes]:
    """Return the elements of an array in its own order, and in those of its transposes."""
    return [array.transpose(axes).tobytes() for axes in permutations(range(array.ndim))]


def _flag_readable(tensors: pd.DataFrame) -> Flags:
    """Return (tensors,) true for whole tensors of whole numbers, or masks, that are read."""
    sizes = tensors["size"].to_numpy()
    is_readable: Flags = (tensors["file"] != "").to_numpy() & ~tensors["constant"].to_numpy()
    is_readable &= (sizes > 1) & (sizes <= _MAX_ELEMENTS)
    is_readable &= (tensors["max"] > tensors["min"]).to_numpy()
    rows = np.flatnonzero(is_readable)
    columns = (tensors[name].to_numpy()[rows].tolist() for name in ("dtype", "shape", "size"))
    table = tensors.iloc[rows]
    looks_known = (_flag_whole_extremes(table) | _flag_scaled_masks(table)).tolist()
    is_readable[rows] = [
        (is_discrete(dtype) or is_known) and _has_few_orders(shape, size)
        for dtype, shape, size, is_known in zip(*columns, looks_known, strict=True)
    ]
    return is_readable


def _flag_whole_extremes(tensors: pd.DataFrame) -> Flags:
    """Return (tensors,) true where the extremes are whole numbers that an int64 holds exactly."""
    is_whole: Flags = np.ones(len(tensors), dtype=bool)
    for name in ("max", "min"):
        numbers = tensors[name].to_numpy(dtype=float)
        is_whole &= (np.abs(numbers) <= _MAX_WHOLE) & (numbers == np.round(numbers))
    return is_whole


def _flag_scaled_masks(tensors: pd.DataFrame) -> Flags:
    """Return (tensors,) true where the numbers are those of zeros and of one other number.

    Then the sum and the sum of squares count the same elements.
    """
    size, high, low, mean, norm = (
        tensors[name].to_numpy(dtype=float) for name in ("size", "max", "min", "mean", "norm")
    )
    with np.errstate(all="ignore"):
        counts = mean * size / high
        is_mask: Flags = np.abs(low) <= _MASK_ERROR * high
        is_mask &= np.abs(counts - np.round(counts)) < _COUNT_ERROR
        is_mask &= np.abs((norm / high) ** 2 - counts) < _COUNT_ERROR
    return is_mask


def _has_few_orders(shape: tuple[int, ...] | None, size: int) -> bool:
    if not shape:
        return False
    is_small = size <= _MAX_ELEMENTS_OF_TRANSPOSES
    return max(shape) == size or (is_small and sum(n > 1 for n in shape) <= _MAX_AXES)
