"""Reductions; the reduced axes follow from the recorded output shape, else from an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Interpretations, find_reduced_axes

_REDUCTIONS: Mapping[str, Callable[..., Any]] = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
    "norm": lambda x, axis, keepdims: np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims)),
    "logsumexp": lambda x, axis, keepdims: logsumexp(x, axis, keepdims),
    "var": lambda x, axis, keepdims: np.var(x, axis=axis, keepdims=keepdims, ddof=1),
    "std": lambda x, axis, keepdims: np.std(x, axis=axis, keepdims=keepdims, ddof=1),
}
_BIASED_REDUCTIONS: Mapping[str, Callable[..., Any]] = {"var": np.var, "std": np.std}
_CUMULATIVE: Mapping[str, Callable[..., Any]] = {"cumsum": np.cumsum, "cumprod": np.cumprod}


def logsumexp(x: AnyArray, axis: int | tuple[int, ...] | None, keepdims: bool = False) -> Floats:
    """Return log(sum(exp(x))), without overflow."""
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    result: Floats = total if keepdims else np.squeeze(total, axis=axis)
    return result


def compute_reduction(call: Call) -> Interpretations:
    """Compute a reduction in the recorded shape; for var and std also the biased form."""
    x = call.tensors[0]
    axes = _find_axes(call, x)
    if axes is None:
        return
    keepdims = call.output_shape is not None and len(call.output_shape) == x.ndim
    reduced = _REDUCTIONS[call.kind](x, axis=axes, keepdims=keepdims)
    yield "", np.asarray(reduced, dtype=np.float64)
    if call.kind in _BIASED_REDUCTIONS:
        biased = _BIASED_REDUCTIONS[call.kind](x, axis=axes, keepdims=keepdims)
        yield "biased", np.asarray(biased, dtype=np.float64)


def compute_cumulative(call: Call) -> Interpretations:
    """Compute cumsum or cumprod along the recorded axis, else along each axis, the last first."""
    x = call.tensors[0]
    recorded_axes = call.list_axis_numbers(x.ndim)
    for axis in recorded_axes[:1] or range(x.ndim - 1, -1, -1):
        yield f"axis {axis}", _CUMULATIVE[call.kind](x, axis=axis, dtype=np.float64)


def _find_axes(call: Call, x: AnyArray) -> tuple[int, ...] | None:
    if call.output_shape is not None:
        return find_reduced_axes(x.shape, call.output_shape)
    recorded_axes = call.list_axis_numbers(x.ndim)
    default = recorded_axes[0] if recorded_axes else x.ndim
    axis = int(call.get_number("dim", "axis", default=default))
    if axis == x.ndim:
        return tuple(range(x.ndim))
    return (axis % x.ndim,)


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {
    **dict.fromkeys(_REDUCTIONS, compute_reduction),
    **dict.fromkeys(_CUMULATIVE, compute_cumulative),
}
