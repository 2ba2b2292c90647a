"""Metrics of two whole tensors, streamed in blocks so that each byte is read from memory once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..model.arrays import AnyArray, Flags
from ..model.dtypes import LONE_MASK_MAGNITUDE, MASK_MAGNITUDE

#: Elements per block: four blocks of float32 stay in a core's cache. It is also the neighborhood
#: over which the root mean square "around" an element is taken.
_BLOCK = 1 << 15
#: Share of the root mean square; relative differences of smaller elements are noise.
_MIN_RELATIVE_SIZE = 1e-3
#: Range of the sums of squares that float32 forms without loss.
_MIN_ENERGY, _MAX_ENERGY = 1e-25, 1e30
#: A masked element is at the lowest element, give or take a score: within 1 % of it.
_MASK_SHARE = 0.99
#: A mask must be far from all other elements: none is between half of it and it.
_GAP_SHARE = 0.5


@dataclass(frozen=True)
class Metrics:
    """Differences of a target t from a reference r; relative numbers are relative to the reference.

    Elements that are masked on both sides (at their tensor's masking constant) set no scale and
    count as equal.
    """

    #: ||t - r||_2 / ||r||_2 over elements finite and unmasked on both sides; Inf if only r is zero
    relative_l2: float
    #: t.r / (||t|| ||r||); NaN if one is zero. It cannot see scale, so it never decides
    cosine: float
    #: max |t - r|
    max_absolute: float
    #: max |t - r| / |r| over elements with |r| > 1e-3 of the root mean square around them
    max_relative: float
    #: share of elements with |t - r| > tolerance * max(|r|, the root mean square around them)
    beyond: float
    #: elements that are NaN, Inf or masked on one side only, or infinite with another sign
    nonfinite_mismatch: int
    #: elements that differ at all
    mismatches: int


def compute_metrics(target: AnyArray, reference: AnyArray, tolerance: float) -> Metrics:
    """Return the metrics of two arrays of equal element count, taken in C order.

    For float32 and narrower types, differences and products are formed in float32 (the difference
    of two nearby floats is exact: Sterbenz' lemma; Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd ed., theorem 2.5) and summed in float64 between blocks of 32,768 elements.
    Raises ValueError if the element counts differ.
    """
    t, r = np.ravel(target), np.ravel(reference)
    if t.size != r.size:
        raise ValueError(f"{t.size} elements against {r.size}")
    energies = np.zeros(4)  # sums of (t - r)^2, t^2, r^2 and t r
    max_absolute, max_relative = 0.0, 0.0
    n_nonfinite, n_different, n_beyond = 0, 0, 0
    with np.errstate(all="ignore"):
        for a, b, n_block_nonfinite in _iterate_blocks(t, r):
            difference = a - b
            energy = float(np.dot(b, b))
            energies += (np.dot(difference, difference), np.dot(a, a), energy, np.dot(a, b))
            n_nonfinite += n_block_nonfinite
            np.abs(difference, out=difference)
            block_max = float(difference.max(initial=0.0))
            if not block_max > 0:
                continue
            max_absolute = max(max_absolute, block_max)
            # Counting flags takes a tenth of the time of counting floats.
            n_different += int(np.count_nonzero(difference != 0))
            rms = (energy / a.size) ** 0.5
            size = np.abs(b)
            if block_max > tolerance * rms:
                limit = tolerance * np.maximum(size, rms)
                n_beyond += int(np.count_nonzero(difference > limit))
            is_tiny = size <= _MIN_RELATIVE_SIZE * rms
            difference[is_tiny], size[is_tiny] = 0.0, 1.0
            relative = np.divide(difference, size, out=difference)
            max_relative = max(max_relative, float(relative.max()))
    difference_energy, target_energy, reference_energy, product = energies.tolist()
    if reference_energy > 0:
        relative_l2 = float(np.sqrt(difference_energy / reference_energy))
    else:
        relative_l2 = 0.0 if difference_energy == 0 else np.inf
    scale = float(np.sqrt(target_energy) * np.sqrt(reference_energy))
    return Metrics(
        relative_l2=relative_l2,
        cosine=float(np.clip(product / scale, -1, 1)) if scale > 0 else np.nan,
        max_absolute=max_absolute,
        max_relative=max_relative,
        beyond=(n_beyond + n_nonfinite) / max(t.size, 1),
        nonfinite_mismatch=n_nonfinite,
        mismatches=n_different + n_nonfinite,
    )


def _iterate_blocks(t: AnyArray, r: AnyArray) -> Iterator[tuple[AnyArray, AnyArray, int]]:
    """Yield (target block, reference block, mismatches) without masked and nonfinite elements.

    ``mismatches`` counts the excluded elements that do not correspond.
    """
    working_dtype = _choose_working_dtype(t.dtype, r.dtype)
    for start in range(0, t.size, _BLOCK):
        a = _view_as_real(t[start : start + _BLOCK]).astype(working_dtype, copy=False)
        b = _view_as_real(r[start : start + _BLOCK]).astype(working_dtype, copy=False)
        energy = float(np.dot(b, b)) + float(np.dot(a, a))
        if not _MIN_ENERGY < energy < _MAX_ENERGY:
            a, b = a.astype(np.float64, copy=False), b.astype(np.float64, copy=False)
        if (
            energy < MASK_MAGNITUDE**2
        ):  # no element can be a mask, and NaN or Inf would show in the sum
            yield a, b, 0
            continue
        excluded_a, excluded_b = find_nonfinite_or_masked(a), find_nonfinite_or_masked(b)
        is_included = ~(excluded_a | excluded_b)
        has_same_sign = (np.isnan(a) == np.isnan(b)) & ((a < 0) == (b < 0))
        corresponds = has_same_sign & excluded_a & excluded_b
        yield a[is_included], b[is_included], int(np.count_nonzero(~is_included & ~corresponds))


def find_nonfinite_or_masked(block: AnyArray) -> Flags:
    """Return true for elements that are not finite or masked.

    Masked elements are at one large negative constant, give or take a score, far from the others.
    """
    low = float(np.min(block, initial=0.0, where=np.isfinite(block)))
    excluded: Flags = ~np.isfinite(block)
    if low > -MASK_MAGNITUDE:
        return excluded
    is_masked = block <= _MASK_SHARE * low
    is_between = (block <= _GAP_SHARE * low) & ~is_masked & ~excluded
    if is_between.any():
        return excluded
    if low <= -LONE_MASK_MAGNITUDE or np.count_nonzero(is_masked) > 1:
        excluded |= is_masked
    return excluded


def _choose_working_dtype(a: np.dtype[Any], b: np.dtype[Any]) -> type[np.floating[Any]]:
    is_single = all(dtype.kind == "f" and dtype.itemsize <= 4 for dtype in (a, b))
    return np.float32 if is_single else np.float64


def _view_as_real(block: AnyArray) -> AnyArray:
    """Return complex numbers as pairs of real ones."""
    if block.dtype.kind != "c":
        return block
    return block.astype(np.complex128).view(np.float64)
