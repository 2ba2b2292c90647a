"""Keys of values: equal keys mean equal tensors, as far as the dump can tell."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from ..model.arrays import Objects
from ..model.trace import Trace

ValueKey: TypeAlias = tuple[object, ...]


def compute_value_keys(trace: Trace) -> Objects:
    """Return a key for every tensor, None for one of which nothing is recorded.

    Two tensors of ranks of one run have equal keys if their elements, checksums or statistics are
    equal. Keys of files and of statistics are never equal, and those of statistics say less: two
    tensors with the same elements in another order have equal keys.
    """
    tensors = trace.tensors
    keys = np.empty(len(tensors), dtype=object)
    content = tensors["content"].to_numpy()
    hashes = tensors["hash"].to_numpy()
    dtypes = tensors["dtype"].tolist()
    statistics = tensors[["max", "min", "mean", "norm"]].to_numpy()
    # extremes alone say too little: those of two masks are equal
    is_recorded = ~np.isnan(statistics[:, 2:]).all(axis=1)
    statistic_rows = np.nan_to_num(statistics, nan=0.5**60).tolist()
    sizes = tensors["size"].tolist()
    for row, size in enumerate(sizes):
        if content[row]:
            keys[row] = ("content", dtypes[row], int(content[row]))
        elif hashes[row]:
            keys[row] = ("hash", size, hashes[row])
        elif is_recorded[row]:
            keys[row] = ("statistics", size, *statistic_rows[row])
    return keys
