"""Reductions; the reduced axes follow from the recorded output shape, else from an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Interpretations, list_reduced_axes

REDUCTIONS: Mapping[str, Callable[..., Any]] = {
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
_PAIRWISE: Mapping[str, Callable[..., Any]] = {"max": np.maximum, "min": np.minimum}
_CUMULATIVE: Mapping[str, Callable[..., Any]] = {"cumsum": np.cumsum, "cumprod": np.cumprod}


def logsumexp(x: AnyArray, axis: int | tuple[int, ...] | None, keepdims: bool = False) -> Floats:
    """Return log(sum(exp(x))), without overflow."""
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    result: Floats = total if keepdims else np.squeeze(total, axis=axis)
    return result


def compute_reduction(call: Call) -> Interpretations:
    """Compute a reduction in the recorded shape; for var and std also the biased form.

    If several axes give that shape, each is tried, a recorded one first. ``max`` and ``min`` of two
    tensors compare them element by element.
    """
    x = call.tensors[0]
    if call.kind in _PAIRWISE and len(call.tensors) == 2 and call.tensors[1].dtype == x.dtype:
        yield "of two tensors", _PAIRWISE[call.kind](x, call.tensors[1]).astype(np.float64)
    keepdims = call.output_shape is not None and len(call.output_shape) == x.ndim
    for axes in _list_axes(call, x):
        reduced = REDUCTIONS[call.kind](x, axis=axes, keepdims=keepdims)
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


def _list_axes(call: Call, x: AnyArray) -> list[tuple[int, ...]]:
    """Return the axes that may have been reduced, the likeliest first."""
    recorded_axes = call.list_axis_numbers(x.ndim)
    default = recorded_axes[0] if recorded_axes else x.ndim
    axis = int(call.get_number("dim", "axis", default=default))
    recorded = tuple(range(x.ndim)) if axis == x.ndim else (axis % x.ndim,)
    if call.output_shape is None:
        return [recorded]
    axes = list(list_reduced_axes(x.shape, call.output_shape))
    axes.sort(key=lambda candidate: candidate != recorded)
    return axes


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {
    **dict.fromkeys(REDUCTIONS, compute_reduction),
    **dict.fromkeys(_CUMULATIVE, compute_cumulative),
}
