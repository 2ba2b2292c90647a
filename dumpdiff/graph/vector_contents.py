"""Vectors of whole numbers with equal statistics: do they hold them in the same order?

An undirected graph has each edge in both directions, so that its sources are its targets in another
order. One value would make the two ends of every edge one.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..model.arrays import Flags, Ints
from ..model.dtypes import is_integer
from ..model.recorded_shapes import load_readable_tensor
from ..model.trace import Trace

#: Elements up to which a vector is read for this.
_MAX_ELEMENTS = 1 << 20
_STATISTICS = ["size", "max", "min"]


def number_contents(trace: Trace, tensors: pd.DataFrame) -> Ints:
    """Return (tensors,) equal numbers for equal whole vectors, -1 where nothing is known.

    Only vectors are read that have the statistics of another one; what an op reads of a recorded
    output is what that was. A matrix of numbers in another order may be its transpose.
    """
    contents = np.full(len(tensors), -1)
    is_vector = _flag_vectors(tensors)
    sources = tensors["source_tensor"].to_numpy()
    rows = np.flatnonzero(is_vector)
    rows = rows[tensors.iloc[rows].duplicated(_STATISTICS, keep=False).to_numpy()]
    has_source = (sources[rows] >= 0) & is_vector[sources[rows]]
    numbers: dict[bytes, int] = {}
    for row in rows[~has_source].tolist():
        array = load_readable_tensor(trace, row)
        if array is not None and array.dtype.kind in "iu":
            key = array.astype(np.int64).tobytes()
            contents[row] = numbers.setdefault(key, len(numbers))
    contents[rows[has_source]] = contents[sources[rows[has_source]]]
    return contents


def _flag_vectors(tensors: pd.DataFrame) -> Flags:
    """Return (tensors,) true for whole tensors of whole numbers along one axis, no constants."""
    sizes = tensors["size"].to_numpy()
    is_vector: Flags = (tensors["file"] != "").to_numpy() & ~tensors["constant"].to_numpy()
    is_vector &= (sizes > 1) & (sizes <= _MAX_ELEMENTS)
    rows = np.flatnonzero(is_vector)
    columns = (tensors[name].to_numpy()[rows].tolist() for name in ("dtype", "shape", "size"))
    is_vector[rows] = [
        is_integer(dtype) and bool(shape) and max(shape) == size
        for dtype, shape, size in zip(*columns, strict=True)
    ]
    return is_vector
