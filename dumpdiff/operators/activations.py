"""Activations: functions of one number, and the gated ones made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Readings


def erf(x: AnyArray) -> Floats:
    """The error function."""
    from scipy.special import erf as exact  # a fifth of a second to import, and few dumps need it

    result: Floats = exact(x)
    return result


def sigmoid(x: AnyArray) -> Floats:
    """1 / (1 + exp(-x)), without overflow."""
    result: Floats = 0.5 * (1 + np.tanh(0.5 * x))
    return result


def silu(x: AnyArray) -> Floats:
    """x sigmoid(x); Elfwing et al., arXiv:1702.03118."""
    return x * sigmoid(x)


def gelu(x: AnyArray) -> Floats:
    """x Phi(x), with the error function; Hendrycks and Gimpel, arXiv:1606.08415."""
    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def gelu_tanh(x: AnyArray) -> Floats:
    """The approximation of gelu with tanh, from the same paper; up to 5e-4 from the exact form."""
    result: Floats = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return result


def gelu_sigmoid(x: AnyArray) -> Floats:
    """x sigmoid(1.702 x), the coarser approximation from the same paper ("fast" or "quick" gelu)."""
    return x * sigmoid(1.702 * x)


def relu(x: AnyArray) -> Floats:
    """max(x, 0)."""
    result: Floats = np.maximum(x, 0.0)
    return result


def softplus(x: AnyArray) -> Floats:
    """log(1 + exp(x))."""
    result: Floats = np.logaddexp(0.0, x)
    return result


#: Activations of one number, under the names that a report uses.
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
    "leaky relu (0.01)": lambda x: np.where(x > 0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "identity": np.positive,
}

#: Canonical kind -> activations it may mean.
_MEANT: Mapping[str, tuple[str, ...]] = {
    "silu": ("silu",), "gelu": ("gelu (erf)", "gelu (tanh)"), "fast_gelu": ("gelu (sigmoid)",), "relu": ("relu",),
    "sigmoid": ("sigmoid",), "tanh": ("tanh",), "softplus": ("softplus",), "mish": ("mish",),
    "hardswish": ("hardswish",), "elu": ("elu",),
}  # fmt: skip


def plain(call: Call) -> Readings:
    """An activation of one number; of gelu both common forms."""
    for name in _MEANT[call.kind]:
        yield name, ACTIVATIONS[name](call.tensors[0])


def simple(call: Call) -> Readings:
    """Piecewise linear activations with a bound or a slope."""
    x = call.tensors[0]
    numbers = call.numbers
    if call.kind == "relu6":
        yield "", np.clip(x, 0.0, 6.0)
    elif call.kind == "erf":
        yield "", erf(x)
    elif call.kind == "erfc":
        yield "", 1 - erf(x)
    elif call.kind == "logsigmoid":
        yield "", -softplus(-x)
    elif call.kind == "leaky_relu":
        slope = call.number("negative_slope", default=numbers[0] if numbers else 0.01)
        yield "", np.where(x > 0, x, slope * x)


def gated(call: Call) -> Readings:
    """f(gate) * up of the two halves of the last axis; swiglu, geglu (Shazeer, arXiv:2002.05202) and glu."""
    x = call.tensors[0]
    if x.shape[-1] % 2:
        return
    first, second = np.split(x, 2, axis=-1)
    gate = {"swiglu": silu, "geglu": gelu, "glu": sigmoid}[call.kind]
    if call.kind == "swiglu":
        yield "gate first", gate(first) * second
        yield "gate second", first * gate(second)
    else:
        yield "gate second", first * gate(second)
        yield "gate first", gate(first) * second


TABLE: Mapping[str, Callable[[Call], Readings]] = {
    **dict.fromkeys(_MEANT, plain),
    **dict.fromkeys(("relu6", "erf", "erfc", "logsigmoid", "leaky_relu"), simple),
    **dict.fromkeys(("swiglu", "geglu", "glu"), gated),
}
