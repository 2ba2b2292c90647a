"""Gradient operators of MindSpore's graphs, as functions of what they read.

The gradient that flows in is called ``gradient``. Its place among the inputs depends on the
operator (``SigmoidGrad(y, dy)``, ``ReluGrad(dy, y)``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ..model.arrays import AnyArray, Floats
from .activations import erf, sigmoid
from .call import Call, Interpretations, OutputSets
from .norms import differentiate_norm

#: Epsilons of norms that record none; 0 where the recorded deviation contains it.
_EPSILONS = (0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-3)
#: A length by which no vector is divided: the default epsilon of both frameworks.
_LEAST_LENGTH = 1e-12


def differentiate_gelu_tanh(x: AnyArray) -> Floats:
    """Return the derivative of the tanh approximation of gelu."""
    c = np.sqrt(2 / np.pi)
    t = np.tanh(c * (x + 0.044715 * x**3))
    result: Floats = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x)
    return result


def differentiate_gelu(x: AnyArray) -> Floats:
    """Return the derivative of gelu, Phi(x) + x phi(x)."""
    density = np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)
    result: Floats = 0.5 * (1 + erf(x / np.sqrt(2))) + x * density
    return result


def differentiate_silu(x: AnyArray) -> Floats:
    """Return the derivative of x sigmoid(x)."""
    s = sigmoid(x)
    result: Floats = s * (1 + x * (1 - s))
    return result


#: Kind -> derivative as a function of the operator's output y.
_OF_OUTPUT: Mapping[str, Callable[[AnyArray], AnyArray]] = {
    "grad:relu": lambda y: (y > 0).astype(np.float64),
    "grad:sigmoid": lambda y: y * (1 - y),
    "grad:tanh": lambda y: 1 - y * y,
    "grad:rsqrt": lambda y: -0.5 * y**3,
    "grad:sqrt": lambda y: 0.5 / y,
    "grad:reciprocal": lambda y: -y * y,
}
#: Kind -> possible derivatives as functions of the operator's input x.
_OF_INPUT: Mapping[str, tuple[Callable[[AnyArray], Floats], ...]] = {
    "grad:silu": (differentiate_silu,),
    "grad:gelu": (differentiate_gelu_tanh, differentiate_gelu),
}
#: Kinds whose first input is the gradient that flows in.
_GRADIENT_FIRST = frozenset({"grad:relu", "grad:silu", "grad:gelu"})


def apply_chain_rule(call: Call) -> Interpretations:
    """Compute the gradient of a function of one number: the incoming one times a derivative."""
    if len(call.inputs) < 2:
        return
    gradient, argument = call.inputs[:2]
    if call.kind not in _GRADIENT_FIRST:
        gradient, argument = argument, gradient
    if gradient.shape != argument.shape:
        return
    if call.kind in _OF_OUTPUT:
        yield "", np.asarray(gradient * _OF_OUTPUT[call.kind](argument), dtype=np.float64)
        return
    for number, differentiate in enumerate(_OF_INPUT[call.kind]):
        yield f"form {number}", gradient * differentiate(argument)


def compute_softmax_gradient(call: Call) -> Interpretations:
    """Compute the gradient of softmax y (dy - sum(dy y)) or log_softmax dy - exp(y) sum(dy)."""
    if len(call.tensors) < 2 or call.tensors[0].shape != call.tensors[1].shape:
        return
    for y, gradient in (call.tensors[:2], call.tensors[1::-1]):
        if call.kind == "grad:softmax":
            yield "", y * (gradient - np.sum(gradient * y, axis=-1, keepdims=True))
        else:
            yield "", gradient - np.exp(y) * np.sum(gradient, axis=-1, keepdims=True)


def compute_normalize_gradient(call: Call) -> Interpretations:
    """Compute the gradient of y = x / |x|: (dy - y sum(dy y)) / |x| along an axis."""
    if len(call.tensors) < 3 or len({tensor.shape for tensor in call.tensors[:3]}) > 1:
        return
    x, y, gradient = call.tensors[:3]
    for axis in range(-1, -x.ndim - 1, -1):
        length = np.sqrt(np.sum(x * x, axis=axis, keepdims=True))
        along = np.sum(gradient * y, axis=axis, keepdims=True)
        yield f"axis {axis % x.ndim}", (gradient - y * along) / np.maximum(length, _LEAST_LENGTH)


def compute_layer_norm_gradient(call: Call) -> OutputSets:
    """Compute the gradients of x, weight and bias from x, dy, deviation, mean and weight.

    The recorded deviation is the variance, with one of several epsilons, or 1 / std.
    """
    if len(call.tensors) < 5:
        return
    x, gradient, deviation, mean, weight = call.tensors[:5]
    if x.shape != gradient.shape or weight.shape != x.shape[-1:]:
        return
    shape = (*x.shape[:-1], 1)
    if deviation.size != np.prod(shape) or mean.size != np.prod(shape):
        return
    leading_axes = tuple(range(x.ndim - 1))
    for name, scale in _list_scales(deviation.reshape(shape)):
        normalized = (x - mean.reshape(shape)) * scale
        outputs = differentiate_norm(gradient * weight, normalized, scale, (-1,))
        yield (
            name,
            (
                outputs,
                np.sum(gradient * normalized, axis=leading_axes),
                np.sum(gradient, axis=leading_axes),
            ),
        )


def compute_batch_norm_gradient(call: Call) -> OutputSets:
    """Compute the gradients of x, weight and bias from dy, x, weight, mean and deviation."""
    if len(call.tensors) < 5:
        return
    gradient, x, weight, mean, deviation = call.tensors[:5]
    if x.ndim < 2 or x.shape != gradient.shape:
        return
    if any(vector.shape != (x.shape[1],) for vector in (weight, mean, deviation)):
        return
    axes = (0, *range(2, x.ndim))
    shape = (1, -1) + (1,) * (x.ndim - 2)
    recorded_epsilons = tuple(number for number in call.numbers if 0 < number < 0.5)
    for name, scale in _list_scales(deviation.reshape(shape), recorded_epsilons):
        normalized = (x - mean.reshape(shape)) * scale
        weight_gradient = np.sum(gradient * normalized, axis=axes)
        bias_gradient = np.sum(gradient, axis=axes)
        in_training = differentiate_norm(gradient * weight.reshape(shape), normalized, scale, axes)
        yield name, (in_training, weight_gradient, bias_gradient)
        in_inference = gradient * weight.reshape(shape) * scale
        yield f"{name}, inference", (in_inference, weight_gradient, bias_gradient)


def compute_rms_norm_gradient(call: Call) -> OutputSets:
    """Compute the gradients of x and weight from dy, x, 1 / rms and weight."""
    if len(call.tensors) < 4:
        return
    gradient, x, deviation, weight = call.tensors[:4]
    shape = (*x.shape[:-1], 1)
    if x.shape != gradient.shape or deviation.size != np.prod(shape):
        return
    if weight.shape != x.shape[-1:]:
        return
    scale = deviation.reshape(shape)
    normalized = x * scale
    weighted = gradient * weight
    mean_product = np.mean(weighted * normalized, axis=-1, keepdims=True)
    weight_gradient = np.sum(gradient * normalized, axis=tuple(range(x.ndim - 1)))
    yield "", (scale * (weighted - normalized * mean_product), weight_gradient)


def _list_scales(
    deviation: AnyArray, recorded_epsilons: tuple[float, ...] = ()
) -> Iterator[tuple[str, Floats]]:
    """Yield 1 / std, from a variance plus epsilon, or from 1 / std itself."""
    for epsilon in recorded_epsilons or _EPSILONS:
        yield f"variance + {epsilon:g}", 1 / np.sqrt(deviation + epsilon)
    yield "1 / std", deviation


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {
    **dict.fromkeys((*_OF_OUTPUT, *_OF_INPUT), apply_chain_rule),
    **dict.fromkeys(("grad:softmax", "grad:log_softmax"), compute_softmax_gradient),
    "grad:normalize": compute_normalize_gradient,
}

#: Kinds of which every output is computed.
SEVERAL_OUTPUTS: Mapping[str, Callable[[Call], OutputSets]] = {
    "grad:layer_norm": compute_layer_norm_gradient,
    "grad:batch_norm": compute_batch_norm_gradient,
    "grad:rms_norm": compute_rms_norm_gradient,
}
