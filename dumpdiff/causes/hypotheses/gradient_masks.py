"""Gradients that are zero in some rows, or where a value was clipped, or that are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ...model.arrays import AnyArray, Flags
from ...model.trace import BACKWARD
from ..fault_case import FaultCase, Operand, compute_residual
from ..hypothesis import Candidate, Hypothesis
from .gradients import list_sum_addends

#: Numbers of rows that are listed.
_MAX_LISTED_ROWS = 8
#: Fewest elements without a gradient that show where a value was clipped.
_MIN_CLIPPED = 3


def suggest_stopped_rows(case: FaultCase) -> Iterator[Candidate]:
    """Suggest no gradient in some places of one axis: a padding row, or steps that are cut off."""
    if case.phase != BACKWARD or case.faithful.ndim < 2:
        return
    for axis in range(case.faithful.ndim):
        faithful_rows = np.moveaxis(case.faithful, axis, 0).reshape(case.faithful.shape[axis], -1)
        faulty_rows = np.moveaxis(case.faulty, axis, 0).reshape(faithful_rows.shape)
        is_stopped = ~faulty_rows.any(axis=1) & faithful_rows.any(axis=1)
        n_stopped = int(is_stopped.sum())
        if not 0 < n_stopped < len(is_stopped):
            continue
        stopped_places = np.flatnonzero(is_stopped)
        predicted = case.faithful.copy()
        np.moveaxis(predicted, axis, 0)[stopped_places] = 0.0
        numbers = ", ".join(map(str, stopped_places[:_MAX_LISTED_ROWS].tolist()))
        if n_stopped > _MAX_LISTED_ROWS:
            numbers += ", ..."
        is_table = axis == 0 and case.faithful.ndim == 2
        places = "rows" if is_table else f"places of axis {axis}"
        yield Candidate(
            predicted,
            f"no gradient in {n_stopped} of {len(is_stopped)} {places}: {numbers}",
            "has a gradient there",
            parameters={"rows": float(n_stopped)},
            unchanged=case.faithful,
        )


def suggest_clipped_inputs(case: FaultCase) -> Iterator[Candidate]:
    """Suggest no gradient where a forward value was clipped; the faithful side passes it on."""
    if case.phase != BACKWARD or case.faithful.size < 2 * _MIN_CLIPPED:
        return
    is_stopped = (case.faulty == 0) & (case.faithful != 0)
    n_stopped = int(is_stopped.sum())
    if n_stopped < _MIN_CLIPPED or is_stopped.all():
        return
    forward_values = case.find_other_values(case.faithful.shape)
    clipped = _find_clipped_value((*case.list_shared_operands(), *forward_values), is_stopped)
    if clipped is not None:
        name, limits = clipped
        yield Candidate(
            np.where(is_stopped, 0.0, case.faithful),
            f"no gradient where {name} is clipped ({limits})",
            "passes the gradient straight through",
            parameters={"elements": float(n_stopped)},
            unchanged=case.faithful,
            cause="straight-through",
        )


def suggest_masked_addend(case: FaultCase) -> Iterator[Candidate]:
    """Suggest one addend of a gradient also where a forward value was clipped, or none of it.

    The two sums differ by the addend in some elements, and not at all in the others. If a clipping
    stops these, the faulty side passes the addend straight through. If an activation stops the
    others, as relu does, the addend is missing in the gradient of its result.
    """
    if case.phase != BACKWARD or case.faithful.size < 2 * _MIN_CLIPPED:
        return
    difference = case.faulty - case.faithful
    for addend in list_sum_addends(case):
        array = addend.array.reshape(difference.shape)
        is_passed = np.abs(difference) > np.abs(array) / 2
        is_other = (is_passed & (array != 0)).sum() < _MIN_CLIPPED or is_passed.all()
        sign = float(np.sign(np.sum(difference * array)))
        predicted = case.faithful + np.where(is_passed, sign * array, 0.0)
        if is_other or compute_residual(predicted, case.faulty) > case.limit:
            continue
        values = case.find_other_values(difference.shape)
        activation = _find_activation(values, is_passed, array != 0)
        clipped = _find_clipped_value(values, is_passed)
        if activation and sign < 0:
            yield Candidate(
                predicted,
                f"the gradient of {addend.name} missing in the gradient of {activation}",
                "adds it",
                unchanged=case.faithful,
                cause="gradient-stopped",
            )
            return
        if clipped is not None and not activation and sign > 0:
            name, limits = clipped
            yield Candidate(
                predicted,
                f"the gradient of {addend.name} also where {name} is clipped ({limits})",
                "has none there",
                parameters={"elements": float(is_passed.sum())},
                unchanged=case.faithful,
                cause="straight-through",
            )
            return


def _find_activation(operands: Iterable[Operand], is_passed: Flags, is_known: Flags) -> str:
    """Return the name of a value that is one number where nothing is passed; '' if none is.

    Where the gradient is zero, it is not known whether it is passed.
    """
    is_stopped = is_known & ~is_passed
    for operand in operands:
        if int(np.prod(operand.shape)) != is_passed.size or not operand.is_floating:
            continue
        array = operand.array.reshape(is_passed.shape)
        stopped = array[is_stopped]
        if stopped.size and np.ptp(stopped) == 0 and np.all(array[is_passed] != stopped[0]):
            return operand.name
    return ""


def _find_clipped_value(operands: Iterable[Operand], is_clipped: Flags) -> tuple[str, str] | None:
    """Return (name, limits) of the value that is clipped in some elements; None if none is."""
    for operand in operands:
        if int(np.prod(operand.shape)) != is_clipped.size or not operand.is_floating:
            continue
        limits = _find_limits(operand.array.reshape(is_clipped.shape), is_clipped)
        if limits:
            return operand.name, limits
    return None


def _find_limits(array: AnyArray, is_stopped: Flags) -> str:
    """Return beyond which numbers the stopped elements are; '' if others are there, too."""
    low, high = float(array[~is_stopped].min()), float(array[~is_stopped].max())
    stopped = array[is_stopped]
    if not np.all((stopped < low) | (stopped > high)):
        return ""
    limits = []
    if (stopped < low).any():
        limits.append(f"below {low:.4g}")
    if (stopped > high).any():
        limits.append(f"above {high:.4g}")
    return " and ".join(limits)


HYPOTHESES = (
    Hypothesis("gradient-stopped", suggest_stopped_rows),
    Hypothesis("straight-through", suggest_clipped_inputs),
    Hypothesis("gradient-stopped", suggest_masked_addend),
)
