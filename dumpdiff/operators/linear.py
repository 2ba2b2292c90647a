"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..model.arrays import AnyArray, Floats
from .call import Call, Interpretations


def linear(x: AnyArray, weight: AnyArray, bias: AnyArray | float = 0.0) -> Floats:
    """Return x W^T + b, with a weight of shape (outputs, inputs)."""
    result: Floats = np.matmul(x, np.swapaxes(weight, -1, -2)) + bias
    return result


def multiply_matrices(call: Call) -> Interpretations:
    """Compute a b plus a bias, also with a or b transposed, because records omit that.

    A vector b is used as it is. For two matrices with a common last axis x W^T comes first, else
    a b.
    """
    if len(call.tensors) < 2:
        return
    a, b, *extra_tensors = call.tensors
    bias: AnyArray | float = 0.0
    output_length = (call.output_shape or (0,))[-1:]
    if extra_tensors and extra_tensors[0].shape[-1:] == output_length:
        bias = extra_tensors[0]
    if a.ndim < 2 or b.ndim < 2:
        if a.shape[-1] == b.shape[0]:
            yield "", np.matmul(a, b) + bias
        else:
            yield "", np.full((), np.nan)
        return
    a_transposed, b_transposed = np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2)
    choices = [("", a, b), ("b transposed", a, b_transposed)]
    if b.ndim == 2 and a.ndim >= 2:
        choices.reverse()
    choices.append(("a transposed", a_transposed, b))
    choices.append(("both transposed", a_transposed, b_transposed))
    for name, left_matrix, right_matrix in choices:
        has_common_axis = left_matrix.shape[-1] == right_matrix.shape[-2]
        if has_common_axis and _has_product_shape(left_matrix, right_matrix, call.output_shape):
            yield name, np.matmul(left_matrix, right_matrix) + bias


def add_matrix_product(call: Call) -> Interpretations:
    """Compute beta c + alpha a b."""
    if len(call.tensors) < 3:
        return
    c, a, b = call.tensors[:3]
    alpha = call.get_number("alpha", default=1.0)
    beta = call.get_number("beta", default=1.0)
    inner_axis = -2 if b.ndim > 1 else 0
    if a.shape[-1] == b.shape[inner_axis]:
        yield "", beta * c + alpha * np.matmul(a, b)


def _has_product_shape(a: AnyArray, b: AnyArray, output_shape: tuple[int, ...] | None) -> bool:
    if output_shape is None or len(output_shape) < 2:
        return True
    return (a.shape[-2], b.shape[-1]) == output_shape[-2:]


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {
    "matmul": multiply_matrices,
    "addmm": add_matrix_product,
}
