"""Operators that work element by element, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Interpretations

UNARY: Mapping[str, Callable[[AnyArray], Floats]] = {
    "neg": np.negative,
    "abs": np.abs,
    "square": np.square,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "identity": np.positive,
    "contiguous": np.positive,
    "cast": np.positive,
}

BINARY: Mapping[str, Callable[[AnyArray, AnyArray], Floats]] = {
    "sub": np.subtract,
    "div": np.divide,
    "pow": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "atan2": np.arctan2,
    "remainder": np.mod,
    "fmod": np.fmod,
    "logaddexp": np.logaddexp,
}


def apply_unary(call: Call) -> Interpretations:
    """Compute f(x); further inputs (memory formats, dtypes) are ignored."""
    if call.tensors:
        yield "", UNARY[call.kind](call.tensors[0])


def apply_binary(call: Call) -> Interpretations:
    """Compute f(a, b), then f(b, a), which is how reversed calls such as ``1 - x`` are recorded."""
    if len(call.inputs) >= 2:
        a, b = call.inputs[:2]
        yield "", BINARY[call.kind](a, b)
        yield "operands swapped", BINARY[call.kind](b, a)


def add_inputs(call: Call) -> Interpretations:
    """Sum all inputs; ``alpha`` scales the second one, as in PyTorch's add."""
    if not call.inputs:
        return
    first, *addends = call.inputs
    if "alpha" in call.keywords and addends:
        addends[0] = addends[0] * call.get_number("alpha", default=1.0)
    is_bias = len(addends) == 1 and first.ndim > 2 and addends[0].shape == first.shape[1:2]
    if is_bias and first.shape[-1] != first.shape[1]:  # of channels, as BiasAdd has it
        addends[0] = addends[0].reshape(-1, *[1] * (first.ndim - 2))
    yield "", reduce(np.add, addends, first).astype(np.float64)
    if is_bias and first.shape[-1] == first.shape[1]:
        bias = addends[0].reshape(-1, *[1] * (first.ndim - 2))
        yield "of channels", (first + bias).astype(np.float64)


def multiply_inputs(call: Call) -> Interpretations:
    """Multiply the first two inputs."""
    if len(call.inputs) >= 2:
        a, b = call.inputs[:2]
        yield "", (a * b).astype(np.float64)


def select_by_condition(call: Call) -> Interpretations:
    """Compute where(condition, a, b)."""
    if len(call.inputs) >= 3:
        condition, a, b = call.inputs[:3]
        yield "", np.where(condition.astype(bool), a, b).astype(np.float64)


def fill_masked(call: Call) -> Interpretations:
    """Compute masked_fill(x, mask, value)."""
    if len(call.inputs) >= 3:
        x, mask, value = call.inputs[:3]
        yield "", np.where(mask.astype(bool), value, x).astype(np.float64)


def clamp_input(call: Call) -> Interpretations:
    """Compute clamp(x, low, high), with bounds given by position or by name."""
    x = call.inputs[0]
    default_low = call.numbers[0] if call.numbers else -np.inf
    default_high = call.numbers[1] if len(call.numbers) > 1 else np.inf
    low = call.get_number("min", "clip_value_min", default=default_low)
    high = call.get_number("max", "clip_value_max", default=default_high)
    yield "", np.clip(x, low, high).astype(np.float64)


def compute_fused_arithmetic(call: Call) -> Interpretations:
    """Compute addcmul: x + value a b; addcdiv: x + value a / b; lerp: x + weight (a - x)."""
    if len(call.inputs) < 3:
        return
    x, a, b = call.inputs[:3]
    value = call.get_number("value", default=1.0)
    if call.kind == "addcmul":
        yield "", x + value * a * b
    elif call.kind == "addcdiv":
        yield "", x + value * a / b
    elif call.kind == "lerp":
        yield "", x + b * (a - x)


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {
    **dict.fromkeys(UNARY, apply_unary),
    **dict.fromkeys(BINARY, apply_binary),
    "add": add_inputs,
    "mul": multiply_inputs,
    "where": select_by_condition,
    "masked_fill": fill_masked,
    "clamp": clamp_input,
    **dict.fromkeys(("addcmul", "addcdiv", "lerp"), compute_fused_arithmetic),
}
