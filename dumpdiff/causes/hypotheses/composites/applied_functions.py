"""One value in place of another that an activation, or another function, makes of it."""

from __future__ import annotations

import numpy as np

from ....model.arrays import AnyArray
from ....operators import compute_interpretations
from ....operators.activations import ACTIVATIONS, is_shown
from ....operators.softmax import softmax
from ...fault_case import compute_residual
from ...region import StepInput
from .activations import ACTIVATION_KINDS

#: Relative L2 within which a function, computed again, gives a recorded value.
_RECOMPUTED_DISTANCE = 1e-5
#: Fewest elements that show which function of another a value is.
_MIN_ELEMENTS = 16
_SOFTMAX = "softmax"
#: Functions that limit a value and change nothing else.
_CLAMP_KINDS = {"hardtanh", "clamp"}


def describe_function(
    step_input: StepInput, source: tuple[str, AnyArray]
) -> tuple[str, str, str] | None:
    """Return (cause, description, contrast) if one tensor is a function of the other; else None."""
    name, array = source
    kind = step_input.producer_kind
    if _is_computed_from(step_input, array):
        is_function = kind in ACTIVATION_KINDS or kind in _CLAMP_KINDS
        cause = _name_function(kind) if is_function else "missing-step"
        return cause, f"{name} without {step_input.name} ({kind})", ""
    function = _find_function(step_input.array, array)
    if function and kind:
        return _name_function(function), f"no {function} of {name}", "has it"
    function = _find_function(array, step_input.array)
    if function:
        return _name_function(function), f"{function} of {step_input.name}", "has none"
    return None


def _name_function(function: str) -> str:
    if function in _CLAMP_KINDS:
        return "clamp"
    return "missing-step" if function == _SOFTMAX else "activation-kind"


def _is_computed_from(step_input: StepInput, array: AnyArray) -> bool:
    """Return whether the op that computed an input computes it from an array alone."""
    kind, output = step_input.producer_kind, step_input.array
    if not kind or array.size != output.size:
        return False
    return any(
        compute_residual(recomputed, output) <= _RECOMPUTED_DISTANCE
        for _, recomputed in compute_interpretations(kind, [array], {}, output_shape=output.shape)
    )


def _find_function(output: AnyArray, array: AnyArray) -> str:
    """Return which function of an array another one is, also a written one; '' if none.

    An activation, or a softmax over the last axis.
    """
    if array.size != output.size or array.size < _MIN_ELEMENTS:
        return ""
    for name in (*ACTIVATIONS, _SOFTMAX):
        result = softmax(array) if name == _SOFTMAX else ACTIVATIONS[name](array)
        is_changed = name != "identity" and not np.array_equal(result, array)
        is_changed = is_changed and is_shown(name, array)
        if is_changed and (
            compute_residual(result.reshape(output.shape), output) <= _RECOMPUTED_DISTANCE
        ):
            return name
    return ""
