"""Metrics of two whole tensors, streamed in blocks so that each byte is read from memory once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..model.arrays import AnyArray, Flags, Floats
from ..model.dtypes import MASK_MAGNITUDE
from ..model.scaled_sums import (
    RELIABLE_SQUARES,
    ScaledNumber,
    sum_products,
    sum_squares,
)
from .mask_fill import find_fill_limit, flag_fill

#: Elements per block: four blocks of float32 stay in a core's cache. It is also the neighborhood
#: over which the root mean square "around" an element is taken.
_BLOCK = 1 << 15
#: Share of the root mean square; relative differences of smaller elements are noise.
_MIN_RELATIVE_SIZE = 1e-3
#: From this magnitude on, twice a value may be more than float64 holds.
_HUGE = 2.0**1022
#: From this magnitude on, float64 does not hold every integer.
_EXACT_INTEGERS = 2.0**53
#: Computed in float32 without loss, with complex numbers as two real ones.
_SINGLE_DTYPES = tuple(map(np.dtype, (np.float16, np.float32, np.complex64)))


@dataclass(frozen=True)
class Metrics:
    """Differences of a target t from a reference r; relative numbers are relative to the reference.

    A complex number counts as two real ones. Elements that are set aside as mask fill set no scale.
    """

    #: ||t - r||_2 / ||r||_2 over the elements that are finite on both sides and not set aside;
    #: Inf if only r is zero. NaN if all elements were set aside and some of them differ
    relative_l2: float
    #: t.r / (||t|| ||r||); NaN if one is zero. It cannot see scale, so it never decides
    cosine: float
    #: max |t - r|; Inf if float64 cannot hold it
    max_absolute: float
    #: max |t - r| / |r| over elements with |r| > 1e-3 of the root mean square around them
    max_relative: float
    #: share of elements with |t - r| > tolerance * max(|r|, the root mean square around them)
    beyond: float
    #: elements that are NaN, Inf or mask fill on one side only, or infinite with another sign
    nonfinite_mismatch: int
    #: elements that differ at all, without those that are set aside
    mismatches: int
    #: elements that are mask fill on both sides and were set aside
    masked: int


def compute_metrics(
    target: AnyArray, reference: AnyArray, tolerance: float, has_mask_fill: bool = False
) -> Metrics:
    """Return the metrics of two arrays of equal element count, taken in C order.

    They are right for any finite input. For float32 and narrower types, differences and products
    are formed in float32 and summed in float64 between blocks of n = 32,768 elements; other types
    are computed in float64. With the unit roundoff u of the type that is computed in, the relative
    error is at most (n + 4) u for relative_l2, in whatever order the sums are formed (each square
    errs by 3 u, n of them add n u to either sum, the root halves the error of their quotient:
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1; a real sum errs
    far less), 3 u for max_absolute and max_relative, and at most 2 (n + 4) u is added to the
    cosine. ``mismatches`` is exact; integers are subtracted without rounding.

    ``has_mask_fill`` says that both tensors may hold mask fill (see :mod:`.mask_fill`), which is
    set aside where both sides have it. Raises ValueError if the element counts differ.
    """
    t, r = np.ravel(target), np.ravel(reference)
    if t.size != r.size:
        raise ValueError(f"{t.size} elements against {r.size}")
    fill_limits: tuple[float, float] | None = None
    with np.errstate(all="ignore"):
        if has_mask_fill:
            limits = find_fill_limit(t), find_fill_limit(r)
            fill_limits = limits if any(limits) else None
        totals = _Totals(tolerance, fill_limits)
        for a, b, difference in _iterate_blocks(t, r):
            totals.add(a, b, difference)
    return totals.finish()


class _Totals:
    """Counts and sums over the blocks of two tensors."""

    def __init__(self, tolerance: float, fill_limits: tuple[float, float] | None) -> None:
        self._tolerance = tolerance
        self._fill_limits = fill_limits  #: of the target and the reference, 0 for no fill
        #: sums of (t - r)^2, t^2, r^2 and t r: of most blocks as floats, of others scaled
        self._plain_sums = np.zeros(4)
        self._scaled_sums = [ScaledNumber()] * 4
        self._max_absolute, self._max_relative = 0.0, 0.0
        self._n_elements, self._n_different, self._n_beyond = 0, 0, 0
        self._n_nonfinite, self._n_masked, self._n_unequal_masked = 0, 0, 0

    def add(self, a: AnyArray, b: AnyArray, difference: AnyArray) -> None:
        """Add a block of float32 or float64; the difference is overwritten."""
        self._n_elements += a.size
        square_a, square_b = float(np.dot(a, a)), float(np.dot(b, b))
        if self._add_plain(a, b, difference, square_a, square_b):
            return
        # NaN, Inf and fill show in the sums; a comparison with NaN is false
        if not square_a + square_b < MASK_MAGNITUDE**2:
            is_included = self._count_excluded(a, b)
            if not is_included.all():
                a, b, difference = a[is_included], b[is_included], difference[is_included]
            if not a.size:
                return
        if a.dtype == np.float32:
            # float64 holds all sums of squares of float32
            a, b = a.astype(np.float64), b.astype(np.float64)
            difference = a - b
        square_a, square_b = float(np.dot(a, a)), float(np.dot(b, b))
        if not self._add_plain(a, b, difference, square_a, square_b):
            self._add_scaled(a, b, np.abs(difference))

    def _add_plain(
        self, a: AnyArray, b: AnyArray, difference: AnyArray, square_a: float, square_b: float
    ) -> bool:
        """Add a block of ordinary numbers; return False, without adding it, if it is not one.

        ``difference`` is overwritten.
        """
        lowest, highest = RELIABLE_SQUARES[a.dtype.type]
        if self._fill_limits is not None:
            highest = min(highest, MASK_MAGNITUDE**2)
        if square_a == square_b == 0 and not a.any() and not b.any():
            return True
        # NaN and Inf fail these comparisons, too
        if not (lowest < square_a < highest and lowest < square_b < highest):
            return False
        square_difference = float(np.dot(difference, difference))
        np.abs(difference, out=difference)
        block_max = float(difference.max(initial=0.0))
        if not (square_difference > lowest or block_max == 0):
            return False
        self._plain_sums += (square_difference, square_a, square_b, np.dot(a, b))
        if block_max > 0:
            self._max_absolute = max(self._max_absolute, block_max)
            self._count_differences(difference, block_max, b, (square_b / a.size) ** 0.5)
        return True

    def _count_excluded(self, a: AnyArray, b: AnyArray) -> Flags:
        """Return which elements can be subtracted; count those that are not finite or mask fill."""
        is_included: Flags = np.isfinite(a) & np.isfinite(b)
        corresponds = (np.isnan(a) & np.isnan(b)) | (np.isinf(a) & (a == b))
        if self._fill_limits is not None:
            limit_a, limit_b = self._fill_limits
            is_fill_a, is_fill_b = flag_fill(a, limit_a), flag_fill(b, limit_b)
            is_masked = is_fill_a & is_fill_b & ((a < 0) == (b < 0))
            self._n_masked += int(np.count_nonzero(is_masked))
            self._n_unequal_masked += int(np.count_nonzero(is_masked & (a != b)))
            corresponds |= is_masked
            is_included &= ~(is_fill_a | is_fill_b)
        self._n_nonfinite += int(np.count_nonzero(~is_included & ~corresponds))
        return is_included

    def _add_scaled(self, a: Floats, b: Floats, difference: Floats) -> None:
        """Add finite numbers of any size. ``difference`` holds magnitudes."""
        exponent = 0
        square_b = sum_squares(b)
        sums = [sum_squares(a), square_b, sum_products(a, b)]
        rms = (square_b / ScaledNumber(a.size)).compute_root()
        if max(np.abs(a).max(), np.abs(b).max()) >= _HUGE:
            exponent = 1  # the difference of halves cannot overflow
            b = b / 2
            difference = np.abs(a / 2 - b)
        sums.insert(0, sum_squares(difference).scale(2 * exponent))
        for index, term in enumerate(sums):
            self._scaled_sums[index] += term
        block_max = float(difference.max())
        if block_max > 0:
            max_absolute = ScaledNumber(block_max, exponent).to_float()
            self._max_absolute = max(self._max_absolute, max_absolute)
            self._count_differences(difference, block_max, b, rms.scale(-exponent).to_float())

    def _count_differences(
        self, difference: AnyArray, block_max: float, b: AnyArray, rms: float
    ) -> None:
        """Count elements that differ, and update the largest relative difference.

        ``difference`` holds magnitudes and is overwritten. ``rms`` is the root mean square of b.
        """
        # Counting flags takes a tenth of the time of counting floats.
        self._n_different += int(np.count_nonzero(difference != 0))
        size = np.abs(b)
        if block_max > self._tolerance * rms:
            limit = self._tolerance * np.maximum(size, rms)
            self._n_beyond += int(np.count_nonzero(difference > limit))
        is_tiny = size <= _MIN_RELATIVE_SIZE * rms
        difference[is_tiny], size[is_tiny] = 0.0, 1.0
        relative = np.divide(difference, size, out=difference)
        self._max_relative = max(self._max_relative, float(relative.max()))

    def finish(self) -> Metrics:
        """Return the metrics of all blocks that were added."""
        square_difference, square_t, square_r, product = (
            ScaledNumber(plain) + scaled
            for plain, scaled in zip(self._plain_sums.tolist(), self._scaled_sums, strict=True)
        )
        relative_l2 = 0.0 if square_difference.fraction == 0 else np.inf
        if square_r.fraction > 0:
            relative_l2 = (square_difference / square_r).compute_root().to_float()
        if self._n_unequal_masked and self._n_masked == self._n_elements:
            relative_l2 = np.nan
        cosine = np.nan
        if square_t.fraction > 0 and square_r.fraction > 0:
            quotient = product / square_t.compute_root() / square_r.compute_root()
            cosine = float(np.clip(quotient.to_float(), -1, 1))
        return Metrics(
            relative_l2=relative_l2,
            cosine=cosine,
            max_absolute=self._max_absolute,
            max_relative=self._max_relative,
            beyond=(self._n_beyond + self._n_nonfinite) / max(self._n_elements, 1),
            nonfinite_mismatch=self._n_nonfinite,
            mismatches=self._n_different + self._n_nonfinite,
            masked=self._n_masked,
        )


def _iterate_blocks(t: AnyArray, r: AnyArray) -> Iterator[tuple[AnyArray, AnyArray, AnyArray]]:
    """Yield (target block, reference block, difference) in float32 or float64."""
    is_complex = "c" in (t.dtype.kind, r.dtype.kind)
    is_single = all(dtype in _SINGLE_DTYPES for dtype in (t.dtype, r.dtype))
    working_dtype = np.float32 if is_single else np.float64
    for start in range(0, t.size, _BLOCK):
        block_t, block_r = t[start : start + _BLOCK], r[start : start + _BLOCK]
        if is_complex:
            block_t, block_r = _split_complex(block_t), _split_complex(block_r)
        a: AnyArray = block_t.astype(working_dtype, copy=False)
        b: AnyArray = block_r.astype(working_dtype, copy=False)
        difference = a - b
        remainder = _compute_remainder(block_t, a) - _compute_remainder(block_r, b)
        if np.any(remainder):
            difference += remainder
        yield a, b, difference


def _split_complex(block: AnyArray) -> AnyArray:
    """Return each number as two real ones, its real and its imaginary part."""
    if block.dtype == np.complex64:
        return np.ascontiguousarray(block).view(np.float32)
    return block.astype(np.complex128).view(np.float64)


def _compute_remainder(block: AnyArray, rounded: Floats) -> Floats | float:
    """Return what 64-bit integers lost when they were rounded to float64; 0 for other types.

    Every step is exact: an integer is a multiple of 2**32 plus 32 bits, and the multiple is near
    the rounded number.
    """
    if block.dtype.kind not in "iu" or block.dtype.itemsize < 8:
        return 0.0
    if float(np.abs(rounded).max(initial=0.0)) < _EXACT_INTEGERS:
        return 0.0
    bits = block.dtype.type(32)
    high: Any = block >> bits
    low: Any = block - (high << bits)
    remainder: Floats = (high.astype(np.float64) * 2.0**32 - rounded) + low.astype(np.float64)
    return remainder
