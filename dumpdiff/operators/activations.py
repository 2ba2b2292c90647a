"""Activations of one number, and gated activations built from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Interpretations

#: Default slope of PyTorch's leaky_relu for negative inputs.
DEFAULT_SLOPE = 0.01


def erf(x: AnyArray) -> Floats:
    """Return the error function."""
    from scipy import special  # takes 0.2 s to import, and few dumps need it

    result: Floats = special.erf(x)
    return result


def sigmoid(x: AnyArray) -> Floats:
    """Return 1 / (1 + exp(-x)), without overflow."""
    result: Floats = 0.5 * (1 + np.tanh(0.5 * x))
    return result


def silu(x: AnyArray) -> Floats:
    """Return x sigmoid(x); Elfwing et al., arXiv:1702.03118."""
    return x * sigmoid(x)


def gelu(x: AnyArray) -> Floats:
    """Return x Phi(x), using the error function; Hendrycks and Gimpel, arXiv:1606.08415."""
    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def gelu_tanh(x: AnyArray) -> Floats:
    """Return the tanh approximation of gelu from the same paper; it differs by up to 5e-4."""
    result: Floats = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return result


def gelu_sigmoid(x: AnyArray) -> Floats:
    """Return x sigmoid(1.702 x), the coarser approximation of gelu ("fast" or "quick" gelu)."""
    return x * sigmoid(1.702 * x)


def relu(x: AnyArray) -> Floats:
    """Return max(x, 0)."""
    result: Floats = np.maximum(x, 0.0)
    return result


def softplus(x: AnyArray) -> Floats:
    """Return log(1 + exp(x))."""
    result: Floats = np.logaddexp(0.0, x)
    return result


#: Activations of one number, by the name that reports use.
ACTIVATIONS: Mapping[str, Callable[[AnyArray], Floats]] = {
    "silu": silu,
    "gelu (erf)": gelu,
    "gelu (tanh)": gelu_tanh,
    "gelu (sigmoid)": gelu_sigmoid,
    "relu": relu,
    "squared relu": lambda x: relu(x) ** 2,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "softplus": softplus,
    "mish": lambda x: x * np.tanh(softplus(x)),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "leaky relu (0.01)": lambda x: np.where(x > 0, x, DEFAULT_SLOPE * x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "identity": np.positive,
}

#: Canonical kind -> activations that it may mean.
_ACTIVATIONS_BY_KIND: Mapping[str, tuple[str, ...]] = {
    "silu": ("silu",),
    "gelu": ("gelu (erf)", "gelu (tanh)"),
    "fast_gelu": ("gelu (sigmoid)",),
    "relu": ("relu",),
    "sigmoid": ("sigmoid",),
    "tanh": ("tanh",),
    "softplus": ("softplus",),
    "mish": ("mish",),
    "hardswish": ("hardswish",),
    "elu": ("elu",),
}

_GATE_FUNCTIONS: Mapping[str, Callable[[AnyArray], Floats]] = {
    "swiglu": silu,
    "geglu": gelu,
    "glu": sigmoid,
}


def compute_activation(call: Call) -> Interpretations:
    """Compute an activation of one number; for gelu both common forms."""
    for name in _ACTIVATIONS_BY_KIND[call.kind]:
        yield name, ACTIVATIONS[name](call.tensors[0])


def compute_other_activation(call: Call) -> Interpretations:
    """Compute relu6, erf, erfc, logsigmoid or leaky_relu."""
    x = call.tensors[0]
    if call.kind == "relu6":
        yield "", np.clip(x, 0.0, 6.0)
    elif call.kind == "erf":
        yield "", erf(x)
    elif call.kind == "erfc":
        yield "", 1 - erf(x)
    elif call.kind == "logsigmoid":
        yield "", -softplus(-x)
    elif call.kind == "leaky_relu":
        default = call.numbers[0] if call.numbers else DEFAULT_SLOPE
        slope = call.get_number("negative_slope", default=default)
        yield "", np.where(x > 0, x, slope * x)


def compute_gated_activation(call: Call) -> Interpretations:
    """Compute f(gate) * up from the two halves of the last axis, in either order of the halves.

    swiglu is tried with the gate first, geglu and glu with the gate second. swiglu and geglu:
    Shazeer, arXiv:2002.05202.
    """
    x = call.tensors[0]
    if x.shape[-1] % 2:
        return
    first, second = np.split(x, 2, axis=-1)
    gate_function = _GATE_FUNCTIONS[call.kind]
    if call.kind == "swiglu":
        yield "gate first", gate_function(first) * second
        yield "gate second", first * gate_function(second)
    else:
        yield "gate second", first * gate_function(second)
        yield "gate first", gate_function(first) * second


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {
    **dict.fromkeys(_ACTIVATIONS_BY_KIND, compute_activation),
    **dict.fromkeys(("relu6", "erf", "erfc", "logsigmoid", "leaky_relu"), compute_other_activation),
    **dict.fromkeys(_GATE_FUNCTIONS, compute_gated_activation),
}
