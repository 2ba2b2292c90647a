"""Operators whose results are whole numbers or truth values, and assignments."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..model.arrays import AnyArray
from .call import Call, Interpretations

#: Of two inputs, element by element.
COMPARISONS: Mapping[str, Callable[[AnyArray, AnyArray], AnyArray]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
}
_LOGICAL: Mapping[str, Callable[[AnyArray, AnyArray], AnyArray]] = {
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}
_ROUNDING: Mapping[str, Callable[[AnyArray], AnyArray]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "sign": np.sign,
    "isfinite": np.isfinite,
    "isinf": np.isinf,
    "isnan": np.isnan,
}


def compare_inputs(call: Call) -> Interpretations:
    """Compute a comparison of two inputs, 1 where it holds."""
    if len(call.inputs) >= 2:
        a, b = call.inputs[:2]
        yield "", COMPARISONS[call.kind](a, b).astype(np.float64)


def join_conditions(call: Call) -> Interpretations:
    """Compute a logical function of two truth values."""
    if len(call.inputs) >= 2 and all(array.dtype == bool for array in call.inputs[:2]):
        a, b = call.inputs[:2]
        yield "", _LOGICAL[call.kind](a, b).astype(np.float64)


def negate_condition(call: Call) -> Interpretations:
    """Compute the opposite of a truth value."""
    if call.inputs and call.inputs[0].dtype == bool:
        yield "", np.logical_not(call.inputs[0]).astype(np.float64)


def round_input(call: Call) -> Interpretations:
    """Compute the whole number next to an input, or what kind of number it is."""
    if call.inputs:
        yield "", _ROUNDING[call.kind](call.inputs[0]).astype(np.float64)


def assign_value(call: Call) -> Interpretations:
    """Return the last input: what an assignment leaves in its first one."""
    if call.inputs:
        yield "", call.inputs[-1].astype(np.float64)


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {
    **dict.fromkeys(COMPARISONS, compare_inputs),
    **dict.fromkeys(_LOGICAL, join_conditions),
    **dict.fromkeys(_ROUNDING, round_input),
    "logical_not": negate_condition,
    "assign": assign_value,
}
