"""Normalizations over the last axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Interpretations

#: Epsilon of a norm that records none: the default of torch.nn.LayerNorm.
_DEFAULT_EPS = 1e-5
#: An immediate number below this is an epsilon; larger ones are shapes or axes.
_LARGEST_EPS = 0.5
#: Epsilon of torch.nn.functional.normalize.
_DEFAULT_NORMALIZE_EPS = 1e-12


def rms_norm(x: AnyArray, weight: AnyArray | float, eps: float) -> Floats:
    """Return x / sqrt(mean(x^2) + eps) * weight; Zhang and Sennrich, arXiv:1910.07467."""
    result: Floats = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight
    return result


def layer_norm(x: AnyArray, weight: AnyArray | float, bias: AnyArray | float, eps: float) -> Floats:
    """Return (x - mean) / sqrt(var + eps) * weight + bias, with the biased variance.

    Ba et al., arXiv:1607.06450.
    """
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = np.mean(centered * centered, axis=-1, keepdims=True)
    result: Floats = centered / np.sqrt(variance + eps) * weight + bias
    return result


def compute_norm(call: Call) -> Interpretations:
    """Compute a norm call: x, then weight and bias of the last axis, then eps.

    eps is given by position or by name; the default is 1e-5.
    """
    x, *extra_tensors = call.tensors
    vectors = [
        array
        for array in extra_tensors
        if array.shape == (x.shape[-1],) and array.dtype.kind == "f"
    ]
    eps_candidates = [number for number in call.numbers if 0 < number < _LARGEST_EPS]
    default_eps = eps_candidates[-1] if eps_candidates else _DEFAULT_EPS
    eps = call.get_number("eps", "epsilon", default=default_eps)
    weight = vectors[0] if vectors else 1.0
    if call.kind == "rms_norm":
        yield "", rms_norm(x, weight, eps)
    else:
        bias = vectors[1] if len(vectors) > 1 else 0.0
        yield "", layer_norm(x, weight, bias, eps)


def normalize_vectors(call: Call) -> Interpretations:
    """Compute x / max(||x||, eps) over the last axis."""
    x = call.tensors[0]
    eps = call.get_number("eps", default=_DEFAULT_NORMALIZE_EPS)
    yield "", x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), eps)


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {
    "rms_norm": compute_norm,
    "layer_norm": compute_norm,
    "normalize": normalize_vectors,
}
