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


def leaky_relu(x: AnyArray, slope: float) -> Floats:
    """Return x where it is positive, else slope x."""
    result: Floats = np.where(x > 0, x, slope * x)
    return result


def elu(x: AnyArray, alpha: float) -> Floats:
    """Return x where it is positive, else alpha (exp(x) - 1); Clevert et al., arXiv:1511.07289."""
    result: Floats = np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))
    return result


def celu(x: AnyArray, alpha: float) -> Floats:
    """Return x where it is positive, else alpha (exp(x / alpha) - 1); Barron, arXiv:1704.07483."""
    result: Floats = np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha))
    return result


def hardsigmoid(x: AnyArray) -> Floats:
    """Return min(max(x + 3, 0), 6) / 6."""
    result: Floats = np.clip(x + 3, 0, 6) / 6
    return result


#: alpha and scale of selu; Klambauer et al., arXiv:1706.02515.
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805

#: Activations of one number, by the name that reports use. Of two that give equal values, as relu
#: and relu6 below 6, the first one is named.
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
    "hardswish": lambda x: x * hardsigmoid(x),
    "leaky relu (0.01)": lambda x: leaky_relu(x, DEFAULT_SLOPE),
    "elu": lambda x: elu(x, 1.0),
    "selu": lambda x: _SELU_SCALE * elu(x, _SELU_ALPHA),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "hardsigmoid": hardsigmoid,
    "hardtanh": lambda x: np.clip(x, -1.0, 1.0),
    "logsigmoid": lambda x: -softplus(-x),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "identity": np.positive,
}

#: Begin of the name of an activation of several pieces -> where one of them ends. On numbers of one
#: piece it is another function: relu(x) = x, elu(x) = exp(x) - 1.
_KINKS: Mapping[str, tuple[float, ...]] = {
    "relu6": (0.0, 6.0), "relu": (0.0,), "squared relu": (0.0,), "leaky relu": (0.0,),
    "elu": (0.0,), "selu": (0.0,), "celu": (0.0,), "hardswish": (-3.0, 3.0),
    "hardsigmoid": (-3.0, 3.0), "hardtanh": (-1.0, 1.0),
}  # fmt: skip

#: Activations with a number: name with a place for the number -> (function, a number
#: from which a search for it starts).
NUMBERED_ACTIVATIONS: Mapping[str, tuple[Callable[[AnyArray, float], Floats], float]] = {
    "leaky relu ({:.4g})": (leaky_relu, 0.1),
    "elu (alpha {:.4g})": (elu, 0.7),
    "celu (alpha {:.4g})": (celu, 1.3),
    "x sigmoid({:.4g} x)": (lambda x, beta: x * sigmoid(beta * x), 1.3),
    "softplus (beta {:.4g})": (lambda x, beta: softplus(beta * x) / beta, 1.3),
}

#: Canonical kind -> activations that it may mean.
ACTIVATIONS_BY_KIND: Mapping[str, tuple[str, ...]] = {
    "silu": ("silu",),
    "gelu": ("gelu (erf)", "gelu (tanh)"),
    "fast_gelu": ("gelu (sigmoid)",),
    "relu": ("relu",),
    "sigmoid": ("sigmoid",),
    "tanh": ("tanh",),
    "mish": ("mish",),
    "hardswish": ("hardswish",),
    "selu": ("selu",),
    "relu6": ("relu6",),
    "hardsigmoid": ("hardsigmoid",),
    "logsigmoid": ("logsigmoid",),
    "softsign": ("softsign",),
}

_GATE_FUNCTIONS: Mapping[str, Callable[[AnyArray], Floats]] = {
    "swiglu": silu,
    "geglu": gelu,
    "glu": sigmoid,
}


def compute_activation(call: Call) -> Interpretations:
    """Compute an activation of one number; for gelu both common forms."""
    for name in ACTIVATIONS_BY_KIND[call.kind]:
        yield name, ACTIVATIONS[name](call.tensors[0])


def compute_numbered_activation(call: Call) -> Interpretations:
    """Compute leaky_relu, elu, celu, softplus or hardtanh with their numbers, erf or erfc."""
    x = call.tensors[0]
    first_number = call.numbers[0] if call.numbers else None
    if call.kind == "erf":
        yield "", erf(x)
    elif call.kind == "erfc":
        yield "", 1 - erf(x)
    elif call.kind == "hardtanh":
        low, high = call.numbers[:2] if len(call.numbers) > 1 else (-1.0, 1.0)
        low = call.get_number("min_val", "min", default=low)
        yield "", np.clip(x, low, call.get_number("max_val", "max", default=high))
    elif call.kind in _NUMBERED_KINDS:
        function, argument, default = _NUMBERED_KINDS[call.kind]
        number = default if first_number is None else first_number
        yield "", function(x, call.get_number(argument, default=number))


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


#: Canonical kind -> (function, name of its number, default).
_NUMBERED_KINDS: Mapping[str, tuple[Callable[[AnyArray, float], Floats], str, float]] = {
    "leaky_relu": (leaky_relu, "negative_slope", DEFAULT_SLOPE),
    "elu": (elu, "alpha", 1.0),
    "celu": (celu, "alpha", 1.0),
    "softplus": (lambda x, beta: softplus(beta * x) / beta, "beta", 1.0),
}

FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {
    **dict.fromkeys(ACTIVATIONS_BY_KIND, compute_activation),
    **dict.fromkeys((*_NUMBERED_KINDS, "hardtanh", "erf", "erfc"), compute_numbered_activation),
    **dict.fromkeys(_GATE_FUNCTIONS, compute_gated_activation),
}


def is_shown(name: str, x: AnyArray) -> bool:
    """Return whether numbers show that an activation was applied to them, and not a piece of it."""
    kinks = next((places for start, places in _KINKS.items() if name.startswith(start)), ())
    if not kinks:
        return True
    return bool(x.size) and any(float(x.min()) < place < float(x.max()) for place in kinks)
