"""Match rows of two matrices by value: nearest neighbors of random projections."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..model.arrays import Flags, Floats, Ints
from .distance import compute_row_limit
from .matrix import Matrix

#: Random directions that rows are projected on. Rows of weights are nearly orthogonal, so the
#: projections of two different rows are about as far apart as the rows; sixteen directions put the
#: chance of a false match below 1e-9 for a hundred thousand rows.
_DIRECTIONS = 16
_SEED = 20_240_601
_LARGEST = 1e150  #: projections are clipped to this, so that squares of distances are finite
_TINY = 1e-300  #: smallest search radius
_TRIAL_ROWS = 64  #: rows that are searched first
_MIN_TRIAL_SHARE = 0.1  #: share of them that must be found before all rows are searched


def project_rows(matrix: Matrix, rows: Ints | None = None) -> Floats:
    """Project some rows (or all) on fixed random directions: (count, 16). NaN counts as 0."""
    count = matrix.shape[0] if rows is None else len(rows)
    directions = _draw_directions(matrix.shape[1])
    projections = np.empty((count, directions.shape[1]))
    for start in range(0, count, matrix.rows_per_chunk):
        stop = min(start + matrix.rows_per_chunk, count)
        values = matrix.read_values(slice(start, stop) if rows is None else rows[start:stop])
        projections[start:stop] = np.nan_to_num(values, posinf=0, neginf=0) @ directions
    return np.clip(np.nan_to_num(projections), -_LARGEST, _LARGEST)


def _draw_directions(width: int) -> Floats:
    """Return (width, 16) nearly orthonormal directions; for few columns the identity."""
    if width <= _DIRECTIONS:
        return np.eye(width)
    random = np.random.default_rng(_SEED)
    directions: Floats = random.standard_normal((width, _DIRECTIONS)) / np.sqrt(_DIRECTIONS)
    return directions


def match_rows(target: Matrix, reference: Matrix, rows: Ints, is_free: Flags) -> Ints:
    """Return the equal row of the reference for each of ``rows`` of the target, or -1.

    ``is_free`` says which rows of the reference may be matched; each is matched once.
    """
    free_rows = np.flatnonzero(is_free)
    if not len(rows) or not len(free_rows):
        return np.full(len(rows), -1, dtype=np.int64)
    find_nearest = _build_search(target, reference, free_rows)
    trial_indices = np.unique(np.linspace(0, len(rows) - 1, _TRIAL_ROWS).astype(np.int64))
    trial_matches, _ = find_nearest(rows[trial_indices])
    if np.count_nonzero(trial_matches >= 0) < _MIN_TRIAL_SHARE * len(trial_matches):
        return np.full(len(rows), -1, dtype=np.int64)
    return _keep_nearest(*find_nearest(rows))


def _build_search(
    target: Matrix, reference: Matrix, free_rows: Ints
) -> Callable[[Ints], tuple[Ints, Floats]]:
    """Return a function from target rows to (nearest free reference row or -1, distance)."""
    from scipy.spatial import cKDTree

    projections = project_rows(reference, free_rows)
    norms = np.linalg.norm(projections, axis=1)
    limit = compute_row_limit(target, reference)
    radius = max(limit * float(norms.max(initial=0.0)), _TINY)
    tree = cKDTree(projections)

    def find_nearest(target_rows: Ints) -> tuple[Ints, Floats]:
        distances, indices = tree.query(
            project_rows(target, target_rows), k=1, distance_upper_bound=radius
        )
        # The index of a row without a neighbor is the number of points.
        indices = np.minimum(indices, len(free_rows) - 1)
        neighbor_norms = norms[indices]
        is_near = np.isfinite(distances) & (distances <= limit * neighbor_norms)
        is_near &= neighbor_norms > 0
        return np.where(is_near, free_rows[indices], -1), distances

    return find_nearest


def _keep_nearest(matches: Ints, distances: Floats) -> Ints:
    """Keep only the nearest of several rows that match one reference row."""
    order = np.lexsort((distances, matches))
    sorted_matches = matches[order]
    is_repeated = np.zeros(len(matches), dtype=bool)
    is_repeated[order[1:]] = (sorted_matches[1:] == sorted_matches[:-1]) & (sorted_matches[1:] >= 0)
    return np.where(is_repeated, -1, matches)
