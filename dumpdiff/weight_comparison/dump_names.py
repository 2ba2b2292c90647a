"""Names for the parameters of a dump that records none: what a checkpoint calls the tensor with the same statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from ..alignment.values import Fingerprints, find_candidates
from ..checkpoints import Checkpoint
from ..model.arrays import Floats, Ints
from ..model.dtypes import is_floating
from ..model.trace import Trace
from .distance import compute_noise
from .matrix import Matrix
from .shards import compute_global_names

_ROLES = ("input", "parameter")
_SMALLEST = 8  #: elements: of fewer, equal statistics say little


def add_parameter_names(
    trace: Trace, checkpoint: Checkpoint, done: Callable[[float], None] | None = None
) -> Trace:
    """The trace with a parameter's name on every tensor without one that has the statistics of just that parameter.

    Shards count as they are, since a dump of one rank holds its shards. Reads the whole checkpoint once.
    """
    tensors = trace.tensors
    wanted = (
        (tensors["parameter"] == "") & (tensors["gradient_of"] == "") & tensors["role"].isin(_ROLES)
        & (tensors["producer"] < 0) & ~tensors["constant"] & (tensors["size"] >= _SMALLEST)
        & tensors["dtype"].map(is_floating)
    )  # fmt: skip
    rows = np.flatnonzero(wanted.to_numpy())
    if not len(rows):
        return trace
    names, known = _fingerprints(checkpoint, done)
    held = tensors.iloc[rows].assign(evidence=1)
    dtypes = {entry.dtype for entry in checkpoint.entries} | set(held["dtype"])
    floating = [dtype for dtype in dtypes if is_floating(dtype)]
    tolerance = max(4 * trace.source.resolution, *(compute_noise(dtype, dtype) for dtype in floating))
    found = find_candidates(Fingerprints.from_table(held), known, tolerance)
    parameter = tensors["parameter"].to_numpy(dtype=object, copy=True)
    for row, name in _only(found.target, found.reference, found.distance, names):
        parameter[rows[row]] = name
    source = replace(
        trace.source, details={**trace.source.details, "weights": str(checkpoint.path)}
    )
    return replace(
        trace, source=source, tensors=tensors.assign(parameter=pd.Series(parameter, dtype=object))
    )


def _only(rows: Ints, entries: Ints, distances: Floats, names: list[str]) -> list[tuple[int, str]]:
    """(row, name) where all candidates that are nearest have one name; the candidates of a row are sorted."""
    nearest: dict[int, tuple[float, set[str]]] = {}
    for row, entry, distance in zip(
        rows.tolist(), entries.tolist(), distances.tolist(), strict=True
    ):
        best, found = nearest.setdefault(row, (distance, set()))
        if distance <= 2 * best:
            found.add(names[entry])
    return [(row, found.pop()) for row, (_, found) in nearest.items() if len(found) == 1]


def _fingerprints(
    checkpoint: Checkpoint, done: Callable[[float], None] | None
) -> tuple[list[str], Fingerprints]:
    """Names and statistics of every floating entry."""
    names, figures = [], []
    for number, (entry, name) in enumerate(
        zip(checkpoint.entries, compute_global_names(checkpoint.entries), strict=True)
    ):
        if is_floating(entry.dtype) and entry.size >= _SMALLEST:
            names.append(name)
            figures.append(
                (entry.size, *_statistics(Matrix.from_array(checkpoint.read_raw(entry), entry.dtype)))
            )
            checkpoint.release()
        if done is not None:
            done((number + 1) / len(checkpoint.entries))
    size, high, low, mean, norm = np.array(figures, dtype=float).reshape(-1, 5).T
    return names, Fingerprints(size, high, low, mean, norm, np.ones(len(names), dtype=np.int64))


def _statistics(matrix: Matrix) -> tuple[float, float, float, float]:
    """Largest, least, mean and norm."""
    high, low, total, square = -np.inf, np.inf, 0.0, 0.0
    for start in range(0, matrix.shape[0], matrix.rows_per_chunk):
        values = matrix.read_values(slice(start, start + matrix.rows_per_chunk))
        high, low = max(high, float(values.max())), min(low, float(values.min()))
        total += float(values.sum())
        square += float(np.vdot(values, values))
    return high, low, total / max(1, matrix.size), float(np.sqrt(square))
