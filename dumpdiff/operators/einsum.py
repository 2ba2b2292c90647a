"""Sums of products over named axes, whose equation is not recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod

import numpy as np

from .call import Call, Interpretations

#: Equations that are tried for one call, and operands and axes at most.
_MAX_EQUATIONS, _MAX_OPERANDS, _MAX_AXES = 64, 3, 5
#: Choices of axes from which on only operands in the output's order are tried: many axes of one
#: length can be read in too many ways.
_MAX_CHOICES = 4096
_OUTPUT_LABELS, _SUMMED_LABELS = "abcdefgh", "rstuvwxyz"
_SUMMED = -1


def multiply_and_sum(call: Call) -> Interpretations:
    """Compute the sums of products that give the output's shape.

    An axis of an operand is one of the output, or is summed together with an axis of the same
    length of each other operand that has one left. Those come first whose operands have their axes
    in the output's order; others are transposed, as in ``bihd,bjhd->bhij``.
    """
    operands, shape = call.tensors, call.output_shape
    if shape is None or not 1 < len(operands) <= _MAX_OPERANDS or len(shape) > _MAX_AXES:
        return
    if any(operand.ndim > _MAX_AXES for operand in operands):
        return
    n_equations = 0
    choices = [list(_list_places(operand.shape, shape)) for operand in operands]
    if prod(map(len, choices)) > _MAX_CHOICES:
        choices = [[places for places in choice if _is_in_order(places)] for choice in choices]
    for places in sorted(product(*choices), key=_count_transposed):
        equation = _make_equation([operand.shape for operand in operands], places, len(shape))
        if not equation:
            continue
        n_equations += 1
        if n_equations > _MAX_EQUATIONS:
            return
        yield equation, np.einsum(equation, *operands, optimize=True)


def _list_places(
    shape: tuple[int, ...], output_shape: tuple[int, ...], used_axes: tuple[int, ...] = ()
) -> Iterator[tuple[int, ...]]:
    """Yield the output's axis of each axis of an operand; -1 for one that is summed."""
    if not shape:
        yield ()
        return
    for axis, length in enumerate(output_shape):
        if length == shape[0] and axis not in used_axes:
            for rest in _list_places(shape[1:], output_shape, (*used_axes, axis)):
                yield (axis, *rest)
    for rest in _list_places(shape[1:], output_shape, used_axes):
        yield (_SUMMED, *rest)


def _is_in_order(places: Sequence[int]) -> bool:
    """Return whether the axes of an operand have the order of the output's axes."""
    axes = [axis for axis in places if axis != _SUMMED]
    return axes == sorted(axes)


def _count_transposed(places: Sequence[Sequence[int]]) -> int:
    """Return the number of operands whose axes have another order than the output's."""
    return sum(not _is_in_order(axes) for axes in places)


def _make_equation(
    shapes: Sequence[tuple[int, ...]], places: Sequence[tuple[int, ...]], n_axes: int
) -> str:
    """Return the equation; '' if an axis of the output has no operand, or one is summed alone."""
    if {axis for axes in places for axis in axes} - {_SUMMED} != set(range(n_axes)):
        return ""
    summed_lengths: list[int] = []
    counts: list[int] = []
    terms = []
    for shape, axes in zip(shapes, places, strict=True):
        term, used_labels = "", set()
        for length, axis in zip(shape, axes, strict=True):
            if axis != _SUMMED:
                term += _OUTPUT_LABELS[axis]
                continue
            free_labels = [
                label
                for label, summed_length in enumerate(summed_lengths)
                if summed_length == length and label not in used_labels
            ]
            label = free_labels[0] if free_labels else len(summed_lengths)
            if not free_labels:
                summed_lengths.append(length)
                counts.append(0)
            counts[label] += 1
            used_labels.add(label)
            term += _SUMMED_LABELS[label]
        terms.append(term)
    if any(count < 2 for count in counts):
        return ""
    return f"{','.join(terms)}->{_OUTPUT_LABELS[:n_axes]}"


FUNCTIONS: Mapping[str, Callable[[Call], Interpretations]] = {"einsum": multiply_and_sum}
