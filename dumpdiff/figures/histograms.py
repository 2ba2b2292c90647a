"""A histogram of two streams of numbers in common bins, counted while their range is still unknown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, frexp

import numpy as np

from ..model.arrays import Floats, Ints
from ..model.finding_context import Histogram

_MOST = 64  # bins in the end
_PER_CUBE_ROOT = 4.0  # bins for n values: twice 2 * n ** (1/3) (Rice's rule), since halving can leave half of them
_FINE = (
    4096  # bins while counting: merged to _MOST in the end, so that late outliers cost no detail
)
_EXACT = 40  # bits: bins are never finer than 2**-40 of the largest value, so that their numbers are exact


@dataclass(frozen=True)
class Bins:
    """Counts of values in bins of width 2**exponent whose edges are multiples of it: two bins make a wider one."""

    exponent: int
    first: int  #: number of the first bin, from first * width
    counts: Ints  #: (2, bins): of the target, of the reference

    def coarser(self, exponent: int) -> Bins:
        """The same counts in bins of width 2**exponent."""
        if exponent <= self.exponent:
            return self
        numbers = np.arange(self.first, self.first + self.counts.shape[1]) >> (
            exponent - self.exponent
        )
        starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
        return Bins(exponent, int(numbers[0]), np.add.reduceat(self.counts, starts, axis=1))

    def histogram(self) -> Histogram:
        """In at most 64 bins, and in fewer if the values are few."""
        whole = self
        most = min(_MOST, _PER_CUBE_ROOT * np.cbrt(self.counts.sum()))
        while whole.counts.shape[1] > most:
            whole = whole.coarser(whole.exponent + 1)
        if whole.counts.shape[1] == 1:  # one value, or nearly: a bin that its edges tell apart
            whole = whole.coarser(
                frexp(whole.first * 2.0**whole.exponent / _MOST)[1] if whole.first else 0
            )
        numbers = np.arange(whole.first, whole.first + whole.counts.shape[1] + 1)
        return Histogram(
            edges=tuple((numbers * 2.0**whole.exponent).tolist()),
            target=tuple(whole.counts[0].tolist()),
            reference=tuple(whole.counts[1].tolist()),
        )


def counted(target: Floats, reference: Floats) -> Bins | None:
    """Two arrays of finite numbers, in fine bins; None if both are empty."""
    sides = [values for values in (target, reference) if values.size]
    if not sides:
        return None
    low, high = (
        min(float(values.min()) for values in sides),
        max(float(values.max()) for values in sides),
    )
    width = max((high - low) / _FINE, max(abs(low), abs(high)) * 2.0**-_EXACT, sys.float_info.min)
    exponent = frexp(width)[1]
    per_unit = 2.0**-exponent  # a power of two: products are exact
    first, last = floor(low * per_unit), floor(high * per_unit)
    return Bins(
        exponent,
        first,
        np.stack([_counts(values, per_unit, first, last) for values in (target, reference)]),
    )


def _counts(values: Floats, per_unit: float, first: int, last: int) -> Ints:
    """(last - first + 1,) how many values are in each bin."""
    number = values * per_unit
    np.floor(number, out=number)
    number -= first
    counts: Ints = np.bincount(number.astype(np.int64), minlength=last - first + 1)
    return counts


def joined(parts: Sequence[Bins]) -> Bins:
    """All counts together, in the widest bins among them, or wider if those were too many to keep."""
    exponent = max(part.exponent for part in parts)
    while True:
        coarse = [part.coarser(exponent) for part in parts]
        first = min(part.first for part in coarse)
        length = max(part.first + part.counts.shape[1] for part in coarse) - first
        if length <= 2 * _FINE:
            break
        exponent += 1
    counts = np.zeros((2, length), dtype=np.int64)
    for part in coarse:
        start = part.first - first
        counts[:, start : start + part.counts.shape[1]] += part.counts
    return Bins(exponent, first, counts)
