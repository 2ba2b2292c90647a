"""Softmax and its logarithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Interpretations
from .reductions import logsumexp


def softmax(x: AnyArray, axis: int = -1) -> Floats:
    """Return exp(x) / sum(exp(x)) along an axis, without overflow; rows of -inf give zeros."""
    top = np.max(x, axis=axis, keepdims=True)
    exponentials = np.exp(x - np.where(np.isfinite(top), top, 0.0))
    total = exponentials.sum(axis=axis, keepdims=True)
    result: Floats = exponentials / np.where(total > 0, total, 1.0)
    return result


def log_softmax(x: AnyArray, axis: int = -1) -> Floats:
    """Return x - log(sum(exp(x))) along an axis."""
    return x - logsumexp(x, axis, keepdims=True)


def compute_softmax(call: Call) -> Interpretations:
    """Compute softmax or log_softmax along the recorded axis (default: the last), then others."""
    x = call.tensors[0]
    function = softmax if call.kind == "softmax" else log_softmax
    recorded_axes = call.list_axis_numbers(x.ndim)
    default = recorded_axes[0] if recorded_axes else -1
    first_axis = int(call.get_number("dim", "axis", default=default)) % x.ndim
    for axis in dict.fromkeys((first_axis, *range(x.ndim - 1, -1, -1))):
        yield f"axis {axis}", function(x, axis)


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {
    "softmax": compute_softmax,
    "log_softmax": compute_softmax,
}
