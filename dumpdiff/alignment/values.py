"""Value evidence: how far apart two tensors are by their statistics, and which tensors of the sides could be one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..model.arrays import Floats, Ints
from ..model.dtypes import MASK, MASK_GAP


@dataclass(frozen=True)
class Fingerprints:
    """Columns of the classes of one side, as arrays: what value evidence is computed from."""

    size: Floats
    high: Floats
    low: Floats
    mean: Floats
    norm: Floats
    evidence: Ints

    @staticmethod
    def of(table: pd.DataFrame) -> Fingerprints:
        """From any table with the columns size, max, min, mean, norm and evidence."""
        names = ("size", "max", "min", "mean", "norm")
        size, high, low, mean, norm = (table[name].to_numpy(dtype=float) for name in names)
        return Fingerprints(size, high, low, mean, norm, table["evidence"].to_numpy())

    def normalised(self) -> Fingerprints:
        """Shapes of distributions: extremes and mean over the norm; the larger extreme stands for the norm."""
        with np.errstate(all="ignore"):
            high, low, mean = (values / self.norm for values in (self.high, self.low, self.mean))
        return Fingerprints(
            self.size, high, low, mean, np.fmax(np.abs(high), np.abs(low)), self.evidence
        )

    def take(self, rows: Ints) -> Fingerprints:
        """Those of some rows."""
        return Fingerprints(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


def distance(target: Fingerprints, rows: Ints, reference: Fingerprints, columns: Ints) -> Floats:
    """Largest relative difference of max, min, mean and norm of target[rows] and reference[columns], elementwise.

    Extremes and mean are taken relative to the tensor's scale, which is the larger of |value| and the root mean square;
    masking constants set no scale. Statistics that one side lacks do not count; if none is left the result is Inf. For
    tensors t and r with ||t - r|| = e ||r|| the norm term is at most e and the mean term at most e (Cauchy-Schwarz);
    the extremes' terms are at most e sqrt(n), in practice a few e.
    """
    with np.errstate(all="ignore"):
        high, high_r = target.high[rows], reference.high[columns]
        low, low_r = target.low[rows], reference.low[columns]
        mean, mean_r = target.mean[rows], reference.mean[columns]
        norm, norm_r = target.norm[rows], reference.norm[columns]
        rms = norm_r / np.sqrt(reference.size[columns])
        masked_low = (np.abs(low_r) > MASK) & (np.abs(low_r) > MASK_GAP * np.abs(high_r))
        masked_high = (np.abs(high_r) > MASK) & (np.abs(high_r) > MASK_GAP * np.abs(low_r))
        body = np.where(masked_low, np.abs(high_r), np.where(masked_high, np.abs(low_r), rms))
        body = np.where(np.isfinite(body), body, np.fmin(np.abs(high_r), np.abs(low_r)))
        mean_scale = np.where(
            masked_low | masked_high, np.abs(mean_r), np.maximum(np.abs(mean_r), body)
        )
        terms = np.stack([
            _relative(high, high_r, np.fmax(np.abs(high_r), body)),
            _relative(low, low_r, np.fmax(np.abs(low_r), body)),
            _relative(mean, mean_r, mean_scale),
            _relative(norm, norm_r, np.abs(norm_r)),
        ])  # fmt: skip
    known = ~np.isnan(terms)
    result: Floats = np.where(known.any(axis=0), np.where(known, terms, 0).max(axis=0), np.inf)
    return result


def _relative(a: Floats, b: Floats, scale: Floats) -> Floats:
    """|a - b| / scale; 0 where equal (infinities too), NaN where either is missing."""
    missing = np.isnan(a) | np.isnan(b)
    gap = np.where(
        a == b,
        0.0,
        np.abs(a - b) / np.where(scale > 0, scale, np.where(a == b, 1.0, np.abs(a - b))),
    )
    return np.where(missing, np.nan, gap)


@dataclass(frozen=True)
class Candidates:
    """Possible pairs by value: target class, reference class and their distance, sorted by target, then distance."""

    target: Ints
    reference: Ints
    distance: Floats


def candidates(
    target: Fingerprints, reference: Fingerprints, tolerance: float, limit: int = 64
) -> Candidates:
    """Every pair of equal size with statistics within ``tolerance``; per target at most ``limit`` above and below.

    Classes whose numbers say nothing (evidence 0) have no candidates. No all-pairs comparison: a window in the
    sorted norms (in the maximum where no norm was recorded).
    """
    norm_t, norm_r = _norm_key(target), _norm_key(reference)
    found = [_window(target.size, norm_t, reference.size, norm_r, tolerance, limit)]
    extreme_t, extreme_r = _extreme_key(target), _extreme_key(reference)
    without_t, without_r = np.isnan(norm_t), np.isnan(norm_r)
    only_t, only_r = np.where(without_t, extreme_t, np.nan), np.where(without_r, extreme_r, np.nan)
    found.append(_window(target.size, only_t, reference.size, extreme_r, tolerance, limit))
    found.append(
        _window(
            target.size,
            np.where(without_t, np.nan, extreme_t),
            reference.size,
            only_r,
            tolerance,
            limit,
        )
    )
    left, right = np.concatenate(found, axis=1)
    gap = distance(target, left, reference, right)
    near = gap <= tolerance
    left, right, gap = left[near], right[near], gap[near]
    ranked = np.lexsort((gap, left))
    return Candidates(left[ranked], right[ranked], gap[ranked])


def _window(
    size_t: Floats, key_t: Floats, size_r: Floats, key_r: Floats, tolerance: float, limit: int
) -> Ints:
    """(2, pairs): rows of equal size whose keys (natural logarithms; NaN: take no part) differ by a few tolerances."""
    rows_t, rows_r = np.flatnonzero(np.isfinite(key_t)), np.flatnonzero(np.isfinite(key_r))
    # one number that sorts by size, then key: logarithms of doubles stay within +-745, far below the step
    sizes = np.unique(np.concatenate([size_t[rows_t], size_r[rows_r]]))
    step = 4000.0
    code_r = np.searchsorted(sizes, size_r[rows_r]) * step + key_r[rows_r]
    code_t = np.searchsorted(sizes, size_t[rows_t]) * step + key_t[rows_t]
    order = np.argsort(code_r)
    code_r, rows_r = code_r[order], rows_r[order]
    width = 2.0 * tolerance + 1e-15 * step * len(sizes)
    middle = np.searchsorted(code_r, code_t)
    start = np.maximum(np.searchsorted(code_r, code_t - width), middle - limit)
    stop = np.minimum(np.searchsorted(code_r, code_t + width), middle + limit)
    counts = stop - start
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([np.repeat(rows_t, counts), rows_r[np.repeat(start, counts) + offsets]])


def _norm_key(side: Fingerprints) -> Floats:
    """Log of the norm; NaN where it is not recorded, or is that of a mask, or the numbers say nothing."""
    with np.errstate(all="ignore"):
        masked = np.fmax(np.abs(side.high), np.abs(side.low)) > MASK
        return np.where(
            (side.evidence > 0) & np.isfinite(side.norm) & ~masked,
            np.log(side.norm + 1e-300),
            np.nan,
        )


def _extreme_key(side: Fingerprints) -> Floats:
    """Log of the larger extreme, of the other one where the larger is a masking constant or not finite."""
    with np.errstate(all="ignore"):
        high, low = np.abs(side.high), np.abs(side.low)
        larger, smaller = np.fmax(high, low), np.fmin(high, low)
        extreme = np.where(
            np.isfinite(larger) & ~((larger > MASK) & (larger > MASK_GAP * smaller)),
            larger,
            smaller,
        )
        return np.where(
            (side.evidence > 0) & np.isfinite(extreme), np.log(extreme + 1e-300), np.nan
        )
