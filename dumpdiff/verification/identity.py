"""Whether two traces are one dump, or hold the same numbers."""

from __future__ import annotations

import os
from typing import Literal

import numpy as np

from ..graph.statistics import STATISTICS
from ..model.trace import Trace

Identity = Literal["dump", "numbers", ""]


def find_identity(first: Trace, second: Trace) -> Identity:
    """Return in what two traces are identical: the dump on disk, every recorded number, or neither.

    Numbers are identical if the ops have the same names and all statistics, checksums and
    fingerprints of files are equal bit for bit.
    """
    if _get_place(first) == _get_place(second):
        return "dump"
    return "numbers" if _have_equal_numbers(first, second) else ""


def _get_place(trace: Trace) -> tuple[object, ...]:
    source = trace.source
    path = os.path.realpath(source.path)
    file = source.details.get("file")
    return path, file, source.format, source.step, source.rank, source.process, source.graph


def _have_equal_numbers(first: Trace, second: Trace) -> bool:
    if len(first.tensors) != len(second.tensors):
        return False
    if first.ops["name"].tolist() != second.ops["name"].tolist():
        return False
    has_content = False
    for column in (*STATISTICS, "content"):
        numbers = first.tensors[column].to_numpy(dtype=float)
        other_numbers = second.tensors[column].to_numpy(dtype=float)
        if not np.array_equal(numbers, other_numbers, equal_nan=True):
            return False
        has_content |= bool((np.isfinite(numbers) & (numbers != 0)).any())
    hashes = first.tensors["hash"].tolist()
    has_content |= any(hashes)
    return has_content and hashes == second.tensors["hash"].tolist()
