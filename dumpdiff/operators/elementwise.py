"""Operators that work element by element, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Readings

UNARY: Mapping[str, Callable[[AnyArray], Floats]] = {
    "neg": np.negative, "abs": np.abs, "square": np.square, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "identity": np.positive,
    "contiguous": np.positive, "cast": np.positive,
}  # fmt: skip

BINARY: Mapping[str, Callable[[AnyArray, AnyArray], Floats]] = {
    "sub": np.subtract, "div": np.divide, "pow": np.power, "maximum": np.maximum, "minimum": np.minimum,
    "atan2": np.arctan2, "remainder": np.mod, "fmod": np.fmod, "logaddexp": np.logaddexp,
}  # fmt: skip


def unary(call: Call) -> Readings:
    """f(x); further inputs (memory formats, dtypes) do not count."""
    if call.tensors:
        yield "", UNARY[call.kind](call.tensors[0])


def binary(call: Call) -> Readings:
    """f(a, b), and with the operands swapped, as reversed calls (``1 - x``) record them."""
    if len(call.inputs) >= 2:
        a, b = call.inputs[:2]
        yield "", BINARY[call.kind](a, b)
        yield "operands swapped", BINARY[call.kind](b, a)


def added(call: Call) -> Readings:
    """The sum of all inputs; ``alpha`` scales the second, as PyTorch's add has it."""
    if not call.inputs:
        return
    first, *rest = call.inputs
    if "alpha" in call.named and rest:
        rest[0] = rest[0] * call.number("alpha", default=1.0)
    yield "", reduce(np.add, rest, first).astype(np.float64)


def multiplied(call: Call) -> Readings:
    """The product of both inputs."""
    if len(call.inputs) >= 2:
        yield "", (call.inputs[0] * call.inputs[1]).astype(np.float64)


def chosen(call: Call) -> Readings:
    """where(condition, a, b)."""
    if len(call.inputs) >= 3:
        yield (
            "",
            np.where(call.inputs[0].astype(bool), call.inputs[1], call.inputs[2]).astype(
                np.float64
            ),
        )


def filled(call: Call) -> Readings:
    """masked_fill(x, mask, value)."""
    if len(call.inputs) >= 3:
        yield (
            "",
            np.where(call.inputs[1].astype(bool), call.inputs[2], call.inputs[0]).astype(
                np.float64
            ),
        )


def clamped(call: Call) -> Readings:
    """clamp(x, low, high), the bounds by position or by name."""
    x, bounds = call.inputs[0], [float(number) for number in call.numbers]
    low = call.number("min", "clip_value_min", default=bounds[0] if bounds else -np.inf)
    high = call.number("max", "clip_value_max", default=bounds[1] if len(bounds) > 1 else np.inf)
    yield "", np.clip(x, low, high).astype(np.float64)


def fused(call: Call) -> Readings:
    """addcmul: x + value * a * b; addcdiv: x + value * a / b; lerp: x + weight * (a - x)."""
    if len(call.inputs) < 3:
        return
    x, a, b = call.inputs[:3]
    value = call.number("value", default=1.0)
    made = {
        "addcmul": lambda: x + value * a * b,
        "addcdiv": lambda: x + value * a / b,
        "lerp": lambda: x + b * (a - x),
    }
    yield "", made[call.kind]()


TABLE: Mapping[str, Callable[[Call], Readings]] = {
    **dict.fromkeys(UNARY, unary), **dict.fromkeys(BINARY, binary), "add": added, "mul": multiplied, "where": chosen,
    "masked_fill": filled, "clamp": clamped, "addcmul": fused, "addcdiv": fused, "lerp": fused,
}  # fmt: skip
