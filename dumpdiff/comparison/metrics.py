"""How far apart two whole tensors are: streamed in blocks, so that each byte is read from memory once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..model.arrays import AnyArray, Flags
from ..model.dtypes import LONE_MASK, MASK

_BLOCK = (
    1 << 15
)  # elements: four blocks of float32 stay in a core's cache; also what "around" an element means
_SIZABLE = 1e-3  # of the root mean square: relative differences of smaller elements are noise
_SMALLEST, _LARGEST = 1e-25, 1e30  # sums of squares that float32 forms without loss


@dataclass(frozen=True)
class Metrics:
    """Differences of a target t from a reference r; relative numbers are relative to the reference.

    Masked elements (both at their tensor's masking constant) set no scale and count as equal.
    """

    relative_l2: float  #: ||t - r||_2 / ||r||_2 over elements finite and unmasked on both sides; Inf if only r is zero
    cosine: float  #: t.r / (||t|| ||r||); NaN if one is zero. Cannot see scale, so it never decides
    max_absolute: float  #: max |t - r|
    max_relative: float  #: max |t - r| / |r| over elements with |r| > 1e-3 of the root mean square around them
    beyond: float  #: share of elements with |t - r| > tolerance * max(|r|, the root mean square around them)
    nonfinite_mismatch: (
        int  #: elements that are NaN, Inf or masked on one side only, or infinite with another sign
    )
    mismatches: int  #: elements that differ at all


def compare(target: AnyArray, reference: AnyArray, tolerance: float) -> Metrics:
    """Metrics of two arrays of equal element count, taken in C order whatever their shapes.

    Differences and products are formed in float32 for float32 and narrower (the difference of two nearby floats is
    exact: Sterbenz' lemma; Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., theorem 2.5) and summed in
    float64 between blocks of 32,768 elements. Raises ValueError if the element counts differ.
    """
    t, r = np.ravel(target), np.ravel(reference)
    if t.size != r.size:
        raise ValueError(f"{t.size} elements against {r.size}")
    squares = np.zeros(4)  # of t - r, t, r and the product t r
    largest, relative, wrong, differing, beyond = 0.0, 0.0, 0, 0, 0
    with np.errstate(all="ignore"):
        for a, b, bad in _comparable(t, r):
            gap = a - b
            other = float(np.dot(b, b))
            squares += (np.dot(gap, gap), np.dot(a, a), other, np.dot(a, b))
            wrong += bad
            np.abs(gap, out=gap)
            if (furthest := float(gap.max(initial=0.0))) > 0:
                largest = max(largest, furthest)
                differing += int(
                    np.count_nonzero(gap != 0)
                )  # of flags: of floats it takes ten times as long
                rms = (other / a.size) ** 0.5
                size = np.abs(b)
                if furthest > tolerance * rms:
                    beyond += int(np.count_nonzero(gap > tolerance * np.maximum(size, rms)))
                tiny = size <= _SIZABLE * rms
                gap[tiny], size[tiny] = 0.0, 1.0
                relative = max(relative, float(np.divide(gap, size, out=gap).max()))
    gaps, own, other, product = (float(value) for value in squares)
    scale = float(np.sqrt(own) * np.sqrt(other))
    return Metrics(
        relative_l2=float(np.sqrt(gaps / other)) if other > 0 else (0.0 if gaps == 0 else np.inf),
        cosine=float(np.clip(product / scale, -1, 1)) if scale > 0 else np.nan,
        max_absolute=largest,
        max_relative=relative,
        beyond=(beyond + wrong) / max(t.size, 1),
        nonfinite_mismatch=wrong,
        mismatches=differing + wrong,
    )


def _comparable(t: AnyArray, r: AnyArray) -> Iterator[tuple[AnyArray, AnyArray, int]]:
    """Blocks of both arrays without what is masked or not finite, and how many of those elements do not correspond."""
    wide = _working_dtype(t.dtype, r.dtype)
    for start in range(0, t.size, _BLOCK):
        a = _real(t[start : start + _BLOCK]).astype(wide, copy=False)
        b = _real(r[start : start + _BLOCK]).astype(wide, copy=False)
        energy = float(np.dot(b, b)) + float(np.dot(a, a))
        if not _SMALLEST < energy < _LARGEST:  # squares leave the range of float32
            a, b = a.astype(np.float64, copy=False), b.astype(np.float64, copy=False)
        if energy < MASK**2:  # no element can be a mask, and NaN or Inf would show in the sum
            yield a, b, 0
            continue
        aside_a, aside_b = aside(a), aside(b)
        keep = ~(aside_a | aside_b)
        alike = (np.isnan(a) == np.isnan(b)) & ((a < 0) == (b < 0)) & aside_a & aside_b
        yield a[keep], b[keep], int(np.count_nonzero(~keep & ~alike))


def aside(block: AnyArray) -> Flags:
    """Elements that are not finite, or at one large negative constant, give or take a score, far from the rest."""
    low = float(np.min(block, initial=0.0, where=np.isfinite(block)))
    flags: Flags = ~np.isfinite(block)
    if low > -MASK:
        return flags
    masked = block <= 0.99 * low
    between = (block <= 0.5 * low) & ~masked & ~flags
    if not between.any() and (low <= -LONE_MASK or np.count_nonzero(masked) > 1):
        flags |= masked
    return flags


def _working_dtype(a: np.dtype[Any], b: np.dtype[Any]) -> type[np.floating[Any]]:
    single = all(dtype.kind == "f" and dtype.itemsize <= 4 for dtype in (a, b))
    return np.float32 if single else np.float64


def _real(block: AnyArray) -> AnyArray:
    """Complex numbers as pairs of real ones."""
    return block.astype(np.complex128).view(np.float64) if block.dtype.kind == "c" else block
