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
#: Fewest elements at a limit: one is the largest in any case.
_MIN_AT_LIMIT = 2
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
    limits = _find_limits(step_input.array, array)
    if limits:
        return "clamp", f"{name} without a clamp", f"clamps it to {limits}"
    limits = _find_limits(array, step_input.array)
    if limits:
        return "clamp", f"{step_input.name} clamped to {limits}", "does not clamp it"
    return None


def _name_function(function: str) -> str:
    if function in _CLAMP_KINDS:
        return "clamp"
    return "missing-step" if function == _SOFTMAX else "activation-kind"


def _find_limits(output: AnyArray, array: AnyArray) -> str:
    """Return the limits to which an array is clamped, '' if the output is not the clamped array.

    A limit that no element reaches is none, and a constant is no clamped array, also with zeros.
    """
    if array.size != output.size or array.size < _MIN_ELEMENTS:
        return ""
    flat, other = output.reshape(-1), array.reshape(-1)
    low, high = float(flat.min()), float(flat.max())
    if low == high:
        return ""
    is_equal = compute_residual(np.clip(other, low, high), flat) <= _RECOMPUTED_DISTANCE
    cuts_low, cuts_high = bool(other.min() < low), bool(other.max() > high)
    counts = [np.sum(flat == limit) for limit, cuts in ((low, cuts_low), (high, cuts_high)) if cuts]
    if not is_equal or not counts or min(counts) < _MIN_AT_LIMIT:
        return ""
    if not np.any((flat > low) & (flat < high)):
        return ""
    if cuts_low and cuts_high:
        return f"[{low:.4g}, {high:.4g}]"
    return f"at least {low:.4g}" if cuts_low else f"at most {high:.4g}"


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
