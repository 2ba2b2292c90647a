"""Normalisations over the last axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Readings


def rms_norm(x: AnyArray, weight: AnyArray | float, eps: float) -> Floats:
    """x / sqrt(mean(x^2) + eps) * weight; Zhang and Sennrich, arXiv:1910.07467."""
    result: Floats = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight
    return result


def layer_norm(x: AnyArray, weight: AnyArray | float, bias: AnyArray | float, eps: float) -> Floats:
    """(x - mean) / sqrt(var + eps) * weight + bias, with the biased variance; Ba et al., arXiv:1607.06450."""
    centred = x - x.mean(axis=-1, keepdims=True)
    result: Floats = (
        centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + eps) * weight + bias
    )
    return result


def recorded(call: Call) -> Readings:
    """A norm call: x, then weight and bias of the last axis, then eps by position or name (default 1e-5)."""
    x, *rest = call.tensors
    vectors = [
        array
        for array in rest
        if array.ndim == 1 and array.shape[0] == x.shape[-1] and array.dtype.kind == "f"
    ]
    small = [number for number in call.numbers if 0 < number < 0.5]
    eps = call.number("eps", "epsilon", default=small[-1] if small else 1e-5)
    if call.kind == "rms_norm":
        yield "", rms_norm(x, vectors[0] if vectors else 1.0, eps)
    else:
        yield (
            "",
            layer_norm(
                x, vectors[0] if vectors else 1.0, vectors[1] if len(vectors) > 1 else 0.0, eps
            ),
        )


def normalised(call: Call) -> Readings:
    """x / max(||x||, eps) over the last axis."""
    x = call.tensors[0]
    eps = call.number("eps", default=1e-12)
    yield "", x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), eps)


TABLE: Mapping[str, Callable[[Call], Readings]] = {
    "rms_norm": recorded,
    "layer_norm": recorded,
    "normalize": normalised,
}
