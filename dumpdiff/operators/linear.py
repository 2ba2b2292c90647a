"""Products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Readings


def linear(x: AnyArray, weight: AnyArray, bias: AnyArray | float = 0.0) -> Floats:
    """x W^T + b, with a weight of (outputs, inputs)."""
    result: Floats = np.matmul(x, np.swapaxes(weight, -1, -2)) + bias
    return result


def product(call: Call) -> Readings:
    """a b, and with either transposed (records leave that out), plus a bias; with a vector for b as it is.

    Which reading comes first: for two matrices with a common last axis x W^T, else a b.
    """
    if len(call.tensors) < 2:
        return
    a, b, *more = call.tensors
    bias: AnyArray | float = (
        more[0] if more and more[0].shape[-1:] == (call.shape or (0,))[-1:] else 0.0
    )
    if a.ndim < 2 or b.ndim < 2:
        yield "", np.matmul(a, b) + bias if a.shape[-1] == b.shape[0] else np.full((), np.nan)
        return
    turned_a, turned_b = np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2)
    choices = [("", a, b), ("b transposed", a, turned_b)]
    if b.ndim == 2 and a.ndim >= 2:
        choices.reverse()
    choices += [("a transposed", turned_a, b), ("both transposed", turned_a, turned_b)]
    for name, left, right in choices:
        if left.shape[-1] == right.shape[-2] and _fits(left, right, call.shape):
            yield name, np.matmul(left, right) + bias


def added_product(call: Call) -> Readings:
    """beta c + alpha a b."""
    if len(call.tensors) < 3:
        return
    c, a, b = call.tensors[:3]
    alpha, beta = call.number("alpha", default=1.0), call.number("beta", default=1.0)
    if a.shape[-1] == b.shape[-2 if b.ndim > 1 else 0]:
        yield "", beta * c + alpha * np.matmul(a, b)


def _fits(a: AnyArray, b: AnyArray, shape: tuple[int, ...] | None) -> bool:
    return shape is None or (a.shape[-2], b.shape[-1]) == shape[-2:] or len(shape) < 2


TABLE: Mapping[str, Callable[[Call], Readings]] = {"matmul": product, "addmm": added_product}
