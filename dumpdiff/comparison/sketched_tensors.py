"""Estimate the relative L2 error of pairs whose whole tensors were not recorded, by their sketches.

The estimate takes part as one more statistic. It sees what the others cannot: elements that differ
while maximum, minimum, mean and norm stay. See docs/sketches.md.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..alignment import Alignment
from ..graph import Flow
from ..model.arrays import Flags, Floats, Ints
from ..model.recorded_shapes import drop_unit_axes
from ..model.sketches import STANDARD_ERROR, compute_cosines, estimate_distances
from .layouts import REARRANGED_ERROR
from .statistics import StatisticErrors

#: An estimate may be above the error by this factor: four standard deviations.
ESTIMATE_FACTOR = 1 + 4 * STANDARD_ERROR


def add_estimates(
    alignment: Alignment, pairs: pd.DataFrame, measured: StatisticErrors
) -> StatisticErrors:
    """Return what the statistics and the sketches of each pair show; the sketches are the last row.

    The columns estimated_relative_l2 and estimated_cosine of ``pairs`` are set.

    NaN where a side has no sketch, where mask fill may set the scale, and where the elements may be
    in another order: the shapes differ, or the statistics agree within the tolerance and yet no
    element is near its partner.
    """
    tensors_t, tensors_r = pairs["target_tensor"].to_numpy(), pairs["reference_tensor"].to_numpy()
    estimates = estimate_errors(alignment, tensors_t, tensors_r)
    is_rearranged = (estimates > REARRANGED_ERROR) & (
        measured.get_largest() <= pairs["tolerance"].to_numpy()
    )
    estimates[is_rearranged | pairs["has_mask_fill"].to_numpy()] = np.nan
    norms_t = alignment.target.tensors["norm"].to_numpy(dtype=float)[tensors_t]
    norms_r = alignment.reference.tensors["norm"].to_numpy(dtype=float)[tensors_r]
    pairs["estimated_relative_l2"] = estimates
    pairs["estimated_cosine"] = compute_cosines(estimates * norms_r, norms_t, norms_r)
    return StatisticErrors(
        np.vstack([measured.differences, estimates]),
        np.vstack([measured.factors, np.full(len(pairs), ESTIMATE_FACTOR)]),
    )


def estimate_errors(alignment: Alignment, tensors_t: Ints, tensors_r: Ints) -> Floats:
    """Return (pairs,) estimates of ||t - r|| / ||r|| of two tensors each; NaN where unknown."""
    target, reference = alignment.target, alignment.reference
    estimates = np.full(len(tensors_t), np.nan)
    is_sketched = _flag_sketches(target)[tensors_t] & _flag_sketches(reference)[tensors_r]
    rows = np.flatnonzero(is_sketched)
    if not len(rows):
        return estimates
    rows_t, rows_r = tensors_t[rows], tensors_r[rows]
    sketches_t = np.stack(target.tensors["sketch"].to_numpy()[rows_t].tolist())
    sketches_r = np.stack(reference.tensors["sketch"].to_numpy()[rows_r].tolist())
    distances = estimate_distances(sketches_t, sketches_r)
    norms = reference.tensors["norm"].to_numpy(dtype=float)[rows_r]
    with np.errstate(all="ignore"):
        errors = np.where(distances == 0, 0.0, distances / norms)
    has_same_order = _have_same_shape(target, rows_t, reference, rows_r)
    has_same_order |= errors <= REARRANGED_ERROR
    estimates[rows] = np.where(has_same_order, errors, np.nan)
    return estimates


def _flag_sketches(flow: Flow) -> Flags:
    flags: Flags = flow.tensors["sketch"].notna().to_numpy()
    return flags


def _have_same_shape(target: Flow, rows_t: Ints, reference: Flow, rows_r: Ints) -> Flags:
    """Return whether the tensors of each pair have the same shape, apart from axes of length 1."""
    shapes_t = _list_shapes(target, rows_t)
    shapes_r = _list_shapes(reference, rows_r)
    pairs = zip(shapes_t, shapes_r, strict=True)
    return np.array([shape_t == shape_r for shape_t, shape_r in pairs], dtype=bool)


def _list_shapes(flow: Flow, rows: Ints) -> list[tuple[int, ...]]:
    shapes = flow.tensors["shape"].to_numpy()[rows].tolist()
    return [drop_unit_axes(shape) for shape in shapes]
