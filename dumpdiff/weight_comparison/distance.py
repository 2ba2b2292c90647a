"""How far apart two matrices are: row by row, streamed, and exactly where they are equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..checkpoints.elements import decode
from ..model.arrays import AnyArray, Flags, Floats, Ints
from ..model.dtypes import unit_roundoff
from . import casts
from .computed_matrix import extract_scales
from .matrix import Matrix
from .result import Relation

#: Relative L2 distance of a row up to which it is the same up to noise: one unit of the coarser dtype (rounding to
#: nearest leaves 0.3 units, twice 0.4), but four of float32, which a weight that was computed again is off by.
_FLOAT32_UNITS = 4.0
#: Noise has no direction: of n elements it moves the factor between two weights by its n-th root's share of itself. A
#: factor that is half of the distance, or eight times what chance gives, is none.
_SYSTEMATIC, _CHANCE = 0.5, 8.0
#: A row is another one if it is off by this relatively, judgement: far above rounding, far below any other row. Rows of
#: few elements can be as near as that by chance: there, some times what rounding can cause.
WRONG_ROW = 0.05
FEW_COLUMNS = 16
#: Noise is that of all rows together; one of them is off by so many times as much, where it has one element by more:
#: normal noise passes four deviations once in 16,000 elements.
_ONE_ROW, _ONE_ELEMENT = 2.0, 4.0


@dataclass(frozen=True)
class Distance:
    """Two matrices, row by row. Arrays have one element for each row of the target."""

    unequal: Ints  #: elements that are not equal
    gap: Floats  #: L2 norm of the difference
    norm: Floats  #: L2 norm of the reference's row
    projection: Floats  #: inner product of the difference with the reference's row
    largest: float  #: of all differences, absolute
    elements: int  #: compared
    nonfinite: int  #: elements of the target that are NaN or infinite where the reference's are not
    identical_rows: Flags  #: rows of which every bit is equal, in one dtype
    rounding: (
        tuple[str, str, bool] | None
    )  #: the cast that explains every element, see casts.candidates
    noise: float  #: relative distance that rounding alone can cause between these dtypes
    limit: float  #: relative distance from which on a row is another row
    columns: int

    @property
    def has_few_columns(self) -> bool:
        """Rows have fewer than FEW_COLUMNS elements."""
        return self.columns < FEW_COLUMNS

    @property
    def relative(self) -> float:
        """L2 norm of the difference over that of the reference; 0 if equal, Inf if only the reference is zero."""
        gap, norm = float(np.sqrt((self.gap**2).sum())), float(np.sqrt((self.norm**2).sum()))
        if gap == 0:
            return 0.0
        return gap / norm if norm > 0 else np.inf

    def classify(self, rows: Ints | None = None) -> Relation:
        """What the two are to each other, in all rows or in some."""
        which = slice(None) if rows is None else rows
        if not self.unequal[which].any():
            return "identical" if self.identical_rows[which].all() else "equal"
        if self.rounding is not None:
            return "rounded"
        gap, norm = self.gap[which], self.norm[which]
        typical = float(np.sqrt((norm**2).mean()))
        limit = self.noise * (_ONE_ELEMENT if self.has_few_columns else _ONE_ROW) * np.maximum(norm, typical)
        small = np.all(gap <= limit) and float(np.sqrt((gap**2).mean())) <= self.noise * typical
        return "noise" if small and not self._systematic(which) else "different"

    def _systematic(self, which: Ints | slice) -> bool:
        """The difference of these rows is a factor more than anything else."""
        gap, square = (
            float(np.sqrt((self.gap[which] ** 2).sum())),
            float((self.norm[which] ** 2).sum()),
        )
        count = len(self.gap[which]) * self.columns
        factor = abs(float(self.projection[which].sum())) / max(square, 1e-300)
        chance = max(_SYSTEMATIC, _CHANCE / np.sqrt(max(1, count)))
        return bool(factor > chance * gap / max(np.sqrt(square), 1e-300))

    @property
    def wrong_rows(self) -> Ints:
        """Rows that are other rows, or hold what is not finite."""
        typical = np.sqrt((self.norm**2).mean()) if len(self.norm) else 0.0
        return np.flatnonzero(~(self.gap <= self.limit * np.maximum(self.norm, typical * 1e-3)))


def compute_noise(target: str, reference: str) -> float:
    """Relative distance of two tensors of these dtypes that rounding alone can cause."""
    coarser = max(unit_roundoff(target), unit_roundoff(reference))
    return max(coarser, _FLOAT32_UNITS * unit_roundoff("float32"))


def measure_distance(
    target: Matrix,
    reference: Matrix,
    order: Ints | None = None,
    done: Callable[[int], None] | None = None,
) -> Distance:
    """Compare all rows of ``target`` with rows ``order`` of ``reference`` (the same rows if None; -1: not compared).

    Both have equally many columns. ``done`` is called after each chunk with the bytes read.
    """
    rows = target.shape[0]
    unequal, gap, norm, along = (
        np.zeros(rows, np.int64),
        np.zeros(rows),
        np.zeros(rows),
        np.zeros(rows),
    )
    ways = casts.list_candidate_casts(target.dtype, reference.dtype)
    scales = [(on_target, matrix.precision, found) for on_target, matrix in ((True, target), (False, reference))
              if (found := extract_scales(matrix)) is not None]  # fmt: skip
    largest, elements, nonfinite, alike = 0.0, 0, 0, target.dtype == reference.dtype
    bits = np.full(rows, alike)
    step = min(target.rows_per_chunk, reference.rows_per_chunk)
    for start in range(0, rows, step):
        mine: slice | Ints = slice(start, min(start + step, rows))
        theirs: slice | Ints = mine if order is None else order[mine]
        if order is not None and (order[mine] < 0).any():
            mine = start + np.flatnonzero(order[mine] >= 0)
            theirs = order[mine]
        a, b = target.read_raw(mine), reference.read_raw(theirs)
        elements += a.size
        if done is not None:
            done(a.nbytes + b.nbytes)
        if alike and _bits_equal(a, b).all():
            norm[mine] = np.nan
            continue
        bits[mine] = _bits_equal(a, b).all(axis=1) if alike else False
        a, b = decode(a, target.dtype), decode(b, reference.dtype)
        if not alike and np.array_equal(a, b):
            norm[mine] = np.nan
            continue
        chunk, ways = _compare(a, b, ways)
        scales = [
            (on_target, dtype, found)
            for on_target, dtype, found in scales
            if casts.is_float8_rounding(
                b if on_target else a,
                found.read_raw(mine if on_target else theirs),
                a if on_target else b,
                dtype,
            )
        ]
        unequal[mine], gap[mine], norm[mine], along[mine] = (
            chunk.unequal,
            chunk.gap,
            chunk.norm,
            chunk.along,
        )
        largest, nonfinite = max(largest, chunk.largest), nonfinite + chunk.nonfinite
    # the norm of rows that are equal was not worth computing: that of the others stands for it
    known = norm[np.isfinite(norm) & (norm > 0)]
    norm[np.isnan(norm)] = np.sqrt((known**2).mean()) if len(known) else 1.0
    ways += [(dtype, casts.NEAREST, on_target) for on_target, dtype, _ in scales]
    rounding = ways[0] if ways and elements else None
    if not unequal.any():
        rounding = None
    return Distance(
        unequal=unequal,
        gap=gap,
        norm=norm,
        projection=along,
        largest=largest,
        elements=elements,
        nonfinite=nonfinite,
        identical_rows=bits,
        rounding=rounding,
        noise=compute_noise(target.precision, reference.precision),
        limit=compute_row_limit(target, reference),
        columns=target.shape[1],
    )


def compute_row_limit(target: Matrix, reference: Matrix) -> float:
    """Relative distance from which on two rows of these matrices are different rows, not one row rounded."""
    noise = compute_noise(target.precision, reference.precision)
    return max(
        WRONG_ROW if target.shape[1] >= FEW_COLUMNS else min(WRONG_ROW, 2 * _ONE_ELEMENT * noise),
        noise,
    )


@dataclass(frozen=True)
class _Chunk:
    unequal: Ints
    gap: Floats
    norm: Floats
    along: Floats
    largest: float
    nonfinite: int


def _compare(
    a: AnyArray, b: AnyArray, ways: list[tuple[str, str, bool]]
) -> tuple[_Chunk, list[tuple[str, str, bool]]]:
    """Statistics of a chunk of values, and which casts still explain everything."""
    wide = (
        np.float64
        if a.dtype.itemsize > 4 or b.dtype.itemsize > 4 or a.dtype.kind != "f"
        else np.float32
    )
    with np.errstate(invalid="ignore", over="ignore"):
        apart = ~((a == b) | (np.isnan(a) & np.isnan(b))) if a.dtype.kind in "fc" else a != b
        d = np.where(apart, np.subtract(a, b, dtype=wide), 0)
        gap = _row_norms(d)
        largest = float(np.nanmax(np.abs(d), initial=0.0))
        lost = int(np.count_nonzero(apart & ~np.isfinite(a))) if a.dtype.kind == "f" else 0
        finite = np.where(np.isfinite(b), b, 0)
        norm, along = _row_norms(finite), _row_products(np.where(np.isfinite(d), d, 0), finite)
    kept = [way for way in ways if _explains(a, b, *way)] if apart.any() else ways
    return _Chunk(np.count_nonzero(apart, axis=1), gap, norm, along, largest, lost), kept


def _explains(a: AnyArray, b: AnyArray, dtype: str, way: str, on_target: bool) -> bool:
    made, wanted = (b, a) if on_target else (a, b)
    return bool(np.array_equal(casts.round_values(made, dtype, way), wanted, equal_nan=True))


def _bits_equal(a: AnyArray, b: AnyArray) -> Flags:
    """Elements whose every bit is equal; NaN of one payload are."""
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}.get(a.dtype.itemsize)
    equal: Flags = a == b if kind is None else a.view(kind) == b.view(kind)
    return equal


def _row_norms(values: AnyArray) -> Floats:
    norms: Floats = np.sqrt(_row_products(values, values))
    return norms


def _row_products(a: AnyArray, b: AnyArray) -> Floats:
    """Inner products of the rows, summed in float64."""
    products: Floats = np.einsum(
        "ij,ij->i", a.astype(np.float64, copy=False), b.astype(np.float64, copy=False)
    )
    return products
