"""Measure the distance of two matrices row by row, in chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..checkpoints.elements import decode
from ..model.arrays import AnyArray, Flags, Floats, Ints
from ..model.dtypes import get_unit_roundoff
from . import casts
from .computed_matrix import extract_scales
from .matrix import Matrix
from .result import Relation

#: Relative L2 distance up to which a row is equal up to noise: one unit of the coarser dtype
#: (rounding to nearest leaves 0.3 units, rounding twice 0.4), but four units of float32, the error
#: of a recomputed weight.
_FLOAT32_UNITS = 4.0
#: Noise has no direction: with n elements it changes the factor between two weights by about its
#: n-th root's share of itself. The difference is a factor, not noise, if the change due to the
#: factor is more than half of the distance, and more than eight times what chance gives.
SYSTEMATIC_SHARE, _CHANCE_FACTOR = 0.5, 8.0
#: Relative distance from which a row counts as a different row (a choice: far above rounding, far
#: below the distance of unrelated rows). Rows of fewer than FEW_COLUMNS elements can be that close
#: by chance: for these the limit is a multiple of the rounding noise.
WRONG_ROW = 0.05
FEW_COLUMNS = 16
#: The noise limit is for all rows together. One row may exceed it by the first factor, and a row
#: with few elements by the second: normal noise exceeds four deviations once in 16,000 elements.
_ROW_NOISE_FACTOR, _ELEMENT_NOISE_FACTOR = 2.0, 4.0
_TINY = 1e-300  #: lower bound of denominators
#: For rows that are nearly zero, the limit of a wrong row is relative to this share of the typical
#: norm.
_SMALL_ROW = 1e-3


@dataclass(frozen=True)
class Distance:
    """Distance of two matrices. Arrays have one element for each row of the target."""

    unequal: Ints  #: number of elements that are not equal
    gap: Floats  #: L2 norm of the difference
    norm: Floats  #: L2 norm of the reference's row
    projection: Floats  #: inner product of the difference with the reference's row
    largest: float  #: largest absolute difference
    elements: int  #: number of elements compared
    nonfinite: int  #: elements that are NaN or infinite in the target but not in the reference
    identical_rows: Flags  #: rows with equal bits, in one dtype
    #: the cast that explains every element, see casts.list_candidate_casts
    rounding: tuple[str, str, bool] | None
    noise: float  #: relative distance that rounding between these dtypes can cause
    limit: float  #: relative distance from which a row counts as a different row
    columns: int

    @property
    def has_few_columns(self) -> bool:
        """Whether rows have fewer than FEW_COLUMNS elements."""
        return self.columns < FEW_COLUMNS

    @property
    def relative(self) -> float:
        """L2 norm of the difference over that of the reference; inf if the reference is zero."""
        gap, norm = float(np.sqrt((self.gap**2).sum())), float(np.sqrt((self.norm**2).sum()))
        if gap == 0:
            return 0.0
        return gap / norm if norm > 0 else np.inf

    def classify(self, rows: Ints | None = None) -> Relation:
        """Return the relation of the two matrices, in all rows or in some."""
        selection = slice(None) if rows is None else rows
        if self.identical_rows[selection].all():
            return "identical"
        if not self.unequal[selection].any():
            return "equal"
        if self.rounding is not None:
            return "rounded"
        return "noise" if self._is_noise(selection) else "different"

    def _is_noise(self, selection: Ints | slice) -> bool:
        gap, norm = self.gap[selection], self.norm[selection]
        typical_norm = float(np.sqrt((norm**2).mean()))
        factor = _ELEMENT_NOISE_FACTOR if self.has_few_columns else _ROW_NOISE_FACTOR
        row_limits = self.noise * factor * np.maximum(norm, typical_norm)
        if not np.all(gap <= row_limits):
            return False
        is_small = float(np.sqrt((gap**2).mean())) <= self.noise * typical_norm
        return is_small and not self._is_systematic(selection)

    def _is_systematic(self, selection: Ints | slice) -> bool:
        """Whether the difference of these rows is mostly a common factor."""
        gap = float(np.sqrt((self.gap[selection] ** 2).sum()))
        square = float((self.norm[selection] ** 2).sum())
        count = len(self.gap[selection]) * self.columns
        factor = abs(float(self.projection[selection].sum())) / max(square, _TINY)
        share = max(SYSTEMATIC_SHARE, _CHANCE_FACTOR / np.sqrt(max(1, count)))
        return bool(factor > share * gap / max(np.sqrt(square), _TINY))

    @property
    def wrong_rows(self) -> Ints:
        """Indices of the rows that are different rows, or are not finite."""
        typical_norm = np.sqrt((self.norm**2).mean()) if len(self.norm) else 0.0
        limits = self.limit * np.maximum(self.norm, typical_norm * _SMALL_ROW)
        return np.flatnonzero(~(self.gap <= limits))


def compute_noise(target_dtype: str, reference_dtype: str) -> float:
    """Return the relative distance that rounding between two dtypes can cause."""
    coarser = max(get_unit_roundoff(target_dtype), get_unit_roundoff(reference_dtype))
    return max(coarser, _FLOAT32_UNITS * get_unit_roundoff("float32"))


def compute_row_limit(target: Matrix, reference: Matrix) -> float:
    """Return the relative distance from which two rows are different rows, not one row rounded."""
    noise = compute_noise(target.precision, reference.precision)
    limit = WRONG_ROW
    if target.shape[1] < FEW_COLUMNS:
        limit = min(WRONG_ROW, 2 * _ELEMENT_NOISE_FACTOR * noise)
    return max(limit, noise)


def measure_distance(
    target: Matrix,
    reference: Matrix,
    order: Ints | None = None,
    report_bytes: Callable[[int], None] | None = None,
) -> Distance:
    """Compare all rows of ``target`` with rows ``order`` of ``reference``.

    Without ``order`` the same rows are compared; rows with -1 are not compared. Both matrices have
    the same number of columns. ``report_bytes`` is called after each chunk with the number of bytes
    read.
    """
    measurement = _Measurement(target, reference)
    step = min(target.rows_per_chunk, reference.rows_per_chunk)
    for start in range(0, target.shape[0], step):
        stop = min(start + step, target.shape[0])
        target_rows: slice | Ints = slice(start, stop)
        reference_rows: slice | Ints = target_rows
        if order is not None:
            reference_rows = order[start:stop]
            if (reference_rows < 0).any():
                is_compared = reference_rows >= 0
                target_rows = start + np.flatnonzero(is_compared)
                reference_rows = reference_rows[is_compared]
        n_bytes = measurement.add_chunk(target_rows, reference_rows)
        if report_bytes is not None:
            report_bytes(n_bytes)
    return measurement.finish()


class _Measurement:
    """Accumulates the distance of two matrices chunk by chunk."""

    def __init__(self, target: Matrix, reference: Matrix) -> None:
        self._target, self._reference = target, reference
        n_rows = target.shape[0]
        self._unequal = np.zeros(n_rows, np.int64)
        self._gap, self._norm, self._projection = np.zeros((3, n_rows))
        self._same_dtype = target.dtype == reference.dtype
        self._identical = np.full(n_rows, self._same_dtype)
        self._largest, self._elements, self._nonfinite = 0.0, 0, 0
        self._casts = casts.list_candidate_casts(target.dtype, reference.dtype)
        self._target_scales = extract_scales(target)
        self._reference_scales = extract_scales(reference)

    def add_chunk(self, target_rows: slice | Ints, reference_rows: slice | Ints) -> int:
        """Compare some rows, and return the number of bytes read."""
        target_raw = self._target.read_raw(target_rows)
        reference_raw = self._reference.read_raw(reference_rows)
        self._elements += target_raw.size
        if not self._add_equal(target_rows, target_raw, reference_raw):
            target_values = decode(target_raw, self._target.dtype)
            reference_values = decode(reference_raw, self._reference.dtype)
            if not self._same_dtype and np.array_equal(target_values, reference_values):
                self._norm[target_rows] = np.nan
            else:
                self._add_values(target_rows, target_values, reference_values)
                self._check_float8(target_rows, reference_rows, target_values, reference_values)
        return int(target_raw.nbytes + reference_raw.nbytes)

    def _add_equal(
        self, target_rows: slice | Ints, target_raw: AnyArray, reference_raw: AnyArray
    ) -> bool:
        """Record which rows have equal bits, and return whether all have."""
        if not self._same_dtype:
            return False
        equal_bits = _compare_bits(target_raw, reference_raw)
        if equal_bits.all():
            self._norm[target_rows] = np.nan
            return True
        self._identical[target_rows] = equal_bits.all(axis=1)
        return False

    def _add_values(self, rows: slice | Ints, target: AnyArray, reference: AnyArray) -> None:
        chunk = _measure_chunk(target, reference)
        self._unequal[rows] = chunk.unequal
        self._gap[rows] = chunk.gap
        self._norm[rows] = chunk.norm
        self._projection[rows] = chunk.projection
        self._largest = max(self._largest, chunk.largest)
        self._nonfinite += chunk.nonfinite
        if chunk.unequal.any():
            self._casts = [
                cast for cast in self._casts if _is_explained_by(target, reference, *cast)
            ]

    def _check_float8(
        self,
        target_rows: slice | Ints,
        reference_rows: slice | Ints,
        target: AnyArray,
        reference: AnyArray,
    ) -> None:
        """Drop the scales of a side that is not the other side rounded to 8 bits."""
        if self._target_scales is not None:
            scales = self._target_scales.read_raw(target_rows)
            dtype = self._target.precision
            if not casts.is_float8_rounding(reference, scales, target, dtype):
                self._target_scales = None
        if self._reference_scales is not None:
            scales = self._reference_scales.read_raw(reference_rows)
            dtype = self._reference.precision
            if not casts.is_float8_rounding(target, scales, reference, dtype):
                self._reference_scales = None

    def finish(self) -> Distance:
        """Return the distance of all rows that were added."""
        # The norms of equal rows were not computed: the typical norm of the other rows is used.
        computed_norms = self._norm[np.isfinite(self._norm) & (self._norm > 0)]
        typical_norm = np.sqrt((computed_norms**2).mean()) if len(computed_norms) else 1.0
        self._norm[np.isnan(self._norm)] = typical_norm
        return Distance(
            unequal=self._unequal,
            gap=self._gap,
            norm=self._norm,
            projection=self._projection,
            largest=self._largest,
            elements=self._elements,
            nonfinite=self._nonfinite,
            identical_rows=self._identical,
            rounding=self._find_rounding(),
            noise=compute_noise(self._target.precision, self._reference.precision),
            limit=compute_row_limit(self._target, self._reference),
            columns=self._target.shape[1],
        )

    def _find_rounding(self) -> tuple[str, str, bool] | None:
        """Return the first cast that explains every element, if there are differences."""
        if not self._unequal.any():
            return None
        candidates = list(self._casts)
        if self._target_scales is not None:
            candidates.append((self._target.precision, casts.NEAREST, True))
        if self._reference_scales is not None:
            candidates.append((self._reference.precision, casts.NEAREST, False))
        return candidates[0] if candidates else None


@dataclass(frozen=True)
class _Chunk:
    unequal: Ints
    gap: Floats
    norm: Floats
    projection: Floats
    largest: float
    nonfinite: int


def _measure_chunk(target: AnyArray, reference: AnyArray) -> _Chunk:
    """Return the statistics of a chunk of values."""
    is_float = target.dtype.kind in "fc"
    is_wide = target.dtype.itemsize > 4 or reference.dtype.itemsize > 4 or target.dtype.kind != "f"
    dtype = np.float64 if is_wide else np.float32
    with np.errstate(invalid="ignore", over="ignore"):
        unequal = target != reference
        if is_float:
            unequal &= ~(np.isnan(target) & np.isnan(reference))
        difference = np.where(unequal, np.subtract(target, reference, dtype=dtype), 0)
        gap = _compute_row_norms(difference)
        largest = float(np.nanmax(np.abs(difference), initial=0.0))
        finite_reference = np.where(np.isfinite(reference), reference, 0)
        finite_difference = np.where(np.isfinite(difference), difference, 0)
        norm = _compute_row_norms(finite_reference)
        projection = _compute_row_products(finite_difference, finite_reference)
    nonfinite = 0
    if target.dtype.kind == "f":
        nonfinite = int(np.count_nonzero(unequal & ~np.isfinite(target)))
    return _Chunk(np.count_nonzero(unequal, axis=1), gap, norm, projection, largest, nonfinite)


def _is_explained_by(
    target: AnyArray, reference: AnyArray, dtype: str, rounding: str, on_target: bool
) -> bool:
    """Whether one side is exactly the other one rounded."""
    exact, rounded = (reference, target) if on_target else (target, reference)
    return bool(np.array_equal(casts.round_values(exact, dtype, rounding), rounded, equal_nan=True))


def _compare_bits(target: AnyArray, reference: AnyArray) -> Flags:
    """Return which elements have equal bits; NaN with equal payloads are equal."""
    bit_dtype = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}.get(target.dtype.itemsize)
    if bit_dtype is None:
        equal: Flags = target == reference
    else:
        equal = target.view(bit_dtype) == reference.view(bit_dtype)
    return equal


def _compute_row_norms(values: AnyArray) -> Floats:
    norms: Floats = np.sqrt(_compute_row_products(values, values))
    return norms


def _compute_row_products(a: AnyArray, b: AnyArray) -> Floats:
    """Return the inner products of the rows, summed in float64."""
    products: Floats = np.einsum(
        "ij,ij->i", a.astype(np.float64, copy=False), b.astype(np.float64, copy=False)
    )
    return products
