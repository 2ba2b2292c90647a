"""Derivatives of recorded steps: what flows back from the output of a step to one of its inputs.

Known forms (moved elements, matrix products, sums) are exact. Functions of single numbers and of
rows are differentiated by central differences in float64; any other step only if it is small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from ..model.arrays import AnyArray, Floats
from ..operators import FUNCTIONS_OF_NUMBERS
from ..operators.call import list_reduced_axes
from .region import Step

#: From the gradient of a step's output to the part of an input's gradient that flows through it.
Derivative: TypeAlias = Callable[[AnyArray], AnyArray]

#: Distance of the two points of a difference, relative to the numbers: the error of the step is its
#: square, that of rounding 2**-53 over it.
_STEP = 2.0**-17
#: Numbers below this share of the root mean square are moved as far as this share.
_LEAST_SHARE = 1e-3
#: Kinds that compute every row of the last axis, or of the axis in their interpretation, by itself.
_ROW_KINDS = frozenset({"softmax", "log_softmax", "layer_norm", "rms_norm", "normalize"})
#: Elements of the derivatives of all elements by all others that are computed, and runs of a step.
_MAX_PARTIALS, _MAX_RUNS = 1 << 21, 1024
#: Kinds of sums and means: all elements of a sum have one derivative.
_SUMMING_KINDS = ("sum", "mean")


def find_derivative(step: Step, position: int) -> Derivative | None:
    """Return the derivative of a step by one of its inputs; None if it cannot be computed."""
    if step.inputs[position].array.dtype.kind != "f" or step.output.dtype.kind != "f":
        return None
    for is_of_form, differentiate in _FORMS:
        if is_of_form(step, position):
            return differentiate(step, position)
    return _differentiate_elements(step, position)


def _return_to_places(step: Step, position: int) -> Derivative:
    """Return the derivative of moved elements: those of an input that the output holds, added."""
    places = step.places if step.places is not None else np.zeros(0, dtype=int)
    sizes = [item.array.size for item in step.inputs]
    begin, shape = sum(sizes[:position]), step.inputs[position].array.shape

    def derive(gradient: AnyArray) -> AnyArray:
        total = np.zeros(sum(sizes))
        np.add.at(total, places[places >= 0], gradient.reshape(-1)[places >= 0])
        return total[begin : begin + sizes[position]].reshape(shape)

    return derive


def _drop(step: Step, position: int) -> Derivative:
    """Return the derivative of dropout: its own factors."""
    shape = step.inputs[position].array.shape
    kept = np.ones(shape) if step.kept is None else step.kept.reshape(shape)
    return lambda gradient: gradient.reshape(shape) * kept


def _sum_copies(step: Step, position: int) -> Derivative:
    """Return the derivative of an input that is repeated along axes of one element."""
    shape = step.inputs[position].array.shape
    return lambda gradient: _sum_to_shape(gradient.reshape(step.output.shape), shape)


def _sum_to_shape(array: AnyArray, shape: tuple[int, ...]) -> AnyArray:
    """Return the sums over the axes along which a shape was repeated."""
    summed: AnyArray = array.sum(axis=tuple(range(array.ndim - len(shape))))
    axes = tuple(axis for axis, length in enumerate(shape) if length == 1 < summed.shape[axis])
    return summed.sum(axis=axes, keepdims=True).reshape(shape) if axes else summed.reshape(shape)


def _is_product(step: Step, position: int) -> bool:
    """Return whether an input is one of two matrices that are multiplied."""
    factors = _list_factors(step)
    is_matrix = [step.inputs[number].array.ndim > 1 for number in factors]
    return step.kind == "matmul" and position in factors and is_matrix == [True, True]


def _list_factors(step: Step) -> list[int]:
    return [number for number, item in enumerate(step.inputs) if item.array.ndim][:2]


def _differentiate_product(step: Step, position: int) -> Derivative:
    """Return the derivative of A B, with the transpositions of the interpretation.

    With C = A B: dA = dC B^T and dB = A^T dC.
    """
    tensors = _list_factors(step)
    a, b = (step.inputs[number].array for number in tensors)
    is_a_turned = step.interpretation in ("a transposed", "both transposed")
    is_b_turned = step.interpretation in ("b transposed", "both transposed")
    left = np.swapaxes(a, -1, -2) if is_a_turned else a
    right = np.swapaxes(b, -1, -2) if is_b_turned else b
    shape = (
        *np.broadcast_shapes(left.shape[:-2], right.shape[:-2]),
        left.shape[-2],
        right.shape[-1],
    )

    def derive_left(gradient: AnyArray) -> AnyArray:
        product = _sum_to_shape(gradient.reshape(shape) @ np.swapaxes(right, -1, -2), left.shape)
        return np.swapaxes(product, -1, -2) if is_a_turned else product

    def derive_right(gradient: AnyArray) -> AnyArray:
        product = _sum_to_shape(np.swapaxes(left, -1, -2) @ gradient.reshape(shape), right.shape)
        return np.swapaxes(product, -1, -2) if is_b_turned else product

    return derive_left if position == tensors[0] else derive_right


def _differentiate_sum(step: Step, position: int) -> Derivative | None:
    """Return the derivative of a sum or a mean over the axes that give the recorded output."""
    x = step.inputs[position].array
    for axes in list_reduced_axes(x.shape, step.output.shape):
        total = x.sum(axis=axes)
        count = x.size / max(1, total.size)
        result = total if step.kind == "sum" else total / count
        if np.allclose(result.reshape(-1), step.output.reshape(-1), rtol=1e-3, atol=1e-6):
            shape = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
            factor = 1.0 if step.kind == "sum" else 1 / count
            return lambda gradient, shape=shape, factor=factor: (  # type: ignore[misc]
                np.broadcast_to(gradient.reshape(shape) * factor, x.shape)
            )
    return None


def _is_of_numbers(step: Step, _position: int) -> bool:
    """Return whether each number of the output is a function of one number of each input."""
    if step.kind not in FUNCTIONS_OF_NUMBERS:
        return False
    shapes = [item.array.shape for item in step.inputs]
    try:
        return np.broadcast_shapes(*shapes) == step.output.shape
    except ValueError:
        return False


def _find_steps(x: AnyArray) -> Floats:
    """Return how far each number is moved."""
    rms = float(np.sqrt(np.mean(x * x))) or 1.0
    steps: Floats = _STEP * np.maximum(np.abs(x), _LEAST_SHARE * rms)
    return steps


def _differentiate_numbers(step: Step, position: int) -> Derivative | None:
    """Return the derivative of a function of single numbers, all moved at once."""
    x = step.inputs[position].array
    steps = _find_steps(x)
    quotient = _compute_difference(step, position, steps)
    if quotient is None:
        return None
    slopes = quotient / np.broadcast_to(2 * steps, step.output.shape)
    return lambda gradient: _sum_to_shape(gradient.reshape(slopes.shape) * slopes, x.shape)


def _compute_difference(step: Step, position: int, moves: AnyArray) -> AnyArray | None:
    """Return the output with one input moved up, less that with it moved down."""
    outputs = []
    for sign in (1, -1):
        arrays = step.list_arrays()
        arrays[position] = arrays[position] + sign * moves
        outputs.append(step.compute(arrays))
    above, below = outputs
    return None if above is None or below is None else above - below


def _is_of_rows(step: Step, position: int) -> bool:
    """Return whether each row of the output is a function of the same row of the first input."""
    is_first = position == 0 and step.inputs[0].array.shape == step.output.shape
    return is_first and step.kind in _ROW_KINDS


def _differentiate_rows(step: Step, _position: int) -> Derivative | None:
    """Return the derivative of a function of rows: one element of every row is moved at a time."""
    x = step.inputs[0].array
    _, _, number = step.interpretation.partition("axis ")
    axis = int(number) if number.isdecimal() else x.ndim - 1
    length = x.shape[axis]
    if x.size * length > _MAX_PARTIALS or length > _MAX_RUNS:
        return None
    size = float(np.sqrt(np.mean(x * x))) or 1.0
    partials = np.empty((length, *x.shape))
    for place in range(length):
        moves = np.zeros_like(x)
        np.moveaxis(moves, axis, 0)[place] = _STEP * size
        difference = _compute_difference(step, 0, moves)
        if difference is None:
            return None
        partials[place] = difference / (2 * _STEP * size)

    def derive(gradient: AnyArray) -> AnyArray:
        products = (partials * gradient.reshape(x.shape)).sum(axis=axis + 1)
        return np.moveaxis(products, 0, axis)

    return derive


def _differentiate_elements(step: Step, position: int) -> Derivative | None:
    """Return the derivative of any small step: one element is moved at a time."""
    x = step.inputs[position].array
    if x.size > _MAX_RUNS or x.size * step.output.size > _MAX_PARTIALS:
        return None
    size = float(np.sqrt(np.mean(x * x))) or 1.0
    partials = np.empty((x.size, step.output.size))
    moves = np.zeros(x.shape)
    for place in range(x.size):
        moves.flat[place] = _STEP * size
        difference = _compute_difference(step, position, moves)
        if difference is None:
            return None
        partials[place] = difference.reshape(-1) / (2 * _STEP * size)
        moves.flat[place] = 0.0
    return lambda gradient: (partials @ gradient.reshape(-1)).reshape(x.shape)


#: (whether an input of a step is differentiated in this way, how), in the order of trial.
_FORMS: Sequence[tuple[Callable[[Step, int], bool], Callable[[Step, int], Derivative | None]]] = (
    (lambda step, _: step.places is not None, _return_to_places),
    (lambda step, _: step.kept is not None, _drop),
    (lambda step, _: step.is_broadcast, _sum_copies),
    (_is_product, _differentiate_product),
    (lambda step, position: step.kind in _SUMMING_KINDS and position == 0, _differentiate_sum),
    (_is_of_numbers, _differentiate_numbers),
    (_is_of_rows, _differentiate_rows),
)
