"""Softmax and its logarithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Readings
from .reductions import logsumexp


def softmax(x: AnyArray, axis: int = -1) -> Floats:
    """exp(x) / sum(exp(x)) along an axis, without overflow; a row of minus infinity gives zeros."""
    top = np.max(x, axis=axis, keepdims=True)
    raised = np.exp(x - np.where(np.isfinite(top), top, 0.0))
    total = raised.sum(axis=axis, keepdims=True)
    result: Floats = raised / np.where(total > 0, total, 1.0)
    return result


def log_softmax(x: AnyArray, axis: int = -1) -> Floats:
    """x - log(sum(exp(x))) along an axis."""
    return x - logsumexp(x, axis, keepdims=True)


def recorded(call: Call) -> Readings:
    """Along the recorded axis; without one along the last, then each other."""
    x = call.tensors[0]
    made = softmax if call.kind == "softmax" else log_softmax
    numbers = [
        number for number in call.numbers if number == int(number) and -x.ndim <= number < x.ndim
    ]
    axis = int(call.number("dim", "axis", default=numbers[0] if numbers else -1)) % x.ndim
    for each in dict.fromkeys((axis, *range(x.ndim - 1, -1, -1))):
        yield f"axis {each}", made(x, each)


TABLE: Mapping[str, Callable[[Call], Readings]] = {"softmax": recorded, "log_softmax": recorded}
