"""One execution of an operator, as far as a dump records it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TypeAlias

import numpy as np

from ..model.arrays import AnyArray, Floats

#: Possible outputs of one call: (name of the interpretation, output). Records omit axes,
#: transpositions and variants, so one call can have several interpretations; likeliest first.
Interpretations: TypeAlias = Iterator[tuple[str, Floats]]
#: Outputs of one call in slot order, None for one that is not computed, with the name of the
#: interpretation.
OutputSets: TypeAlias = Iterator[tuple[str, tuple["Floats | None", ...]]]


@dataclass(frozen=True)
class Call:
    """A canonical kind, its inputs in slot order, and the output's shape if it was recorded.

    Floating inputs are float64 arrays; integers and masks keep their dtype; immediate numbers
    are arrays without axes.
    """

    kind: str
    inputs: tuple[AnyArray, ...]
    keywords: Mapping[str, AnyArray] = field(default_factory=dict)  #: dim, eps, ...
    output_shape: tuple[int, ...] | None = None

    @property
    def tensors(self) -> tuple[AnyArray, ...]:
        """The inputs that are not immediate numbers."""
        return tuple(array for array in self.inputs if array.ndim)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The immediate numbers among the inputs, in order."""
        return tuple(float(array) for array in self.inputs if not array.ndim)

    def get_number(self, *names: str, default: float) -> float:
        """Return the first keyword argument with one of these names, else ``default``."""
        for name in names:
            if name in self.keywords:
                return float(self.keywords[name].reshape(-1)[0])
        return default

    def list_axis_numbers(self, ndim: int) -> list[int]:
        """Return the immediate numbers that can be an axis of a tensor with ``ndim`` axes."""
        axes = range(-ndim, ndim)
        return [int(number) for number in self.numbers if number in axes]


def make_call(
    kind: str,
    inputs: Sequence[AnyArray | float],
    keywords: Mapping[str, AnyArray | float] | None = None,
    output_shape: tuple[int, ...] | None = None,
) -> Call:
    """Return a call with its floating inputs converted to float64."""
    wide_keywords = {}
    if keywords is not None:
        for name, value in keywords.items():
            wide_keywords[name] = widen_to_float64(value)
    wide_inputs = tuple(map(widen_to_float64, inputs))
    return Call(kind, wide_inputs, wide_keywords, output_shape)


def widen_to_float64(value: AnyArray | float) -> AnyArray:
    """Convert floating values to float64, which holds every narrower float exactly."""
    array = np.asarray(value)
    if array.dtype.kind in "iub":
        return array
    return array.astype(np.float64)


def find_reduced_axes(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the axes over which a reduction from ``before`` to ``after`` ran; None if none fit.

    The axes may be kept with length 1, or removed.

    >>> find_reduced_axes((2, 3, 4), (2, 3, 1)), find_reduced_axes((2, 3, 4), (2, 4))
    ((2,), (1,))
    >>> find_reduced_axes((2, 3), ())
    (0, 1)
    """
    return next(list_reduced_axes(before, after), None)


def list_reduced_axes(before: tuple[int, ...], after: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield all axes over which a reduction from ``before`` to ``after`` may have run.

    The last axes are the likelier ones, so they come first.

    >>> list(list_reduced_axes((3, 3), (3,)))
    [(1,), (0,)]
    """
    n_removed = len(before) - len(after)
    if n_removed < 0:
        return
    if n_removed == 0:
        kept_axes = _find_kept_axes(before, after)
        if kept_axes is not None:
            yield kept_axes
        return
    all_axes = range(len(before))
    for removed in sorted(combinations(all_axes, n_removed), reverse=True):
        remaining_axes = [axis for axis in all_axes if axis not in removed]
        remaining_shape = tuple(before[axis] for axis in remaining_axes)
        if remaining_shape == after:
            yield removed


def _find_kept_axes(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the axes that were reduced to length 1; None if another axis changed."""
    reduced_axes = []
    for axis, (length_before, length_after) in enumerate(zip(before, after, strict=True)):
        if length_before == length_after:
            continue
        if length_after != 1:
            return None
        reduced_axes.append(axis)
    return tuple(reduced_axes)
