"""Triangles of pairs that count in a loss: with the diagonal, without it, or the other one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ....model.arrays import AnyArray, Floats
from ...fault_case import FaultCase
from ...region import Region, Step
from .change import Change
from .numbers_in_steps import list_numbers

#: Rows of the smallest matrix of pairs whose triangle is recognized.
_MIN_ROWS = 3
#: Largest difference of a number from a whole one.
_MAX_ROUNDING = 1e-5


def list_other_triangles(_case: FaultCase, region: Region) -> Iterator[Change]:
    """Count the pairs of another triangle, and divide by their number where a mean does.

    The other side may select the pairs by their numbers, which no op records.
    """
    for number, step in enumerate(region.steps):
        for position, item in enumerate(step.inputs):
            triangle = _find_triangle(item.array) if step.kind == "mul" else None
            if triangle is None:
                continue
            count = float(item.array.sum())
            for other in (triangle.shift(1), triangle.shift(-1)):
                share = float(other.build().sum()) / count
                steps = {
                    number: _replace_input(step, position, other.build()),
                    **_divide_by_share(region, number, count, share),
                }
                yield Change(
                    number,
                    step.output,
                    "mask-shifted",
                    f"the pairs {other} counted in {step.name}",
                    f"counts those {triangle}",
                    predicted=region.replace_steps(steps).unchanged,
                )


@dataclass(frozen=True)
class _Triangle:
    """A square matrix of ones above (or below) a diagonal, this one included, and zeros."""

    n_rows: int
    diagonal: int  #: places above the main one
    is_lower: bool

    def __str__(self) -> str:
        """Return which pairs it holds."""
        if self.is_lower:
            return f"up to diagonal {self.diagonal}"
        return f"from diagonal {self.diagonal} on"

    def shift(self, n_places: int) -> _Triangle:
        """Return the triangle with another diagonal."""
        return replace(self, diagonal=self.diagonal + n_places)

    def build(self) -> Floats:
        """Return the matrix."""
        cut = np.tril if self.is_lower else np.triu
        return cut(np.ones((self.n_rows, self.n_rows)), self.diagonal)


def _find_triangle(array: AnyArray) -> _Triangle | None:
    """Return which triangle a matrix of zeros and ones is; None if it is none."""
    n_rows = array.shape[-1] if array.ndim else 0
    if n_rows < _MIN_ROWS or array.size != n_rows * n_rows or array.dtype.kind != "f":
        return None
    matrix = array.reshape(n_rows, n_rows)
    n_in_row, n_in_column = (int(np.count_nonzero(line)) for line in (matrix[0], matrix[:, 0]))
    upper = n_rows - n_in_row if n_in_row < n_rows else 1 - n_in_column
    lower = n_in_row - 1 if n_in_row else n_in_column - n_rows
    triangles = [
        _Triangle(n_rows, diagonal, is_lower)
        for diagonal, is_lower in ((upper, False), (lower, True))
        if abs(diagonal) < n_rows - 1
    ]
    return next((each for each in triangles if np.array_equal(matrix, each.build())), None)


def _divide_by_share(region: Region, start: int, count: float, share: float) -> dict[int, Step]:
    """Return the steps after one that divide by a multiple of a count, with the other count."""
    steps = {}
    for number in region.followers[start]:
        step = region.steps[number]
        for position, divisor in list_numbers(step) if step.kind == "div" else ():
            n_times = divisor / count
            if n_times >= 1 and abs(n_times - round(n_times)) <= _MAX_ROUNDING * n_times:
                steps[number] = _replace_input(step, position, np.asarray(divisor * share))
    return steps


def _replace_input(step: Step, position: int, array: AnyArray) -> Step:
    inputs = list(step.inputs)
    inputs[position] = replace(inputs[position], array=array.reshape(inputs[position].array.shape))
    return replace(step, inputs=tuple(inputs))
