"""Which row of one matrix is which of another, by value: projections of rows, and the nearest of them."""

from __future__ import annotations

import numpy as np

from ..model.arrays import Flags, Floats, Ints
from .distance import compute_row_limit
from .matrix import Matrix

#: Random directions that a row is projected on. Rows of weights are nearly orthogonal, so that the projections of two
#: different rows are about as far apart as the rows themselves; sixteen directions put the chance of an accident
#: below 1e-9 for a hundred thousand rows.
_DIRECTIONS = 16
_SEED = 20_240_601
_LARGEST = 1e150  #: so that the square of a distance is finite
_TRIED = 64  #: rows that are looked for first
_HOPEFUL = 0.1  #: share of them that must be found for all to be looked for


def project_rows(matrix: Matrix, rows: Ints | None = None) -> Floats:
    """(count, 16): some rows (or all) projected on fixed random directions, streamed. NaN counts as 0."""
    which = np.arange(matrix.shape[0]) if rows is None else rows
    directions = _directions(matrix.shape[1])
    found = np.empty((len(which), directions.shape[1]))
    for start in range(0, len(which), matrix.rows_per_chunk):
        part = which[start : start + matrix.rows_per_chunk]
        whole = rows is None
        values = matrix.read_values(slice(start, start + len(part)) if whole else part)
        found[start : start + len(part)] = np.nan_to_num(values, posinf=0, neginf=0) @ directions
    return np.clip(np.nan_to_num(found), -_LARGEST, _LARGEST)


def _directions(width: int) -> Floats:
    """(width, 16) orthonormal up to chance; for few columns the columns themselves."""
    if width <= _DIRECTIONS:
        return np.eye(width)
    directions: Floats = np.random.default_rng(_SEED).standard_normal(
        (width, _DIRECTIONS)
    ) / np.sqrt(_DIRECTIONS)
    return directions


def match_rows(target: Matrix, reference: Matrix, rows: Ints, free: Flags) -> Ints:
    """For each of ``rows`` of the target the row of the reference that it holds, -1 if none.

    ``free`` says which rows of the reference may be taken; each is taken once, except where rows are equal.
    """
    from scipy.spatial import cKDTree

    places = np.flatnonzero(free)
    if not len(rows) or not len(places):
        return np.full(len(rows), -1, dtype=np.int64)
    known = project_rows(reference, places)
    scale = np.linalg.norm(known, axis=1)
    share = compute_row_limit(target, reference)
    tree, reach = cKDTree(known), share * float(scale.max(initial=0.0))

    def nearest(which: Ints) -> tuple[Ints, Floats]:
        """For each of some rows the place that is near enough, -1 if none, and how near it is."""
        gap, found = tree.query(
            project_rows(target, which), k=1, distance_upper_bound=max(reach, 1e-300)
        )
        inside = np.minimum(found, len(places) - 1)
        near = np.isfinite(gap) & (gap <= share * scale[inside]) & (scale[inside] > 0)
        return np.where(near, places[inside], -1), gap

    few = rows[np.unique(np.linspace(0, len(rows) - 1, _TRIED).astype(np.int64))]
    if np.count_nonzero(nearest(few)[0] >= 0) < _HOPEFUL * len(few):
        return np.full(len(rows), -1, dtype=np.int64)
    return _once(*nearest(rows))


def _once(found: Ints, gap: Floats) -> Ints:
    """Of several that claim one row, the nearest keeps it."""
    order = np.lexsort((gap, found))
    ranked = found[order]
    repeated = np.zeros(len(found), dtype=bool)
    repeated[order[1:]] = (ranked[1:] == ranked[:-1]) & (ranked[1:] >= 0)
    return np.where(repeated, -1, found)
