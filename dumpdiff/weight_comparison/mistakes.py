"""What went wrong with a weight: each mistake is tried on some rows, and named if it explains them.

Every check takes a part of a comparison that failed and gives a :class:`Mistake`, or None. They stand in the order in
which they are tried: what says more comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..model.arrays import Floats, Ints
from ..model.dtypes import unit_roundoff
from .casts import NARROW_DTYPES
from .distance import FEW_COLUMNS, WRONG_ROW, compute_row_limit
from .matrix import Matrix
from .parameter_rows import ParameterRows
from .result import Mistake
from .row_matches import match_rows
from .row_permutation import describe_order

_FEW = 4  #: rows that another parameter is tried on
_WIDE = 64  #: and so many elements of each
_SAID = 8  #: rows that are listed
_CHANCE = 0.25  #: share of a vector's elements: more of them wrong are all of them
_RELATED = 0.2  #: a correlation below this is none
_ALIKE = 0.9  #: and one above this is the same weight, changed


@dataclass(frozen=True)
class ParameterIndex:
    """The parts of the reference by shape, for weights that stand in another's place."""

    parts: Mapping[tuple[int, int], Sequence[ParameterRows]]
    _samples: dict[tuple[int, int], Floats] = field(default_factory=dict)

    @staticmethod
    def of(parts: Iterable[ParameterRows]) -> ParameterIndex:
        """All parts of a comparison."""
        found: dict[tuple[int, int], list[ParameterRows]] = {}
        for part in parts:
            found.setdefault((len(part.reference_rows), part.reference.shape[1]), []).append(part)
        return ParameterIndex(found)

    def like(self, part: ParameterRows) -> ParameterRows | None:
        """The part of the reference that the target holds in this one's place, if there is one; by a few elements."""
        rows = _few_rows(part)
        sought = part.target.read_values(part.target_rows[rows])[:, :_WIDE].ravel()
        if np.ptp(sought) == 0 or not np.isfinite(sought).all():
            return None
        others: Sequence[ParameterRows] = self.parts.get(part.shape, ())
        if part.shape not in self._samples:
            values = [
                other.reference.read_values(other.reference_rows[rows])[:, :_WIDE].ravel()
                for other in others
            ]
            self._samples[part.shape] = np.array(values).reshape(len(others), len(sought))
        gaps = np.linalg.norm(self._samples[part.shape] - sought, axis=1)
        own = min(
            (
                gap
                for gap, other in zip(gaps.tolist(), others, strict=True)
                if other.path == part.path
            ),
            default=0.0,
        )
        limit = compute_row_limit(part.target, part.reference) * float(np.linalg.norm(sought))
        place = int(np.argmin(gaps)) if len(gaps) else -1
        if place < 0 or not gaps[place] <= min(limit, own / 2) or others[place].path == part.path:
            return None
        return others[place]


def _few_rows(part: ParameterRows) -> Ints:
    """Some rows of a part, of the first, the last and between: of a vector many, since each has one element."""
    count = max(_FEW, _FEW * _WIDE // max(1, part.shape[1]))
    return np.unique(np.linspace(0, part.shape[0] - 1, count).astype(np.int64))


def name_mistake(part: ParameterRows, wrong: Ints, known: ParameterIndex) -> Mistake:
    """What is wrong with a part of which the rows ``wrong`` are other rows."""
    rows, columns = part.shape
    some = 0 < len(wrong) <= (1 - WRONG_ROW) * rows
    # of a vector some elements are right by chance, whatever it holds
    if some and (columns >= FEW_COLUMNS or len(wrong) < _CHANCE * rows):
        return _some_rows(part, wrong)
    for check in _CHECKS:
        found = check(part, known)
        if found is not None:
            return found
    return _some_rows(part, wrong) if some else _unrelated(part)


def _some_rows(part: ParameterRows, wrong: Ints) -> Mistake:
    """All right but some rows: which, and what stands there."""
    a, b = part.values(part.sample(wrong))
    listed = ", ".join(map(str, wrong[:_SAID].tolist())) + (", ..." if len(wrong) > _SAID else "")
    if np.array_equal(wrong, np.arange(wrong[0], wrong[0] + len(wrong))) and len(wrong) > 1:
        listed = f"{wrong[0]} to {wrong[-1]}"
    which = f"rows {listed}" if len(wrong) > 1 else f"row {listed}"
    which = (
        f"{len(wrong)} of {part.shape[0]} rows ({which.removeprefix('rows ').removeprefix('row ')})"
    )
    return Mistake(*_content(a, b, part, which))


def _content(a: Floats, b: Floats, part: ParameterRows, which: str) -> tuple[str, str]:
    if not np.isfinite(a).all():
        return "not-finite", f"{which} hold NaN or infinities"
    if not a.any():
        return "rows-zero", f"{which} are zero, as if never loaded"
    if np.ptp(a) == 0:
        return "rows-constant", f"{which} are all {float(a.flat[0]):g}, as if never loaded"
    factor = _factor(a, b)
    if factor is not None and np.linalg.norm(a - factor * b) <= 2 * part.noise * np.linalg.norm(a):
        return "rows-scaled", f"{which} are {_times(factor)} the reference's"
    if _correlation(a, b) > _ALIKE:
        return (
            "changed",
            f"{which} are the reference's with {_change(a, b):.2g} relative change: trained on, or noise",
        )
    return "rows-wrong", f"{which} hold something else"


def _factor(a: Floats, b: Floats) -> float | None:
    square = float(np.vdot(b, b))
    return float(np.vdot(a, b)) / square if square > 0 else None


def _not_finite(part: ParameterRows, known: ParameterIndex) -> Mistake | None:
    a, b = part.values(part.sample())
    lost = ~np.isfinite(a) & np.isfinite(b)
    if lost.all() or (lost.any() and lost.mean() > _RELATED):
        return Mistake("not-finite", f"{lost.mean():.0%} of its elements are NaN or infinite")
    return None


def _constant(part: ParameterRows, known: ParameterIndex) -> Mistake | None:
    a, b = part.values(part.sample())
    if a.size > 1 and np.ptp(a) == 0 and (np.ptp(b) > 0 or a.flat[0] != b.flat[0]):
        value = float(a.flat[0])
        if value == 0:
            return Mistake("zeros", "all zeros, as if never loaded")
        return Mistake("constant", f"every element is {value:g}, as if never loaded")
    return None


def _cut(part: ParameterRows, known: ParameterIndex) -> Mistake | None:
    a, b = part.values(part.sample())
    apart = a != b
    if (
        part.target.dtype != part.reference.dtype
        or not apart.any()
        or part.target.dtype not in NARROW_DTYPES
    ):
        return None
    unit = 2 * unit_roundoff(part.target.dtype) * np.abs(b)
    if np.all(np.abs(a) <= np.abs(b)) and np.all(np.abs(a - b) <= unit):
        share = f"{apart.mean():.0%} of its elements are the next number nearer to zero"
        return Mistake("rounding", f"{share}: bits cut off where the reference was rounded")
    return None


def _scaled(part: ParameterRows, known: ParameterIndex) -> Mistake | None:
    a, b = part.values(part.sample())
    factor = _factor(a, b)
    if factor is None or factor == 0 or a.size < 2 or np.ptp(b) == 0:
        return None
    if np.linalg.norm(a - factor * b) > max(2 * part.noise, 1e-5) * np.linalg.norm(a):
        return None
    if abs(factor + 1) <= part.noise:
        return Mistake("sign", "the reference's with the other sign")
    root = factor * factor
    more = (
        f" (by the square root of {round(root):g})"
        if root > 3 and abs(root - round(root)) < 1e-3 * root
        else ""
    )
    return Mistake("scaled", f"{_times(factor)} the reference's{more}")


def _times(factor: float) -> str:
    """A factor near 1 by how much it is off."""
    near = f"1 {'+' if factor > 1 else '-'} {abs(factor - 1):.2g} times"
    return near if abs(factor - 1) < 1e-4 else f"{factor:.6g} times"


def _offset(part: ParameterRows, known: ParameterIndex) -> Mistake | None:
    a, b = part.values(part.sample())
    d = a - b
    if a.size > 1 and np.abs(d - d.mean()).max() <= 2 * part.noise * np.abs(b).max() < abs(
        d.mean()
    ):
        return Mistake("offset", f"the reference's plus {float(d.mean()):.6g}")
    return None


def _transposed(part: ParameterRows, known: ParameterIndex) -> Mistake | None:
    both = part.matrices()
    rows, columns = part.shape
    if both is None or min(rows, columns) < 2:
        return None
    target, reference = both
    if rows == columns:
        sample = part.sample()
        a, b = target.read_values(sample), reference.T.read_values(sample)
        if _close(a, b, part):
            return Mistake("transposed", "the reference's transposed")
        return None
    # the bytes of the transpose in the shape of the weight: column 0 of the reference comes first
    first = target.read_values(slice(0, -(-rows // columns))).ravel()[:rows]
    if _close(first, reference.T.read_values(slice(0, 1)).ravel(), part):
        return Mistake(
            "transposed", "the bytes of the reference's transpose: transposed, then reshaped"
        )
    return None


def _close(a: Floats, b: Floats, part: ParameterRows) -> bool:
    return bool(np.linalg.norm(a - b) <= max(WRONG_ROW, part.noise) * np.linalg.norm(b)) and bool(
        b.any()
    )


def _another(part: ParameterRows, known: ParameterIndex) -> Mistake | None:
    other = known.like(part)
    return (
        None
        if other is None
        else Mistake("swapped", f"the reference's {other.reference_name}", other.path)
    )


def _columns(part: ParameterRows, known: ParameterIndex) -> Mistake | None:
    both = part.matrices()
    if both is None or min(part.shape) < 2:
        return None
    target, reference = both[0].T, both[1].T
    columns = np.arange(part.shape[1])
    order = match_rows(target, reference, columns, np.ones(len(columns), dtype=bool))
    found = order >= 0
    if found.mean() > 1 - WRONG_ROW and not np.array_equal(order, columns):
        said = describe_order(order).description.replace("rows", "columns")
        return Mistake("columns-permuted", f"the reference's with {said}")
    gap = np.linalg.norm(_values(target, columns) - _values(reference, columns), axis=1)
    right = gap <= WRONG_ROW * np.maximum(
        np.linalg.norm(_values(reference, columns), axis=1), 1e-30
    )
    if WRONG_ROW < right.mean() < 1:
        wrong = np.flatnonzero(~right)
        return Mistake(
            "columns-wrong",
            f"{len(wrong)} of {len(columns)} columns hold something else (from {wrong[0]})",
        )
    return None


def _values(matrix: Matrix, rows: Ints) -> Floats:
    """Some columns of each row are enough to tell whether it is the same."""
    return matrix.T.read_values(np.arange(0, matrix.shape[1], max(1, matrix.shape[1] // 64))).T


def _changed(part: ParameterRows, known: ParameterIndex) -> Mistake | None:
    a, b = part.values(part.sample())
    related = _correlation(a, b)
    error = _change(a, b)
    if related > _ALIKE and error < 1:
        return Mistake(
            "changed",
            f"the reference's with {error:.2g} relative change in every row: trained on, or noise",
        )
    return None


def _change(a: Floats, b: Floats) -> float:
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-300))


def _correlation(a: Floats, b: Floats) -> float:
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.vdot(a, b)) / scale if scale > 0 else 0.0


def _unrelated(part: ParameterRows) -> Mistake:
    """Nothing of the reference: freshly drawn, or of another model."""
    a, _ = part.values(part.sample())
    a = a[np.isfinite(a)]
    if not a.size:
        return Mistake("not-finite", "all its elements are NaN or infinite")
    if abs(_correlation(*part.values(part.sample()))) > _RELATED:
        return Mistake("different", "related to the reference's, but no known change of it")
    return Mistake("random", f"unrelated to the reference's: {_drawn(a)}")


def _drawn(a: Floats) -> str:
    """From which distribution the elements seem to be, by their fourth moment (normal: 3, uniform: 1.8)."""
    mean, deviation = float(a.mean()), float(a.std())
    if a.size < 64 or deviation == 0 or abs(mean) > 0.1 * deviation:
        return f"mean {mean:.3g}, deviation {deviation:.3g}"
    kurtosis = float(((a - mean) ** 4).mean()) / deviation**4
    if abs(kurtosis - 3) < 0.3:
        return f"normal with deviation {deviation:.3g}, as if freshly initialised"
    if abs(kurtosis - 1.8) < 0.15:
        return f"uniform in +-{float(np.abs(a).max()):.3g}, as if freshly initialised"
    return f"mean {mean:.3g}, deviation {deviation:.3g}"


_CHECKS: tuple[Callable[[ParameterRows, ParameterIndex], Mistake | None], ...] = (
    _not_finite,
    _constant,
    _cut,
    _scaled,
    _offset,
    _another,
    _transposed,
    _changed,
    _columns,
)
