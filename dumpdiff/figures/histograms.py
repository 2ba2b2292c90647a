"""A histogram of two streams of numbers in common bins; their range need not be known before."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, frexp

import numpy as np

from ..model.arrays import Floats, Ints
from ..model.finding_context import Histogram

_MAX_BINS = 64  #: bins of the finished histogram
#: Bins per cube root of the number of values n: twice Rice's rule, 2 * n ** (1/3), since merging
#: pairs of bins can leave half of them.
_BINS_PER_CUBE_ROOT = 4.0
#: Bins while counting: merged to _MAX_BINS in the end, so that late outliers cost no detail.
_FINE_BINS = 4096
#: Bins are never finer than 2**-40 of the largest value, so that bin numbers are exact.
_EXACT_BITS = 40


@dataclass(frozen=True)
class Bins:
    """Counts of values in bins of width 2**exponent.

    Bin edges are multiples of the width, so that two bins make one of the next exponent.
    """

    exponent: int
    first: int  #: number of the first bin, which begins at first * width
    counts: Ints  #: (2, bins): of the target, of the reference

    def coarsen(self, exponent: int) -> Bins:
        """Return the same counts in bins of width 2**exponent."""
        if exponent <= self.exponent:
            return self
        fine_numbers = np.arange(self.first, self.first + self.counts.shape[1])
        numbers = fine_numbers >> (exponent - self.exponent)
        starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
        return Bins(exponent, int(numbers[0]), np.add.reduceat(self.counts, starts, axis=1))

    def to_histogram(self) -> Histogram:
        """Return the histogram, with at most 64 bins, and fewer for few values."""
        bins = self
        limit = min(_MAX_BINS, _BINS_PER_CUBE_ROOT * np.cbrt(self.counts.sum()))
        while bins.counts.shape[1] > limit:
            bins = bins.coarsen(bins.exponent + 1)
        if bins.counts.shape[1] == 1:  # one value, or nearly: widen the bin until its edges differ
            low_edge = bins.first * 2.0**bins.exponent
            bins = bins.coarsen(frexp(low_edge / _MAX_BINS)[1] if bins.first else 0)
        numbers = np.arange(bins.first, bins.first + bins.counts.shape[1] + 1)
        return Histogram(
            edges=tuple((numbers * 2.0**bins.exponent).tolist()),
            target=tuple(bins.counts[0].tolist()),
            reference=tuple(bins.counts[1].tolist()),
        )


def count_values(target: Floats, reference: Floats) -> Bins | None:
    """Count two arrays of finite numbers in fine bins; None if both are empty."""
    sides = [values for values in (target, reference) if values.size]
    if not sides:
        return None
    low = min(float(values.min()) for values in sides)
    high = max(float(values.max()) for values in sides)
    exact_width = max(abs(low), abs(high)) * 2.0**-_EXACT_BITS
    exponent = frexp(max((high - low) / _FINE_BINS, exact_width, sys.float_info.min))[1]
    per_unit = 2.0**-exponent  # a power of two: products are exact
    first, last = floor(low * per_unit), floor(high * per_unit)
    target_counts = _count_side(target, per_unit, first, last)
    reference_counts = _count_side(reference, per_unit, first, last)
    return Bins(exponent, first, np.stack([target_counts, reference_counts]))


def _count_side(values: Floats, per_unit: float, first: int, last: int) -> Ints:
    """Return (last - first + 1,) how many values are in each bin."""
    numbers = values * per_unit
    np.floor(numbers, out=numbers)
    numbers -= first
    counts: Ints = np.bincount(numbers.astype(np.int64), minlength=last - first + 1)
    return counts


def merge_bins(parts: Sequence[Bins]) -> Bins:
    """Add up all counts in the widest bins among them, or in wider ones if those are too many."""
    exponent = max(part.exponent for part in parts)
    while True:
        coarse_parts = [part.coarsen(exponent) for part in parts]
        first = min(part.first for part in coarse_parts)
        length = max(part.first + part.counts.shape[1] for part in coarse_parts) - first
        if length <= 2 * _FINE_BINS:
            break
        exponent += 1
    counts = np.zeros((2, length), dtype=np.int64)
    for part in coarse_parts:
        start = part.first - first
        counts[:, start : start + part.counts.shape[1]] += part.counts
    return Bins(exponent, first, counts)
