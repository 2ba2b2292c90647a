"""How far apart two whole tensors are: one pass over both, in blocks, every byte touched once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_BLOCK = 1 << 16  # elements; see graph.statistics
_MASK = 1e4  # a magnitude that only masking constants have, see align.values


@dataclass(frozen=True)
class Metrics:
    """Differences of a target t from a reference r of n elements; all relative numbers are relative to the reference."""

    relative_l2: float  #: ||t - r||_2 / ||r||_2 over elements finite and unmasked on both sides; Inf if only r is zero
    cosine: float  #: t.r / (||t|| ||r||); NaN if one is zero. Cannot see scale, so it never decides
    max_absolute: float  #: max |t - r|
    max_relative: float  #: max |t - r| / |r| where |r| exceeds 1e-3 root mean square of r
    beyond: float  #: share of elements with |t - r| > tolerance * max(|r|, rms(r)): the element, or its surroundings
    nonfinite_mismatch: int  #: elements NaN or Inf on one side only, or Inf of other sign, or masked on one side only
    mismatches: int  #: elements that differ at all


def compare(target: np.ndarray, reference: np.ndarray, tolerance: float) -> Metrics:
    """Metrics of two arrays of equal element count, compared in C order whatever their shapes.

    Differences and products are formed in float32 for float32 and narrower (the difference of two nearby floats is exact:
    Sterbenz' lemma; Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., theorem 2.5) and summed in float64
    between blocks. Masked elements (|x| >= 1e4 on both sides, equal) set no scale and count as equal.
    Raises ValueError if the element counts differ.
    """
    t, r = np.ravel(target), np.ravel(reference)
    if t.size != r.size:
        raise ValueError(f"{t.size} elements against {r.size}")
    wide = np.float64 if max(t.dtype.itemsize, r.dtype.itemsize) > 4 or "f" not in (t.dtype.kind + r.dtype.kind) else np.float32
    if "c" in (t.dtype.kind, r.dtype.kind):
        t, r = t.astype(np.complex128).view(np.float64), r.astype(np.complex128).view(np.float64)
    sums = np.zeros(4)  # dd, tt, rr, tr
    largest = 0.0
    wrong = differing = kept = 0
    with np.errstate(all="ignore"):
        for start in range(0, t.size, _BLOCK):
            a = t[start : start + _BLOCK].astype(wide, copy=False)
            b = r[start : start + _BLOCK].astype(wide, copy=False)
            gap = a - b
            part = np.array([np.dot(gap, gap), np.dot(a, a), np.dot(b, b), np.dot(a, b)], dtype=float)
            if not np.isfinite(part).all() or part[2] > _MASK**2:
                a, b, bad = _unmasked(a, b)
                wrong += bad
                gap = a - b
                part = np.array([np.dot(gap, gap), np.dot(a, a), np.dot(b, b), np.dot(a, b)], dtype=float)
            sums += part
            kept += a.size
            largest = max(largest, float(np.abs(gap).max(initial=0.0)))
            differing += int(np.count_nonzero(gap))
        relative, beyond = _second_look(t, r, wide, sums[2], kept, tolerance, largest)
    dd, tt, rr, tr = sums
    both = float(np.sqrt(tt) * np.sqrt(rr))
    return Metrics(
        relative_l2=float(np.sqrt(dd / rr)) if rr > 0 else (0.0 if dd == 0 else np.inf),
        cosine=float(np.clip(tr / both, -1, 1)) if both > 0 else np.nan,
        max_absolute=largest,
        max_relative=relative,
        beyond=beyond,
        nonfinite_mismatch=wrong,
        mismatches=differing + wrong,
    )


def _unmasked(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """The elements that can be compared, and how many are non-finite or masked on one side only."""
    aside_a, aside_b = ~(np.abs(a) < _MASK), ~(np.abs(b) < _MASK)
    same = (np.isnan(a) & np.isnan(b)) | (np.sign(a) == np.sign(b))
    mask_like = aside_a & aside_b & same & (np.isfinite(a) == np.isfinite(b))
    # large but ordinary numbers are compared: only constants (a lowest value, repeated) are masks
    ordinary = aside_a & aside_b & np.isfinite(a) & np.isfinite(b) & ~_repeated(a, b)
    keep = (~aside_a & ~aside_b) | ordinary
    one_sided = ~keep & ~mask_like
    both_finite = one_sided & np.isfinite(a) & np.isfinite(b)
    if both_finite.any() and not _repeated(a[both_finite], b[both_finite]).any():
        keep |= both_finite
        one_sided &= ~both_finite
    return a[keep], b[keep], int(np.count_nonzero(one_sided))


def _repeated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Elements at the lowest value of either side, where that value is a masking constant (one number, repeated)."""
    low_a, low_b = a.min(initial=0.0), b.min(initial=0.0)
    return ((a == low_a) & (low_a <= -_MASK)) | ((b == low_b) & (low_b <= -_MASK))


def _second_look(
    t: np.ndarray, r: np.ndarray, wide: type, squares: float, kept: int, tolerance: float, largest: float
) -> tuple[float, float]:
    """Largest relative difference and share beyond tolerance: these need the scale, which the first pass found.

    Blocks where no element can be beyond need no second look: with |t - r| <= tolerance * rms everywhere nothing is.
    """
    rms = float(np.sqrt(squares / kept)) if kept else 0.0
    if largest == 0.0:
        return 0.0, 0.0
    relative, beyond = 0.0, 0
    if largest <= tolerance * rms and t.size > 1 << 22:
        return float("nan"), 0.0
    for start in range(0, t.size, _BLOCK):
        a = t[start : start + _BLOCK].astype(wide, copy=False)
        b = r[start : start + _BLOCK].astype(wide, copy=False)
        gap, size = np.abs(a - b), np.abs(b)
        usable = np.isfinite(gap) & (size < np.inf)
        if usable.all():
            beyond += int(np.count_nonzero(gap > tolerance * np.maximum(size, rms)))
            sizable = size > 1e-3 * rms
        else:
            beyond += int(np.count_nonzero((gap > tolerance * np.maximum(size, rms)) & usable))
            sizable = (size > 1e-3 * rms) & usable
        relative = max(relative, float((gap[sizable] / size[sizable]).max(initial=0.0)))
    return relative, beyond / max(t.size, 1)
