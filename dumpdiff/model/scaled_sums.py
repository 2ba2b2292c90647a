"""Sums that cannot overflow or underflow, so that norms and means are right for any finite input.

A plain sum of squares leaves the range of its type long before its terms do: float32 values of
1e-25 or 1e20, float64 values of 1e-170 or 1e160. Callers form the plain sum, which is fast, and
repeat it here if it is outside ``RELIABLE_SQUARES``. The method is that of the level 1 BLAS norm:
the terms are divided by a power of two, which is exact, and the power is kept next to the sum
(Blue, ACM Trans. Math. Softw. 4, 1978; Anderson, ACM Trans. Math. Softw. 44, 2017).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays import AnyArray, Floats

#: Range in which a plain sum of squares has lost nothing. Above it, partial sums can overflow.
#: Below it, terms can underflow: each loses at most the smallest normal number, 1.2e-38 for float32
#: and 2.2e-308 for float64, where denormals are flushed to zero. Of 65,536 terms in float32 that is
#: 8e-9 of the lower limit, of 1e12 terms in float64 2e-16.
RELIABLE_SQUARES: Mapping[type[np.generic], tuple[float, float]] = {
    np.float32: (1e-25, 1e30),
    np.float64: (1e-280, 1e290),
}
#: Values up to 2**400 and down to 2**-400 are not scaled: their squares stay within 2**+-800, and a
#: term that underflows is less than 2**-272 of the largest one.
_SAFE_EXPONENT = 400


@dataclass(frozen=True)
class ScaledNumber:
    """A number of any size: ``fraction * 2**exponent``, with a fraction that float64 holds."""

    fraction: float = 0.0
    exponent: int = 0

    def __add__(self, other: ScaledNumber) -> ScaledNumber:
        large, small = self._normalize(), other._normalize()
        if large.fraction == 0:
            return small
        if small.fraction == 0:
            return large
        if large.exponent < small.exponent:
            large, small = small, large
        fraction = large.fraction + math.ldexp(small.fraction, small.exponent - large.exponent)
        return ScaledNumber(fraction, large.exponent)

    def __truediv__(self, other: ScaledNumber) -> ScaledNumber:
        dividend, divisor = self._normalize(), other._normalize()
        quotient = float(np.divide(dividend.fraction, divisor.fraction))
        return ScaledNumber(quotient, dividend.exponent - divisor.exponent)

    def scale(self, exponent: int) -> ScaledNumber:
        """Return the number times 2**exponent."""
        return ScaledNumber(self.fraction, self.exponent + exponent)

    def compute_root(self) -> ScaledNumber:
        """Return the square root; NaN of a negative number."""
        number = self._normalize()
        half, is_odd = divmod(number.exponent, 2)
        return ScaledNumber(float(np.sqrt(np.ldexp(number.fraction, is_odd))), half)

    def to_float(self) -> float:
        """Return the nearest float64: Inf or 0 if the number is outside its range."""
        with np.errstate(all="ignore"):
            return float(np.ldexp(self.fraction, self.exponent))

    def _normalize(self) -> ScaledNumber:
        """Return the same number with a fraction of 0 or between 0.5 and 1 in magnitude."""
        fraction, exponent = math.frexp(self.fraction)
        return ScaledNumber(fraction, exponent + self.exponent)


def sum_squares(values: Floats) -> ScaledNumber:
    """Return the sum of squares of a vector of float64."""
    scaled, exponent = _scale(values)
    return ScaledNumber(float(np.dot(scaled, scaled)), 2 * exponent)


def sum_products(a: Floats, b: Floats) -> ScaledNumber:
    """Return the inner product of two vectors of float64."""
    scaled_a, exponent_a = _scale(a)
    scaled_b, exponent_b = _scale(b)
    return ScaledNumber(float(np.dot(scaled_a, scaled_b)), exponent_a + exponent_b)


def sum_values(values: Floats) -> ScaledNumber:
    """Return the sum of a vector of float64, formed pairwise."""
    scaled, exponent = _scale(values)
    return ScaledNumber(float(scaled.sum()), exponent)


def compute_norm(array: AnyArray) -> float:
    """Return the L2 norm of an array of real numbers of any shape, computed in float64.

    NaN or Inf if an element is NaN or Inf.
    """
    values: Floats = array.reshape(-1).astype(np.float64, copy=False)
    with np.errstate(all="ignore"):
        square = float(np.dot(values, values))
        if is_reliable(square, np.float64):
            return math.sqrt(square)
        return sum_squares(values).compute_root().to_float()


def is_reliable(square: float, dtype: type[np.generic]) -> bool:
    """Return whether a plain sum of squares formed in this dtype has lost nothing."""
    lowest, highest = RELIABLE_SQUARES[dtype]
    return lowest < square < highest


def _scale(values: Floats) -> tuple[Floats, int]:
    """Return the values divided by a power of two, and its exponent; 0 if they are safe."""
    peak = max(abs(float(values.max(initial=0.0))), abs(float(values.min(initial=0.0))))
    exponent = math.frexp(peak)[1]
    if abs(exponent) <= _SAFE_EXPONENT or not math.isfinite(peak):
        return values, 0
    scaled: Any = np.ldexp(values, -exponent)
    return scaled, exponent
