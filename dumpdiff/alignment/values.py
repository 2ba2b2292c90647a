"""Value evidence: how far apart the statistics of two tensors are, and which may be equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..model.arrays import Flags, Floats, Ints
from ..model.dtypes import MASK_GAP, MASK_MAGNITUDE
from ..model.scaled_sums import compute_norm

#: Candidates per target below and above its own key; more are equal values, which others decide.
_MAX_CANDIDATES = 64
#: Step between sizes in the sorted code of the window search. Logarithms of doubles stay within
#: +-745, far below it.
_SIZE_STEP = 4000.0
#: Keys of the window search differ by at most this many tolerances for pairs within the tolerance.
_WINDOW_TOLERANCES = 2.0
#: Relative precision of the sorted code.
_CODE_PRECISION = 1e-15
#: Relative rounding of a product with a scale.
_SCALE_MARGIN = 1e-9
#: Larger extreme over root mean square where no norm was recorded: 4 for 1,000 elements of normal
#: distribution, more for most activations.
_EXTREME_RATIO = 10.0
#: Added before a logarithm, so that 0 has one.
_TINY = 1e-300


@dataclass(frozen=True)
class Fingerprints:
    """Columns of the classes of one side as arrays; value evidence is computed from these."""

    size: Floats
    high: Floats
    low: Floats
    mean: Floats
    norm: Floats
    evidence: Ints

    @staticmethod
    def from_table(table: pd.DataFrame) -> Fingerprints:
        """Read any table with the columns size, max, min, mean, norm and evidence."""
        names = ("size", "max", "min", "mean", "norm")
        size, high, low, mean, norm = (table[name].to_numpy(dtype=float) for name in names)
        return Fingerprints(size, high, low, mean, norm, table["evidence"].to_numpy())

    def normalize(self) -> Fingerprints:
        """Return the shapes of the distributions: extremes and mean divided by the norm.

        The larger extreme takes the place of the norm.
        """
        with np.errstate(all="ignore"):
            high, low, mean = (values / self.norm for values in (self.high, self.low, self.mean))
        larger_extreme = np.fmax(np.abs(high), np.abs(low))
        return Fingerprints(self.size, high, low, mean, larger_extreme, self.evidence)

    def take(self, rows: Ints) -> Fingerprints:
        """Return the fingerprints of some rows."""
        return Fingerprints(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def join(self, rows: Sequence[int]) -> Fingerprints:
        """Return the fingerprint, of one row, of several rows taken as one tensor."""
        parts = self.take(np.array(rows, dtype=np.int64))
        size = parts.size.sum()
        return Fingerprints(
            np.array([size]),
            np.array([parts.high.max()]),
            np.array([parts.low.min()]),
            np.array([(parts.mean * (parts.size / size)).sum()]),
            np.array([compute_norm(parts.norm)]),
            np.array([parts.evidence.min()]),
        )


def compute_distances(
    target: Fingerprints, rows_t: Ints, reference: Fingerprints, rows_r: Ints
) -> Floats:
    """Return the largest relative difference of max, min, mean and norm, for each pair of rows.

    Statistics that one side lacks are left out; the distance is Inf if none remain. For the scale
    of each difference see :func:`compute_differences`. The larger scale of both sides counts, so
    that the distance is the same if target and reference are exchanged.
    """
    differences = np.minimum(
        compute_differences(target, rows_t, reference, rows_r),
        compute_differences(reference, rows_r, target, rows_t),
    )
    is_known = ~np.isnan(differences)
    largest_differences = np.where(is_known, differences, 0).max(axis=0)
    distances: Floats = np.where(is_known.any(axis=0), largest_differences, np.inf)
    return distances


def compute_differences(
    target: Fingerprints, rows_t: Ints, reference: Fingerprints, rows_r: Ints
) -> Floats:
    """Return (4, pairs) the relative differences of max, min, mean and norm; NaN if one is missing.

    Extremes and mean are relative to the tensor's scale: the larger of |value| and the root mean
    square. Masking constants do not count for the scale. For tensors t and r with ||t - r|| =
    e ||r|| the difference of the norm is at most e and that of the mean at most e
    (Cauchy-Schwarz). An extreme is one element: its difference is at most e sqrt(n), for what it
    is in practice see ``comparison.statistics``.
    """
    with np.errstate(all="ignore"):
        high_t, high_r = target.high[rows_t], reference.high[rows_r]
        low_t, low_r = target.low[rows_t], reference.low[rows_r]
        mean_t, mean_r = target.mean[rows_t], reference.mean[rows_r]
        norm_t, norm_r = target.norm[rows_t], reference.norm[rows_r]
        rms = norm_r / np.sqrt(reference.size[rows_r])
        low_is_mask = (np.abs(low_r) > MASK_MAGNITUDE) & (np.abs(low_r) > MASK_GAP * np.abs(high_r))
        high_is_mask = (np.abs(high_r) > MASK_MAGNITUDE) & (
            np.abs(high_r) > MASK_GAP * np.abs(low_r)
        )
        scale = np.where(low_is_mask, np.abs(high_r), np.where(high_is_mask, np.abs(low_r), rms))
        estimated_rms = np.fmax(np.abs(high_r), np.abs(low_r)) / _EXTREME_RATIO
        scale = np.where(np.isfinite(scale), scale, estimated_rms)
        is_masked = low_is_mask | high_is_mask
        mean_scale = np.where(is_masked, np.abs(mean_r), np.maximum(np.abs(mean_r), scale))
        differences: Floats = np.stack([
            _compute_relative_difference(high_t, high_r, np.fmax(np.abs(high_r), scale)),
            _compute_relative_difference(low_t, low_r, np.fmax(np.abs(low_r), scale)),
            _compute_relative_difference(mean_t, mean_r, mean_scale),
            _compute_relative_difference(norm_t, norm_r, np.abs(norm_r)),
        ])  # fmt: skip
    return differences


def _compute_relative_difference(a: Floats, b: Floats, scale: Floats) -> Floats:
    """Return |a - b| / scale; 0 where equal (infinities too), NaN where either is missing."""
    is_equal = a == b
    difference = np.abs(a - b)
    divisor = np.where(scale > 0, scale, np.where(is_equal, 1.0, difference))
    relative = np.where(is_equal, 0.0, difference / divisor)
    return np.where(np.isnan(a) | np.isnan(b), np.nan, relative)


@dataclass(frozen=True)
class Candidates:
    """Possible pairs by value: target class, reference class and distance.

    They are sorted by target, then by distance.
    """

    target: Ints
    reference: Ints
    distance: Floats

    def take(self, is_kept: Flags) -> Candidates:
        """Return some of the candidates."""
        return Candidates(self.target[is_kept], self.reference[is_kept], self.distance[is_kept])


def find_candidates(
    target: Fingerprints, reference: Fingerprints, tolerance: float, limit: int = _MAX_CANDIDATES
) -> Candidates:
    """Return every pair of equal size with statistics within ``tolerance``.

    Each target class has at most ``limit`` candidates above and below it; classes without
    informative statistics (evidence 0) have none. Instead of all pairs, a window in the sorted
    norms is compared; where no norm was recorded, a window in the sorted extremes.
    """
    norms_t, norms_r = _compute_norm_keys(target), _compute_norm_keys(reference)
    extremes_t, extremes_r = _compute_extreme_keys(target), _compute_extreme_keys(reference)
    lacks_norm_t, lacks_norm_r = np.isnan(norms_t), np.isnan(norms_r)
    key_pairs = (
        (norms_t, norms_r),
        (np.where(lacks_norm_t, extremes_t, np.nan), extremes_r),
        (np.where(lacks_norm_t, np.nan, extremes_t), np.where(lacks_norm_r, extremes_r, np.nan)),
    )
    windows = [
        _find_window_pairs(target.size, keys_t, reference.size, keys_r, tolerance, limit)
        for keys_t, keys_r in key_pairs
    ]
    rows_t, rows_r = np.concatenate(windows, axis=1)
    may_be_near = _flag_possibly_near(target, rows_t, reference, rows_r, tolerance)
    rows_t, rows_r = rows_t[may_be_near], rows_r[may_be_near]
    distances = compute_distances(target, rows_t, reference, rows_r)
    is_near = distances <= tolerance
    rows_t, rows_r, distances = rows_t[is_near], rows_r[is_near], distances[is_near]
    order = np.lexsort((distances, rows_t))
    return Candidates(rows_t[order], rows_r[order], distances[order])


def _flag_possibly_near(
    target: Fingerprints, rows_t: Ints, reference: Fingerprints, rows_r: Ints, tolerance: float
) -> Flags:
    """Return false for pairs whose distance is certainly larger than the tolerance.

    The scale of a difference is at most the largest of extremes and root mean square of both sides.
    This leaves a quarter of the pairs in the windows, before distances are computed.
    """
    limit = tolerance * (1 + _SCALE_MARGIN)
    with np.errstate(all="ignore"):
        scales = [
            np.fmax(np.fmax(np.abs(side.high), np.abs(side.low)), side.norm / np.sqrt(side.size))
            for side in (target, reference)
        ]
        scale = np.fmax(scales[0][rows_t], scales[1][rows_r])
        norm_t, norm_r = np.abs(target.norm[rows_t]), np.abs(reference.norm[rows_r])
        is_far = np.abs(target.high[rows_t] - reference.high[rows_r]) > limit * scale
        is_far |= np.abs(target.low[rows_t] - reference.low[rows_r]) > limit * scale
        is_far |= np.abs(norm_t - norm_r) > limit * np.maximum(norm_t, norm_r)
    flags: Flags = ~is_far
    return flags


def find_second_smallest(ids: Ints, distances: Floats, count: int) -> Floats:
    """Return (count,) the second smallest distance of each id, Inf for ids with fewer than two."""
    order = np.lexsort((distances, ids))
    sorted_ids, sorted_distances = ids[order], distances[order]
    rank = np.arange(len(sorted_ids)) - np.searchsorted(sorted_ids, sorted_ids)
    second = np.full(count, np.inf)
    second[sorted_ids[rank == 1]] = sorted_distances[rank == 1]
    return second


def _find_window_pairs(
    sizes_t: Floats, keys_t: Floats, sizes_r: Floats, keys_r: Floats, tolerance: float, limit: int
) -> Ints:
    """Return (2, pairs) rows of equal size whose keys differ by a few tolerances.

    Keys are natural logarithms; rows with key NaN take no part.
    """
    rows_t, rows_r = np.flatnonzero(np.isfinite(keys_t)), np.flatnonzero(np.isfinite(keys_r))
    if not len(rows_t) or not len(rows_r):
        return np.empty((2, 0), dtype=np.int64)
    sizes = np.unique(np.concatenate([sizes_t[rows_t], sizes_r[rows_r]]))
    # one number that sorts by size, then by key
    codes_r = np.searchsorted(sizes, sizes_r[rows_r]) * _SIZE_STEP + keys_r[rows_r]
    codes_t = np.searchsorted(sizes, sizes_t[rows_t]) * _SIZE_STEP + keys_t[rows_t]
    order = np.argsort(codes_r)
    codes_r, rows_r = codes_r[order], rows_r[order]
    width = _WINDOW_TOLERANCES * tolerance + _CODE_PRECISION * _SIZE_STEP * len(sizes)
    middle = np.searchsorted(codes_r, codes_t)
    start = np.maximum(np.searchsorted(codes_r, codes_t - width), middle - limit)
    stop = np.minimum(np.searchsorted(codes_r, codes_t + width), middle + limit)
    counts = stop - start
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([np.repeat(rows_t, counts), rows_r[np.repeat(start, counts) + offsets]])


def _compute_norm_keys(prints: Fingerprints) -> Floats:
    """Return the log of the norm; NaN where it is missing, of a mask, or without information."""
    with np.errstate(all="ignore"):
        is_masked = np.fmax(np.abs(prints.high), np.abs(prints.low)) > MASK_MAGNITUDE
        is_usable = (prints.evidence > 0) & np.isfinite(prints.norm) & ~is_masked
        return np.where(is_usable, np.log(prints.norm + _TINY), np.nan)


def _compute_extreme_keys(prints: Fingerprints) -> Floats:
    """Return the log of the larger extreme; of the smaller one if that is a mask or not finite."""
    with np.errstate(all="ignore"):
        high, low = np.abs(prints.high), np.abs(prints.low)
        larger, smaller = np.fmax(high, low), np.fmin(high, low)
        is_mask: Flags = (larger > MASK_MAGNITUDE) & (larger > MASK_GAP * smaller)
        extreme = np.where(np.isfinite(larger) & ~is_mask, larger, smaller)
        is_usable = (prints.evidence > 0) & np.isfinite(extreme)
        return np.where(is_usable, np.log(extreme + _TINY), np.nan)
