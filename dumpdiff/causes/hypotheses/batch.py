"""What both runs were given, and what differs: they read other batches, or scale them otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...model.arrays import AnyArray, Flags, Floats
from ..fault_case import FaultCase
from ..hypothesis import Candidate, Hypothesis
from ..parameter_fit import fit_factor

#: Elements of inputs from which on a factor that explains them all is no accident, and channels
#: that have a mean and a deviation of their own.
_MIN_ELEMENTS, _MAX_CHANNELS = 16, 16
_MIN_ELEMENTS_OF_LINE = 4
#: Relative difference of a factor from the inverse of a whole number that is rounding.
_EQUAL_FACTORS = 1e-5


def suggest_other_batch(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that the batch holds other numbers.

    Positions are given, too. They count along their last axis, and a batch does not.
    """
    faulty, faithful = case.faulty, case.faithful
    is_batch = case.is_of_batch and case.is_discrete and faulty.shape == faithful.shape
    if not is_batch or _is_counting(faulty) or _is_counting(faithful):
        return
    places = np.argwhere(faulty != faithful)
    if not len(places):
        return
    place = tuple(places[0].tolist())
    description = (
        f"another batch: {len(places)} of {faithful.size} numbers differ, the first at"
        f" {list(place)} is {int(faulty[place])}"
    )
    contrast = f"has {int(faithful[place])}"
    yield Candidate(faulty, description, contrast, unchanged=faithful)


def suggest_scaled_batch(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that images or other inputs are scaled and shifted, as a whole or by channel.

    Pixels from 0 to 255 in place of 0 to 1, or another mean and standard deviation.
    """
    faithful = case.faithful
    if not case.is_of_batch or case.is_discrete or faithful.size < _MIN_ELEMENTS:
        return
    factor = fit_factor(faithful, case.faulty)
    yield Candidate(
        factor * faithful,
        f"the inputs times {_format_factor(factor)}",
        parameters={"factor": factor},
        unchanged=faithful,
        cause="constant-factor",
    )
    if faithful.ndim < 2 or faithful.shape[1] > _MAX_CHANNELS:
        return
    if faithful.size < _MIN_ELEMENTS_OF_LINE * faithful.shape[1]:
        return  # a line goes through few points by chance
    channels = np.moveaxis(faithful, 1, 0).reshape(faithful.shape[1], -1)
    faulty_channels = np.moveaxis(case.faulty, 1, 0).reshape(channels.shape)
    if not np.isfinite([channels, faulty_channels]).all() or np.ptp(channels, axis=1).min() == 0:
        return  # no line goes through the points of one number
    lines = [
        np.polyfit(own, other, 1) for own, other in zip(channels, faulty_channels, strict=True)
    ]
    factors, shifts = np.transpose(lines)
    shape = (-1, *[1] * (faithful.ndim - 2))
    yield Candidate(
        faithful * factors.reshape(shape) + shifts.reshape(shape),
        f"the channels of the inputs times {_format_numbers(factors)}, "
        f"plus {_format_numbers(shifts)}",
        unchanged=faithful,
    )


def suggest_changed_batch(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that a part of the inputs are other numbers, and the rest the same ones.

    Padding that repeats the last number before it, or other columns, rows or elements.
    """
    faulty, faithful = case.faulty, case.faithful
    if not case.is_of_batch or case.is_discrete or faulty.shape != faithful.shape:
        return
    is_changed = faulty != faithful
    n_changed = int(is_changed.sum())
    if not n_changed:
        return
    numbers = f"{n_changed} of {faithful.size} numbers"
    for axis in range(faithful.ndim):
        for values, others, is_faulty in ((faulty, faithful, True), (faithful, faulty, False)):
            fill = others[is_changed]
            if (
                n_changed > 1
                and np.ptp(fill) == 0
                and _flag_repeated(values, axis)[is_changed].all()
            ):
                texts = [f"{fill[0]:g}", f"the number before along axis {axis}"]
                own, other = texts[::-1] if is_faulty else texts
                description = f"{numbers} of the input are {own}"
                contrast = f"has {other} there"
                yield Candidate(
                    faulty, description, contrast, unchanged=faithful, cause="padding-mode"
                )
                return
    verb = "differ"
    if 2 * n_changed > faithful.size:  # the rows may be in another order
        is_changed = ~np.isin(faulty, faithful)
        n_changed = int(is_changed.sum())
        if not n_changed:
            return
        verb = f"are not among the {case.faithful_side}'s"
    places = _describe_places(is_changed)
    if places or 2 * n_changed <= faithful.size:
        text = f"another batch: {n_changed} of {faithful.size} numbers {verb}"
        yield Candidate(faulty, f"{text}, {places}" if places else text, unchanged=faithful)


def _flag_repeated(array: AnyArray, axis: int) -> Flags:
    """Return for each element whether it equals the one before it along an axis."""
    is_repeated = np.zeros(array.shape, dtype=bool)
    moved, flags = np.moveaxis(array, axis, 0), np.moveaxis(is_repeated, axis, 0)
    flags[1:] = moved[1:] == moved[:-1]
    return is_repeated


def _describe_places(is_changed: Flags) -> str:
    """Return the indices of one axis that hold all changes, if they are neighbors; else ''."""
    for axis in reversed(range(is_changed.ndim)):
        others = tuple(other for other in range(is_changed.ndim) if other != axis)
        indices = np.flatnonzero(is_changed.any(axis=others))
        if len(indices) < is_changed.shape[axis] and np.ptp(indices) == len(indices) - 1:
            first, last = indices[0], indices[-1]
            places = f"{first}" if first == last else f"{first} to {last}"
            return f"all at {places} of {is_changed.shape[axis]} along axis {axis}"
    return ""


def _format_factor(factor: float) -> str:
    """Return a factor, a quotient with a whole number if it is one: 1/255."""
    whole = round(1 / factor) if factor else 0
    is_quotient = abs(whole) > 1 and abs(factor * whole - 1) < _EQUAL_FACTORS
    return f"1/{whole}" if is_quotient else f"{factor:.6g}"


def _format_numbers(numbers: Floats) -> str:
    return f"[{', '.join(f'{number:.4g}' for number in numbers)}]"


def _is_counting(numbers: AnyArray) -> bool:
    return numbers.ndim == 0 or bool((np.diff(numbers, axis=-1) == 1).all())


HYPOTHESES = (
    Hypothesis("batch", suggest_other_batch),
    Hypothesis("batch", suggest_scaled_batch),
    Hypothesis("batch", suggest_changed_batch),
)
