"""Linear layers: a bias missing or added twice, a weight used transposed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np

from ...model.arrays import AnyArray, Floats
from ...operators.linear import linear
from ..fault_case import ZERO, FaultCase, Operand, compute_residual
from ..hypothesis import Candidate, Hypothesis

#: Multiplications beyond which a product is not tried.
_MAX_PRODUCT_COST = 2e9
#: Axes of (batch, heads, tokens, size) and (batch, heads, size, tokens) in the order (batch,
#: tokens, heads, size).
_HEAD_AXES = ((0, 2, 1, 3), (0, 3, 1, 2))


def suggest_bias(case: FaultCase) -> Iterator[Candidate]:
    """Suggest faulty = faithful - b or faithful + b for a bias b.

    Not if it is the faithful side that was computed without b.
    """
    if not case.is_forward_value or case.faithful.ndim < 1:
        return
    for operand in case.find_vector_operands():
        bias = operand.array
        if case.faithful.ndim == 4:
            bias = bias.reshape(-1, 1, 1)
        if not np.any(bias) or "norm" in operand.parameter:
            continue
        for sign, cause, description in (
            (-1, "bias-missing", "without its bias"),
            (1, "bias-doubled", "its bias added twice"),
        ):
            predicted = case.faithful + sign * bias
            if compute_residual(predicted, case.faulty) > case.limit or _has_no_bias(case):
                continue
            name = f" ({operand.parameter})" if operand.parameter else ""
            unchanged = _add_bias_once(case, bias)
            if unchanged is None and sign > 0:
                continue  # the other side's bias may be missing, which is likelier
            yield Candidate(
                predicted,
                f"{description}{name}",
                unchanged=unchanged,
                cause=cause,
            )


def _has_no_bias(case: FaultCase) -> bool:
    """Return whether the faithful side's value is a product without a bias."""
    products = _iterate_products(case, case.faithful.shape)
    return any(map(case.matches_faithful, products))


def _add_bias_once(case: FaultCase, bias: AnyArray) -> AnyArray | None:
    """Return the faithful side's value recomputed with one bias; None if that is impossible."""
    inputs = list(case.find_same_size_arrays())
    for y in inputs:
        if case.matches_faithful(y + bias):
            return y + bias
    for matrix_product in _iterate_products(case, case.faithful.shape):
        for addend in (ZERO, *inputs):
            output: AnyArray = matrix_product + bias + addend
            if case.matches_faithful(output):
                return output
    return None


def _iterate_products(case: FaultCase, shape: tuple[int, ...]) -> Iterator[Floats]:
    """Yield x W^T, in a shape, of the operands that fit; never of the channels of images."""
    size = int(np.prod(shape))
    for weight in case.find_matrix_operands():
        for x in case.operands:
            if x is weight or not _has_product_size(x, weight, size):
                continue
            if float(size) * weight.shape[1] <= _MAX_PRODUCT_COST:
                rows = x.array.reshape(-1, x.shape[-1])
                yield linear(rows, weight.array).reshape(shape)


def _has_product_size(x: Operand, weight: Operand, size: int) -> bool:
    if len(x.shape) < 2 or x.shape[-1] != weight.shape[-1]:
        return False
    if not x.is_floating:
        return False
    return int(np.prod(x.shape[:-1])) * weight.shape[0] == size


def suggest_bias_of_input(case: FaultCase) -> Iterator[Candidate]:
    """Suggest a changed bias of an input of the last op, such as the queries before their scores.

    It is subtracted from the input, or added once more.
    """
    if not case.is_forward_value or case.call is None:
        return
    inputs = case.call.inputs
    for operand in case.operands:
        if len(operand.shape) != 1 or not operand.parameter.endswith("bias"):
            continue
        for position, value in enumerate(inputs):
            for rows, restore_axes in _split_into_rows(value, operand.array.size):
                has_bias = _has_one_bias(case, rows, operand.array)
                if has_bias is False:
                    continue
                for sign, cause, word in (
                    (-1, "bias-missing", "without"),
                    (1, "bias-doubled", "twice"),
                ):
                    new_inputs = list(inputs)
                    new_inputs[position] = restore_axes(rows + sign * operand.array)
                    predicted = case.repeat_call(new_inputs)
                    if predicted is not None:
                        yield Candidate(
                            predicted,
                            f"{word} the bias {operand.parameter}",
                            unchanged=case.faithful if has_bias else None,
                            cause=cause,
                        )


def _split_into_rows(
    value: AnyArray, width: int
) -> Iterator[tuple[AnyArray, Callable[[AnyArray], AnyArray]]]:
    """Yield (rows of shape (tokens, width), function that restores the axes of the input).

    The input has that shape, or is split into heads: (batch, heads, tokens, size) or (batch, heads,
    size, tokens).
    """
    if value.shape[-1:] == (width,):
        axes = tuple(range(value.ndim))
        yield value.reshape(-1, width), partial(_restore_axes, shape=value.shape, axes=axes)
    if value.ndim != 4:
        return
    for axes in _HEAD_AXES:
        tokens = value.transpose(axes)
        if tokens.shape[2] * tokens.shape[3] == width:
            yield tokens.reshape(-1, width), partial(_restore_axes, shape=tokens.shape, axes=axes)


def _restore_axes(rows: AnyArray, shape: tuple[int, ...], axes: tuple[int, ...]) -> AnyArray:
    restored: AnyArray = rows.reshape(shape).transpose(np.argsort(axes))
    return restored


def _has_one_bias(case: FaultCase, rows: AnyArray, bias: AnyArray) -> bool | None:
    """Return whether the faithful side's own product and one bias give ``rows``.

    None if no product of it was recorded.
    """
    has_no_bias = False
    for matrix_product in _iterate_products(case, rows.shape):
        if compute_residual(matrix_product + bias, rows) <= case.limit:
            return True
        has_no_bias = has_no_bias or compute_residual(matrix_product, rows) <= case.limit
    return False if has_no_bias else None


def suggest_transposed_weight(case: FaultCase) -> Iterator[Candidate]:
    """Suggest faulty = x W if faithful = x W^T, for a square weight."""
    if not case.is_forward_value or case.faithful.ndim < 2:
        return
    for weight in case.find_matrix_operands():
        size = weight.shape[0]
        if weight.shape[1] != size or not weight.parameter:
            continue
        for x in case.find_same_size_operands():
            if x.shape[-1:] != (size,):
                continue
            rows = x.array.reshape(-1, size)
            vectors = [operand.array for operand in case.find_vector_operands()]
            biases = [ZERO, *(vector for vector in vectors if vector.shape == (size,))]
            for matrix, bias in product((weight.array, weight.array.T), biases):
                unchanged = linear(rows, matrix, bias).reshape(case.faithful.shape)
                if case.matches_faithful(unchanged):
                    predicted = linear(rows, matrix.T, bias).reshape(case.faithful.shape)
                    description = f"{weight.parameter} transposed"
                    yield Candidate(predicted, description, unchanged=unchanged)


def suggest_other_weight(case: FaultCase) -> Iterator[Candidate]:
    """Suggest faulty = x V^T if faithful = x W^T, for a parameter V that both sides hold."""
    if not case.is_forward_value or case.faithful.ndim < 2:
        return
    shape, size = case.faithful.shape, case.faithful.size
    other_weights = [operand for operand in case.list_shared_operands() if operand.parameter]
    for weight in case.find_matrix_operands():
        if not weight.parameter or float(size) * weight.shape[1] > _MAX_PRODUCT_COST:
            continue
        for x in case.operands:
            if x is weight or not _has_product_size(x, weight, size):
                continue
            rows = x.array.reshape(-1, x.shape[-1])
            unchanged = linear(rows, weight.array).reshape(shape)
            if not case.matches_faithful(unchanged):
                continue
            for other in other_weights:
                if other.shape != weight.shape or other.parameter == weight.parameter:
                    continue
                yield Candidate(
                    linear(rows, other.array).reshape(shape),
                    f"{other.parameter} in its place",
                    f"multiplies by {weight.parameter}",
                    unchanged=unchanged,
                )
            return


HYPOTHESES = (
    Hypothesis("bias-missing", suggest_bias),
    Hypothesis("bias-missing", suggest_bias_of_input),
    Hypothesis("weight-transposed", suggest_transposed_weight),
    Hypothesis("weight-swapped", suggest_other_weight),
)
