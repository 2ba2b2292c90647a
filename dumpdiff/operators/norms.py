"""Normalizations over the last axis, over groups of channels, and over the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Interpretations, OutputSets

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
    normalized, _ = _normalize(x, eps)
    result: Floats = normalized * weight + bias
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
    eps = _read_eps(call)
    weight = vectors[0] if vectors else 1.0
    if call.kind == "rms_norm":
        yield "", rms_norm(x, weight, eps)
    else:
        bias = vectors[1] if len(vectors) > 1 else 0.0
        yield "", layer_norm(x, weight, bias, eps)


def compute_grouped_norm(call: Call) -> Interpretations:
    """Compute group norm with every number of groups, instance norm or batch norm of a batch.

    The inputs are x, then weight and bias of the channels; eps by position or by name.
    """
    x, vectors = call.tensors[0], _list_channel_vectors(call)
    weight = vectors[0] if vectors else 1.0
    bias = vectors[1] if len(vectors) > 1 else 0.0
    for name, shape in _iterate_groupings(call):
        normalized, _ = _normalize(x.reshape(shape), _read_eps(call))
        yield name, normalized.reshape(x.shape) * weight + bias


def compute_norm_gradients(call: Call, gradient: AnyArray) -> Interpretations:
    """Compute the gradient of x of a layer norm or of a grouped norm from that of its output."""
    x = call.tensors[0]
    if call.kind == "layer_norm":
        vectors = [array for array in call.tensors[1:] if array.shape == x.shape[-1:]]
        groupings = iter([("", (-1, 1, x.shape[-1]))])
    else:
        vectors = _list_channel_vectors(call)
        groupings = _iterate_groupings(call)
    weighted = gradient.reshape(x.shape) * (vectors[0] if vectors else 1.0)
    for name, shape in groupings:
        normalized, scale = _normalize(x.reshape(shape), _read_eps(call))
        result = differentiate_norm(weighted.reshape(shape), normalized, scale, (-1,))
        yield name, result.reshape(x.shape)


def differentiate_norm(
    weighted: AnyArray, normalized: AnyArray, scale: AnyArray, axes: tuple[int, ...]
) -> Floats:
    """Return the gradient of x for y = weight normalized, normalized = (x - mean) scale.

    ``weighted`` is that of y times the weight; mean and scale are those over ``axes``.
    """
    mean_gradient = np.mean(weighted, axis=axes, keepdims=True)
    mean_product = np.mean(weighted * normalized, axis=axes, keepdims=True)
    result: Floats = scale * (weighted - mean_gradient - normalized * mean_product)
    return result


def _list_channel_vectors(call: Call) -> list[AnyArray]:
    """Return the weight and the bias of the channels of x, shaped to be broadcast to it."""
    x, *extra_tensors = call.tensors
    if x.ndim < 2:
        return []
    trailing_ones = [1] * (x.ndim - 2)
    return [
        array.reshape(-1, *trailing_ones) for array in extra_tensors if array.shape == (x.shape[1],)
    ]


def _iterate_groupings(call: Call) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yield (name, shape of x in (samples, groups, elements)) with every number of groups."""
    x = call.tensors[0]
    if x.ndim < (2 if call.kind == "group_norm" else 3):
        return
    group_counts = [n for n in range(1, x.shape[1] + 1) if x.shape[1] % n == 0]
    recorded_counts = [int(n) for n in call.numbers if n in group_counts]
    if call.kind == "instance_norm":
        recorded_counts = [x.shape[1]]
    for n_groups in dict.fromkeys((*recorded_counts, *group_counts)):
        yield f"{n_groups} groups", (x.shape[0], n_groups, -1)


def _normalize(grouped: AnyArray, eps: float) -> tuple[Floats, Floats]:
    """Return what is normalized over the last axis, and 1 / sqrt(var + eps)."""
    centered = grouped - grouped.mean(axis=-1, keepdims=True)
    scale = 1 / np.sqrt(np.mean(centered * centered, axis=-1, keepdims=True) + eps)
    return centered * scale, scale


def compute_layer_norm_outputs(call: Call) -> OutputSets:
    """Compute layer_norm, and the mean and the deviation that MindSpore returns with it.

    The deviation is the variance or 1 / std, depending on the device.
    """
    (_, output), *_ = compute_norm(call)
    x = call.tensors[0]
    mean = x.mean(axis=-1, keepdims=True)
    variance = np.mean((x - mean) ** 2, axis=-1, keepdims=True)
    eps = _read_eps(call)
    yield "variance", (output, mean, variance)
    yield "1 / std", (output, mean, 1 / np.sqrt(variance + eps))


def compute_batch_norm_outputs(call: Call) -> OutputSets:
    """Compute batch_norm over all axes but the second, with the statistics of the batch or given.

    The outputs of MindSpore are y, two that only some devices write, and mean and deviation of the
    batch.
    """
    x, *vectors = call.tensors
    if x.ndim < 2 or any(vector.shape != (x.shape[1],) for vector in vectors):
        return
    axes = (0, *range(2, x.ndim))
    shape = (1, -1) + (1,) * (x.ndim - 2)
    eps = _read_eps(call)
    mean, variance = x.mean(axis=axes), x.var(axis=axes)
    # MindSpore: weight, bias, mean, variance; PyTorch: mean, variance, weight, bias
    for weight, bias in _pair_up(vectors):
        output = _scale_channels(x, mean, variance, weight, bias, eps, shape)
        yield "training", (output, None, None, mean, variance)
        yield "training, 1 / std", (output, None, None, mean, 1 / np.sqrt(variance + eps))
    if len(vectors) == 4:
        for (weight, bias), (running_mean, running_variance) in (
            (vectors[:2], vectors[2:]),
            (vectors[2:], vectors[:2]),
        ):
            output = _scale_channels(x, running_mean, running_variance, weight, bias, eps, shape)
            yield "inference", (output,)


def compute_batch_norm(call: Call) -> Interpretations:
    """Compute the first output of batch_norm, with the statistics of the batch or given ones.

    Names tell which of the vectors are weight and bias: one call can be read in both ways.
    """
    n_readings = {"training": 0, "inference": 0}
    for name, outputs in compute_batch_norm_outputs(call):
        if name not in n_readings or outputs[0] is None:
            continue
        n_readings[name] += 1
        yield name if n_readings[name] == 1 else f"{name}, statistics first", outputs[0]


def _pair_up(vectors: Sequence[AnyArray]) -> list[tuple[AnyArray, AnyArray]]:
    """Return consecutive vectors as pairs."""
    return list(zip(vectors[::2], vectors[1::2], strict=False))


def _scale_channels(
    x: AnyArray,
    mean: AnyArray,
    variance: AnyArray,
    weight: AnyArray,
    bias: AnyArray,
    eps: float,
    shape: tuple[int, ...],
) -> Floats:
    scale = (weight / np.sqrt(variance + eps)).reshape(shape)
    result: Floats = (x - mean.reshape(shape)) * scale + bias.reshape(shape)
    return result


def _read_eps(call: Call) -> float:
    """Return the epsilon of a norm, given by position or by name; the default is 1e-5."""
    eps_candidates = [number for number in call.numbers if 0 < number < _LARGEST_EPS]
    default_eps = min(eps_candidates, default=_DEFAULT_EPS)  # a momentum is larger
    return call.get_number("eps", "epsilon", default=default_eps)


def normalize(x: AnyArray, axis: int, eps: float = _DEFAULT_NORMALIZE_EPS) -> Floats:
    """Return x / max(||x||, eps), with the norm over one axis."""
    normalized: Floats = x / np.maximum(np.linalg.norm(x, axis=axis, keepdims=True), eps)
    return normalized


def normalize_vectors(call: Call) -> Interpretations:
    """Compute x / max(||x||, eps) over the last axis, then over each of the others."""
    x = call.tensors[0]
    eps = call.get_number("eps", default=_DEFAULT_NORMALIZE_EPS)
    for axis in range(-1, -x.ndim - 1, -1):
        yield f"axis {axis}", normalize(x, axis, eps)


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {
    "rms_norm": compute_norm,
    "layer_norm": compute_norm,
    "normalize": normalize_vectors,
    "group_norm": compute_grouped_norm,
    "instance_norm": compute_grouped_norm,
    "batch_norm": compute_batch_norm,
}
#: Kinds whose gradient of x follows from that of their output and from what they read.
DIFFERENTIABLE_KINDS = frozenset({"layer_norm", "group_norm", "instance_norm"})
