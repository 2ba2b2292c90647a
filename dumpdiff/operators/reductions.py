"""Reductions; which axes they ran over is read off the recorded shape of the output, else off an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Readings, axes_between

_REDUCE: Mapping[str, Callable[..., Any]] = {
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


def logsumexp(x: AnyArray, axis: int | tuple[int, ...] | None, keepdims: bool = False) -> Floats:
    """log(sum(exp(x))), without overflow."""
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    result: Floats = total if keepdims else np.squeeze(total, axis=axis)
    return result


def reduced(call: Call) -> Readings:
    """A reduction in the recorded shape; of variances also the biased form."""
    x = call.tensors[0]
    axes = _axes(call, x)
    if axes is None:
        return
    keep = call.shape is not None and len(call.shape) == x.ndim
    made = np.asarray(_REDUCE[call.kind](x, axis=axes, keepdims=keep), dtype=np.float64)
    yield "", made
    if call.kind in ("var", "std"):
        biased = (np.var if call.kind == "var" else np.std)(x, axis=axes, keepdims=keep)
        yield "biased", np.asarray(biased, dtype=np.float64)


def accumulated(call: Call) -> Readings:
    """cumsum and cumprod; the axis as recorded, else each, the last first."""
    x = call.tensors[0]
    numbers = [
        int(number)
        for number in call.numbers
        if number == int(number) and -x.ndim <= number < x.ndim
    ]
    for axis in numbers[:1] or range(x.ndim - 1, -1, -1):
        yield (
            f"axis {axis}",
            (np.cumsum if call.kind == "cumsum" else np.cumprod)(x, axis=axis, dtype=np.float64),
        )


def _axes(call: Call, x: AnyArray) -> tuple[int, ...] | None:
    if call.shape is not None:
        return axes_between(x.shape, call.shape)
    given = [
        int(number)
        for number in call.numbers
        if number == int(number) and -x.ndim <= number < x.ndim
    ]
    dim = int(call.number("dim", "axis", default=given[0] if given else x.ndim))
    return tuple(range(x.ndim)) if dim == x.ndim else (dim % x.ndim,)


TABLE: Mapping[str, Callable[[Call], Readings]] = {
    **dict.fromkeys(_REDUCE, reduced),
    **dict.fromkeys(("cumsum", "cumprod"), accumulated),
}
