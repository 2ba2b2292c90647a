"""Name the parameters of a dump by tensors of a checkpoint with equal statistics."""

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

_SLOT_KINDS = ("input", "parameter")
_MIN_SIZE = 8  #: elements: equal statistics of smaller tensors prove little
_RESOLUTION_FACTOR = (
    4  #: statistics of one tensor differ by at most this many units of the dump's resolution
)
_NEAREST_FACTOR = 2  #: candidates within this factor of the nearest one are considered equally near


def add_parameter_names(
    trace: Trace, checkpoint: Checkpoint, report_progress: Callable[[float], None] | None = None
) -> Trace:
    """Add a parameter name to every unnamed tensor whose statistics match exactly one parameter.

    Shards are matched as they are stored, because the dump of one rank holds its shards. The whole
    checkpoint is read once.
    """
    tensors = trace.tensors
    is_unnamed = (tensors["parameter"] == "") & (tensors["gradient_of"] == "")
    has_slot_kind = tensors["slot_kind"].isin(_SLOT_KINDS)
    is_input = has_slot_kind & (tensors["source_tensor"] < 0) & ~tensors["constant"]
    is_comparable = (tensors["size"] >= _MIN_SIZE) & tensors["dtype"].map(is_floating)
    rows = np.flatnonzero((is_unnamed & is_input & is_comparable).to_numpy())
    if not len(rows):
        return trace
    names, fingerprints = _read_fingerprints(checkpoint, report_progress)
    unnamed_tensors = tensors.iloc[rows].assign(evidence=1)
    dtypes = {entry.dtype for entry in checkpoint.entries} | set(unnamed_tensors["dtype"])
    noises = [compute_noise(dtype, dtype) for dtype in dtypes if is_floating(dtype)]
    tolerance = max(_RESOLUTION_FACTOR * trace.source.resolution, *noises)
    candidates = find_candidates(Fingerprints.from_table(unnamed_tensors), fingerprints, tolerance)
    parameter = tensors["parameter"].to_numpy(dtype=object, copy=True)
    unique_names = _find_unique_names(
        candidates.target, candidates.reference, candidates.distance, names
    )
    for row, name in unique_names:
        parameter[rows[row]] = name
    details = {**trace.source.details, "weights": str(checkpoint.path)}
    return replace(
        trace,
        source=replace(trace.source, details=details),
        tensors=tensors.assign(parameter=pd.Series(parameter, dtype=object)),
    )


def _find_unique_names(
    rows: Ints, entries: Ints, distances: Floats, names: list[str]
) -> list[tuple[int, str]]:
    """Return (row, name) if all nearest candidates of a row have one name.

    The candidates of a row are sorted by distance.
    """
    nearest: dict[int, tuple[float, set[str]]] = {}
    for row, entry, distance in zip(
        rows.tolist(), entries.tolist(), distances.tolist(), strict=True
    ):
        nearest_distance, nearest_names = nearest.setdefault(row, (distance, set()))
        if distance <= _NEAREST_FACTOR * nearest_distance:
            nearest_names.add(names[entry])
    unique_names = []
    for row, (_, nearest_names) in nearest.items():
        if len(nearest_names) == 1:
            unique_names.append((row, nearest_names.pop()))
    return unique_names


def _read_fingerprints(
    checkpoint: Checkpoint, report_progress: Callable[[float], None] | None
) -> tuple[list[str], Fingerprints]:
    """Return names and statistics of every floating-point entry."""
    names, statistics = [], []
    n_entries = len(checkpoint.entries)
    global_names = compute_global_names(checkpoint.entries)
    for number, (entry, name) in enumerate(zip(checkpoint.entries, global_names, strict=True), 1):
        if is_floating(entry.dtype) and entry.size >= _MIN_SIZE:
            matrix = Matrix.from_array(checkpoint.read_raw(entry), entry.dtype)
            names.append(name)
            statistics.append((entry.size, *_compute_statistics(matrix)))
            checkpoint.release()
        if report_progress is not None:
            report_progress(number / n_entries)
    size, high, low, mean, norm = np.array(statistics, dtype=float).reshape(-1, 5).T
    evidence = np.ones(len(names), dtype=np.int64)
    return names, Fingerprints(size, high, low, mean, norm, evidence)


def _compute_statistics(matrix: Matrix) -> tuple[float, float, float, float]:
    """Return maximum, minimum, mean and norm."""
    high, low, total, square = -np.inf, np.inf, 0.0, 0.0
    for start in range(0, matrix.shape[0], matrix.rows_per_chunk):
        values = matrix.read_values(slice(start, start + matrix.rows_per_chunk))
        high, low = max(high, float(values.max())), min(low, float(values.min()))
        total += float(values.sum())
        square += float(np.vdot(values, values))
    return high, low, total / max(1, matrix.size), float(np.sqrt(square))
