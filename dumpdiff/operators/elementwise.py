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
    "identity": lambda x: x.astype(np.float64),
    "contiguous": lambda x: x.astype(np.float64),
    "cast": lambda x: x.astype(np.float64),
}

#: Roundings to whole numbers, by the name that reports use.
ROUNDINGS: Mapping[str, Callable[[AnyArray], Floats]] = {
    "round": np.rint,
    "floor": np.floor,
    "trunc": np.trunc,
    "ceil": np.ceil,
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
    for x in (*call.tensors, *call.inputs)[:1]:
        yield "", UNARY[call.kind](x)


def apply_rounding(call: Call) -> Interpretations:
    """Round x to whole numbers; halves to even numbers, then away from zero."""
    for x in call.inputs[:1]:
        yield "", ROUNDINGS[call.kind](x)
        if call.kind == "round":
            yield "halves away from zero", np.copysign(np.floor(np.abs(x) + 0.5), x)


def apply_binary(call: Call) -> Interpretations:
    """Compute f(a, b), then f(b, a), which is how reversed calls such as ``1 - x`` are recorded."""
    if len(call.inputs) < 2:
        return
    a, b = call.inputs[:2]
    if call.kind == "sub" and "alpha" in call.keywords:
        b = b * call.get_number("alpha", default=1.0)
    yield "", BINARY[call.kind](a, b)
    if call.kind == "sub" and len(call.inputs) == 3 and not call.inputs[2].ndim:
        yield "alpha by position", a - call.inputs[2] * b
    yield "operands swapped", BINARY[call.kind](b, a)


def add_inputs(call: Call) -> Interpretations:
    """Sum all inputs; ``alpha`` scales the second one, as in PyTorch's add.

    A vector is also tried as the bias of the second axis, as BiasAdd adds it to images, and a
    number after two inputs as ``alpha``. Of a single input, the other one was not recorded.
    """
    if len(call.inputs) < 2:
        return
    first, *addends = call.inputs
    if "alpha" in call.keywords and addends:
        addends[0] = addends[0] * call.get_number("alpha", default=1.0)
    is_bias = False
    if len(call.tensors) == 2:
        x, vector = call.tensors
        is_bias = x.ndim > 2 and vector.shape == x.shape[1:2]
    if not is_bias:
        yield "", reduce(np.add, addends, first).astype(np.float64)
        if len(addends) == 2 and not addends[1].ndim:
            yield "alpha by position", (first + addends[0] * addends[1]).astype(np.float64)
        return
    if vector.shape == x.shape[-1:]:
        yield "", (x + vector).astype(np.float64)
    yield "bias of axis 1", (x + vector.reshape(-1, *(1,) * (x.ndim - 2))).astype(np.float64)


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
    **dict.fromkeys(ROUNDINGS, apply_rounding),
    "add": add_inputs,
    "mul": multiply_inputs,
    "where": select_by_condition,
    "masked_fill": fill_masked,
    "clamp": clamp_input,
    **dict.fromkeys(("addcmul", "addcdiv", "lerp"), compute_fused_arithmetic),
}
