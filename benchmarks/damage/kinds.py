"""The kinds of damage: what becomes of the numbers of one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

#: Share of a tensor's norm (of a statistic: of its scale) that a damage must change to count. Less,
#: as the sign of a nearly symmetric tensor, is hardly more than rounding in low precision.
CLEAR = 0.01
_FACTOR = 1.3
#: A single changed element becomes this many times the largest.
_OUTLIER = 1.3


@dataclass(frozen=True)
class Statistics:
    """The four recorded numbers; None where the recorder writes none."""

    max: float | None
    min: float | None
    mean: float | None
    norm: float | None


STATISTIC_NAMES = tuple(field.name for field in fields(Statistics))


def _replace_element(values: np.ndarray) -> np.ndarray:
    damaged = values.copy()
    damaged.flat[values.size // 2] = _OUTLIER * np.abs(values).max()
    return damaged


def _insert_nan(values: np.ndarray) -> np.ndarray:
    damaged = values.copy()
    damaged.flat[values.size // 2] = np.nan
    return damaged


#: Kind -> what becomes of a whole tensor (float64, its own shape).
TENSOR_DAMAGES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "factor 1.3": lambda values: _FACTOR * values,
    "sign": lambda values: -values,
    "NaN": _insert_nan,
    "zeros": np.zeros_like,
    "doubled": lambda values: 2 * values,
    "one element": _replace_element,
}


def _scale(factor: float) -> Callable[[Statistics, int], Statistics]:
    def scale(numbers: Statistics, size: int) -> Statistics:
        scaled = [
            None if number is None else factor * number
            for number in (numbers.max, numbers.min, numbers.mean, numbers.norm)
        ]
        return Statistics(*scaled)

    return scale


def _negate(numbers: Statistics, size: int) -> Statistics:
    negated = _scale(-1.0)(numbers, size)
    return replace(negated, max=negated.min, min=negated.max, norm=numbers.norm)


def _write_nan(numbers: Statistics, size: int) -> Statistics:
    """Return what recorders write of a tensor with a NaN: it is in every number."""
    return _scale(np.nan)(numbers, size)


def _replace_largest(numbers: Statistics, size: int) -> Statistics:
    """Return the statistics after an element near zero became the largest."""
    outlier = _OUTLIER * _get_extreme(numbers)
    mean, norm = numbers.mean, numbers.norm
    return Statistics(
        outlier,
        numbers.min,
        None if mean is None else mean + outlier / size,
        None if norm is None else float(np.hypot(norm, outlier)),
    )


def change_one(numbers: Statistics, name: str) -> Statistics:
    """Return the statistics with one of them changed alone; unchanged if it is not recorded."""
    number = getattr(numbers, name)
    return numbers if number is None else replace(numbers, **{name: _FACTOR * number})


#: Kind -> what becomes of the statistics of a tensor of so many elements.
STATISTICS_DAMAGES: Mapping[str, Callable[[Statistics, int], Statistics]] = {
    "factor 1.3": _scale(_FACTOR),
    "sign": _negate,
    "NaN": _write_nan,
    "zeros": _scale(0.0),
    "doubled": _scale(2.0),
    "one element": _replace_largest,
}

ONE_STATISTIC = "one statistic"  #: one of the four numbers is 1.3 times what it was
#: The same value in every record of it: nothing in the dump contradicts it.
EVERYWHERE = "factor 1.3 everywhere"
SWAPPED = "swapped"  #: the numbers of another record of the same size
TRUNCATED = "truncated"  #: half of the file; of a text file: it ends in the middle of the record
DELETED = "deleted"  #: no file, no row, no entry of the op; nothing else holds the value
DELETED_COPY = "deleted copy"  #: the same, but other records of the dump hold the value, too

#: All kinds, in the order of the tables.
KINDS = (
    *TENSOR_DAMAGES, ONE_STATISTIC, EVERYWHERE, SWAPPED, TRUNCATED, DELETED,
    DELETED_COPY,
)  # fmt: skip


def list_kinds(whole: bool) -> list[str]:
    """Return the kinds for dumps of whole tensors, or of statistics."""
    return [kind for kind in KINDS if not (whole and kind == ONE_STATISTIC)]


def get_arithmetic(kind: str) -> str:
    """Return the kind that does to one record what ``kind`` does to all of a value."""
    return "factor 1.3" if kind == EVERYWHERE else kind


def is_finite(numbers: Statistics) -> bool:
    """Return whether all recorded statistics are finite."""
    known = [getattr(numbers, name) for name in STATISTIC_NAMES]
    return all(number is None or np.isfinite(number) for number in known)


def is_clear_tensor_damage(values: np.ndarray, damaged: np.ndarray) -> bool:
    """Return whether a tensor is different from the original by more than CLEAR of its norm."""
    is_finite = np.isfinite(values)
    if (is_finite != np.isfinite(damaged)).any():
        return True
    difference = np.linalg.norm(damaged[is_finite] - values[is_finite])
    return bool(difference > CLEAR * np.linalg.norm(values[is_finite]))


def is_clear_statistics_damage(numbers: Statistics, damaged: Statistics, size: int) -> bool:
    """Return whether one of the statistics is different by more than CLEAR of its scale.

    The scale of max and min is the larger of both, that of the mean is the root mean square.
    """
    extreme = _get_extreme(numbers)
    norm = extreme if numbers.norm is None else numbers.norm
    scales = {"max": extreme, "min": extreme, "mean": norm / np.sqrt(size), "norm": norm}
    for name, scale in scales.items():
        before, after = getattr(numbers, name), getattr(damaged, name)
        if before is None or not np.isfinite(before):
            continue
        if not np.isfinite(after) or abs(after - before) > CLEAR * scale:
            return True
    return False


def _get_extreme(numbers: Statistics) -> float:
    known = [abs(number) for number in (numbers.max, numbers.min) if number is not None]
    return max(known, default=0.0)
