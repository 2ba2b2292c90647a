"""Name what is wrong with a weight: each kind of mistake is tested on some rows.

Every check takes the rows of a parameter that failed the comparison, and returns a :class:`Mistake`
or None. The checks are listed in the order in which they are applied: the more specific ones first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..checkpoints.elements import FLOAT8
from ..comparison.narrow_dtypes import round_to_dtype
from ..model.arrays import Floats, Ints
from ..model.dtypes import get_unit_roundoff
from .casts import NARROW_DTYPES, is_float8_rounding
from .distance import FEW_COLUMNS, SYSTEMATIC_SHARE, WRONG_ROW
from .drift import compute_spacing, measure_drift
from .matrix import Matrix
from .parameter_index import ParameterIndex
from .parameter_rows import ParameterRows
from .result import Mistake
from .row_matches import match_rows
from .row_permutation import describe_order

_SAMPLE_LINES = 64  #: elements of each column that are compared
_MAX_LISTED_ROWS = 8  #: rows that a message lists
_TINY = 1e-300  #: lower bound of denominators
_MIN_COLUMN_NORM = 1e-30  #: lower bound of the norms of columns

#: Largest share of a vector's elements that can be wrong for the rest to be correct. In a wrong
#: vector some elements are close to the reference by chance.
_MAX_WRONG_ELEMENTS = 0.25
_MIN_CORRELATION = 0.2  #: a correlation below this counts as unrelated
_CHANGED_CORRELATION = 0.9  #: a correlation above this is the same weight with a change

#: A weight is a multiple of another if the rest is within twice the noise, but at least this
#: (relatively).
_MIN_FACTOR_TOLERANCE = 1e-5
#: A factor leaves at most this share of the difference, as in ``Distance``: what it explains and
#: what it leaves are orthogonal. Otherwise it is only the least-squares fit of another change.
_MAX_UNSCALED_SHARE = (1 - SYSTEMATIC_SHARE**2) ** 0.5
#: A factor is reported as a square root if its square is within this of an integer greater than 3.
_ROOT_TOLERANCE = 1e-3
_MIN_ROOT = 3
#: Half of all elements are cut to another number than they are rounded to. Of fewer elements, or a
#: small share, each may be nearer to zero by chance.
_MIN_CUT, _MIN_CUT_SHARE = 8, 0.25
#: Any number is near an integer if it is only known to this distance.
_MAX_ROOT_DOUBT = 0.1
#: One factor, or one constant, explains any two elements about as well as one: fewer prove nothing.
_MIN_EXPLAINED = 3
_NEAR_ONE = 1e-4  #: a factor closer to 1 is printed as its distance from 1

#: A sample of fewer elements, or with a mean beyond this share of the deviation, is not assigned a
#: distribution.
_MIN_DISTRIBUTION_SAMPLE, _MAX_MEAN = 64, 0.1
#: Kurtosis of the normal and the uniform distribution, and how far a sample may be from it.
_NORMAL_KURTOSIS, _NORMAL_TOLERANCE = 3.0, 0.3
_UNIFORM_KURTOSIS, _UNIFORM_TOLERANCE = 1.8, 0.15


def name_mistake(parameter: ParameterRows, wrong_rows: Ints, index: ParameterIndex) -> Mistake:
    """Return what is wrong with a parameter whose rows ``wrong_rows`` are different rows."""
    n_rows, n_columns = parameter.shape
    is_partial = 0 < len(wrong_rows) <= (1 - WRONG_ROW) * n_rows
    is_matrix = n_columns >= FEW_COLUMNS
    if is_partial and (is_matrix or len(wrong_rows) < _MAX_WRONG_ELEMENTS * n_rows):
        return _describe_wrong_rows(parameter, wrong_rows)
    for check in _CHECKS:
        mistake = check(parameter, index)
        if mistake is not None:
            return mistake
    if is_partial:
        return _describe_wrong_rows(parameter, wrong_rows)
    return _describe_unrelated(parameter)


def _describe_wrong_rows(parameter: ParameterRows, wrong_rows: Ints) -> Mistake:
    """Describe some wrong rows of a parameter whose other rows are correct."""
    first, last, count = int(wrong_rows[0]), int(wrong_rows[-1]), len(wrong_rows)
    if count > 1 and np.array_equal(wrong_rows, np.arange(first, first + count)):
        listed_rows = f"{first} to {last}"
    else:
        listed_rows = ", ".join(map(str, wrong_rows[:_MAX_LISTED_ROWS].tolist()))
        if count > _MAX_LISTED_ROWS:
            listed_rows += ", ..."
    rows = f"{count} of {parameter.shape[0]} rows ({listed_rows})"
    target, reference = parameter.read_values(parameter.sample_rows(wrong_rows))
    if target.size < _MIN_EXPLAINED and np.isfinite(target).all():
        return Mistake("rows-wrong", f"{rows} {_format_elements(target, reference)}")
    kind, state = _describe_contents(target, reference, parameter.noise)
    return Mistake(kind, f"{rows} {state}")


def _describe_contents(target: Floats, reference: Floats, noise: float) -> tuple[str, str]:
    """Return the kind of mistake in some wrong rows, and what is wrong with them."""
    if not np.isfinite(target).all():
        return "not-finite", "hold NaN or infinities"
    if not target.any():
        return "rows-zero", "are zero, as if never loaded"
    if np.ptp(target) == 0:
        return "rows-constant", f"are all {float(target.flat[0]):g}, as if never loaded"
    factor = _fit_factor(target, reference)
    if factor is not None:
        residual = float(np.linalg.norm(target - factor * reference))
        if residual <= 2 * noise * np.linalg.norm(target):
            return "rows-scaled", f"are {_format_factor(factor)} the reference's"
    if _compute_correlation(target, reference) > _CHANGED_CORRELATION:
        change = _compute_change(target, reference)
        state = f"are the reference's with {change:.2g} relative change: trained on, or noise"
        return "changed", state
    return "rows-wrong", "hold something else"


def _format_elements(target: Floats, reference: Floats) -> str:
    values, others = (", ".join(f"{value:g}" for value in a.flat) for a in (target, reference))
    return f"hold {values} where the reference has {others}"


def _check_not_finite(parameter: ParameterRows, index: ParameterIndex) -> Mistake | None:
    target, reference = parameter.read_sample()
    is_lost = ~np.isfinite(target) & np.isfinite(reference)
    if is_lost.all() or is_lost.mean() > _MIN_CORRELATION:
        return Mistake("not-finite", f"{is_lost.mean():.0%} of its elements are NaN or infinite")
    return None


def _check_constant(parameter: ParameterRows, index: ParameterIndex) -> Mistake | None:
    target, reference = parameter.read_sample()
    if target.size <= 1 or np.ptp(target) != 0:
        return None
    value = float(target.flat[0])
    if not np.ptp(reference) > 0 and value == reference.flat[0]:
        return None
    if value == 0:
        return Mistake("zeros", "all zeros, as if never loaded")
    return Mistake("constant", f"every element is {value:g}, as if never loaded")


def _check_truncated(parameter: ParameterRows, index: ParameterIndex) -> Mistake | None:
    dtype = parameter.target.dtype
    if dtype != parameter.reference.dtype or dtype not in NARROW_DTYPES:
        return None
    target, reference = parameter.read_sample()
    is_unequal = target != reference
    n_unequal = np.count_nonzero(is_unequal)
    if n_unequal < max(_MIN_CUT, _MIN_CUT_SHARE * is_unequal.size):
        return None
    units = 2 * get_unit_roundoff(dtype) * np.abs(reference)
    is_smaller = np.all(np.abs(target) <= np.abs(reference))
    if is_smaller and np.all(np.abs(target - reference) <= units):
        share = f"{is_unequal.mean():.0%} of its elements are the next number nearer to zero"
        return Mistake("rounding", f"{share}: bits cut off where the reference was rounded")
    return None


def _check_detour(parameter: ParameterRows, index: ParameterIndex) -> Mistake | None:
    """Find a cast through a third dtype, in which only one side is exact.

    An exact rounding is found before, by :mod:`.casts`. It does not explain two sides that were
    both rounded from values that neither of them has.
    """
    target, reference = parameter.read_sample()
    own_dtype = max(
        parameter.target.precision, parameter.reference.precision, key=get_unit_roundoff
    )
    if own_dtype in FLOAT8:  # every value of which is exact in the other dtypes
        return None
    for dtype in NARROW_DTYPES:
        is_target_exact, is_reference_exact = (
            np.array_equal(round_to_dtype(values, dtype), values) for values in (target, reference)
        )
        if dtype == own_dtype or is_target_exact == is_reference_exact:
            continue
        # Half a unit of the third dtype, and half a unit of their own on either side.
        limits = compute_spacing(np.abs(reference), dtype) / 2
        limits += compute_spacing(np.abs(reference), own_dtype)
        if np.all(np.abs(target - reference) <= limits):
            if is_target_exact:
                return Mistake("rounding", f"the reference's, cast to {dtype} on the way")
            return Mistake("rounding", f"the reference's, which was cast to {dtype} on the way")
    return None


def _check_missing_scales(parameter: ParameterRows, index: ParameterIndex) -> Mistake | None:
    """Find 8-bit numbers that have no scales, and are the other side rounded without any."""
    target, reference = parameter.read_sample()
    ones = np.ones(1, np.float32)
    for dtype, exact, rounded in (
        (parameter.target.dtype, reference, target),
        (parameter.reference.dtype, target, reference),
    ):
        if dtype in FLOAT8 and is_float8_rounding(exact, ones, rounded, dtype):
            return Mistake("rounding", f"rounded to {dtype} without scales")
    return None


def _check_scaled(parameter: ParameterRows, index: ParameterIndex) -> Mistake | None:
    target, reference = parameter.read_sample()
    factor = _fit_factor(target, reference)
    if not factor or target.size < 2 or np.ptp(reference) == 0:
        return None
    tolerance = max(2 * parameter.noise, _MIN_FACTOR_TOLERANCE)
    residual = np.linalg.norm(target - factor * reference)
    if residual > tolerance * np.linalg.norm(target):
        return None
    if residual > _MAX_UNSCALED_SHARE * np.linalg.norm(target - reference):
        return None
    if abs(factor + 1) <= parameter.noise:
        return Mistake("sign", "the reference's with the other sign")
    message = f"{_format_factor(factor)} the reference's"
    if {parameter.target.dtype, parameter.reference.dtype} & set(FLOAT8):
        return Mistake("scaled", f"{message}: 8-bit numbers without their scale")
    square = factor * factor
    doubt = _ROOT_TOLERANCE * square
    if square > _MIN_ROOT and abs(square - round(square)) < min(doubt, _MAX_ROOT_DOUBT):
        message += f" (by the square root of {round(square):g})"
    return Mistake("scaled", message)


def _fit_factor(target: Floats, reference: Floats) -> float | None:
    """Return the least-squares factor from reference to target; None if the reference is zero."""
    square = float(np.vdot(reference, reference))
    return float(np.vdot(target, reference)) / square if square > 0 else None


def _format_factor(factor: float) -> str:
    """Format a factor; one near 1 by its distance from 1."""
    if abs(factor - 1) < _NEAR_ONE:
        return f"1 {'+' if factor > 1 else '-'} {abs(factor - 1):.2g} times"
    return f"{factor:.6g} times"


def _check_offset(parameter: ParameterRows, index: ParameterIndex) -> Mistake | None:
    target, reference = parameter.read_sample()
    if target.size <= 1:
        return None
    difference = target - reference
    offset = difference.mean()
    limit = 2 * parameter.noise * np.abs(reference).max()
    is_constant = np.abs(difference - offset).max() <= limit
    if is_constant and limit < abs(offset):
        return Mistake("offset", f"the reference's plus {float(offset):.6g}")
    return None


def _check_swapped(parameter: ParameterRows, index: ParameterIndex) -> Mistake | None:
    other = index.find_held_parameter(parameter)
    if other is None:
        return None
    return Mistake("swapped", f"the reference's {other.reference_name}", other.path)


def _check_transposed(parameter: ParameterRows, index: ParameterIndex) -> Mistake | None:
    matrices = parameter.get_matrices()
    n_rows, n_columns = parameter.shape
    if matrices is None or min(n_rows, n_columns) < 2:
        return None
    target, reference = matrices
    if n_rows == n_columns:
        rows = parameter.sample_rows()
        if _are_close(target.read_values(rows), reference.T.read_values(rows), parameter):
            return Mistake("transposed", "the reference's transposed")
        return None
    # The bytes of the transpose in the shape of the weight: column 0 of the reference comes first.
    first_elements = target.read_values(slice(0, -(-n_rows // n_columns))).ravel()[:n_rows]
    first_column = reference.T.read_values(slice(0, 1)).ravel()
    if _are_close(first_elements, first_column, parameter):
        return Mistake(
            "transposed", "the bytes of the reference's transpose: transposed, then reshaped"
        )
    return None


def _are_close(target: Floats, reference: Floats, parameter: ParameterRows) -> bool:
    limit = max(WRONG_ROW, parameter.noise) * np.linalg.norm(reference)
    return bool(np.linalg.norm(target - reference) <= limit) and bool(reference.any())


def _check_columns(parameter: ParameterRows, index: ParameterIndex) -> Mistake | None:
    matrices = parameter.get_matrices()
    if matrices is None or min(parameter.shape) < 2:
        return None
    target, reference = matrices[0].T, matrices[1].T
    columns = np.arange(parameter.shape[1])
    order = match_rows(target, reference, columns, np.ones(len(columns), dtype=bool))
    is_found = order >= 0
    if is_found.mean() > 1 - WRONG_ROW and not np.array_equal(order, columns):
        description = describe_order(order, "").description.replace("rows", "columns")
        return Mistake("columns-permuted", f"the reference's with {description}")
    target_values = _sample_columns(target)
    reference_values = _sample_columns(reference)
    distances = np.linalg.norm(target_values - reference_values, axis=1)
    norms = np.maximum(np.linalg.norm(reference_values, axis=1), _MIN_COLUMN_NORM)
    is_correct = distances <= WRONG_ROW * norms
    if WRONG_ROW < is_correct.mean() < 1:
        wrong_columns = np.flatnonzero(~is_correct)
        message = (
            f"{len(wrong_columns)} of {len(columns)} columns hold something else"
            f" (from {wrong_columns[0]})"
        )
        return Mistake("columns-wrong", message)
    return None


def _sample_columns(matrix: Matrix) -> Floats:
    """Return evenly spaced elements of each row, enough to see whether rows are equal."""
    columns = np.arange(0, matrix.shape[1], max(1, matrix.shape[1] // _SAMPLE_LINES))
    return matrix.T.read_values(columns).T


def _check_changed(parameter: ParameterRows, index: ParameterIndex) -> Mistake | None:
    target, reference = parameter.read_sample()
    change = _compute_change(target, reference)
    is_related = _compute_correlation(target, reference) > _CHANGED_CORRELATION
    if change <= WRONG_ROW or (is_related and change < 1):
        return _describe_change(parameter)
    return None


def name_small_change(parameter: ParameterRows, index: ParameterIndex) -> Mistake:
    """Return what is wrong with a parameter that is the reference's within rounding."""
    for check in (_check_truncated, _check_missing_scales, _check_detour):
        mistake = check(parameter, index)
        if mistake is not None:
            return mistake
    return _describe_change(parameter)


def _describe_change(parameter: ParameterRows) -> Mistake:
    change = _compute_change(*parameter.read_sample())
    drift = measure_drift(parameter)
    return Mistake("changed", f"{change:.2g} relative change: {drift.describe()}")


def _compute_change(target: Floats, reference: Floats) -> float:
    reference_norm = max(float(np.linalg.norm(reference)), _TINY)
    return float(np.linalg.norm(target - reference) / reference_norm)


def _compute_correlation(a: Floats, b: Floats) -> float:
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.vdot(a, b)) / scale if scale > 0 else 0.0


def _describe_unrelated(parameter: ParameterRows) -> Mistake:
    """Describe a weight that no check explains: randomly initialized, or of another model."""
    target, reference = parameter.read_sample()
    finite_values = target[np.isfinite(target)]
    if not finite_values.size:
        return Mistake("not-finite", "all its elements are NaN or infinite")
    if abs(_compute_correlation(target, reference)) > _MIN_CORRELATION:
        return Mistake("different", "related to the reference's, but no known change of it")
    distribution = _describe_distribution(finite_values)
    return Mistake("random", f"unrelated to the reference's: {distribution}")


def _describe_distribution(values: Floats) -> str:
    """Describe the distribution of elements, by their kurtosis."""
    mean, deviation = float(values.mean()), float(values.std())
    summary = f"mean {mean:.3g}, deviation {deviation:.3g}"
    is_centered = deviation != 0 and abs(mean) <= _MAX_MEAN * deviation
    if values.size < _MIN_DISTRIBUTION_SAMPLE or not is_centered:
        return summary
    kurtosis = float(((values - mean) ** 4).mean()) / deviation**4
    if abs(kurtosis - _NORMAL_KURTOSIS) < _NORMAL_TOLERANCE:
        return f"normal with deviation {deviation:.3g}, as if freshly initialized"
    if abs(kurtosis - _UNIFORM_KURTOSIS) < _UNIFORM_TOLERANCE:
        limit = float(np.abs(values).max())
        return f"uniform in +-{limit:.3g}, as if freshly initialized"
    return summary


_CHECKS: tuple[Callable[[ParameterRows, ParameterIndex], Mistake | None], ...] = (
    _check_not_finite,
    _check_constant,
    _check_truncated,
    _check_missing_scales,
    _check_detour,
    _check_scaled,
    _check_offset,
    _check_swapped,
    _check_transposed,
    _check_changed,
    _check_columns,
)
