"""One execution of an operator, as far as a dump records it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TypeAlias

import numpy as np

from ..model.arrays import AnyArray, Floats

#: What an operator may have made of its inputs: (which reading of the record, the output). Records leave out axes,
#: transpositions and variants, so one call can have several readings; the likeliest comes first.
Readings: TypeAlias = Iterator[tuple[str, Floats]]


@dataclass(frozen=True)
class Call:
    """A canonical kind, its inputs in slot order, and the shape of the output where that was recorded.

    Floating inputs are float64 arrays, integers and masks keep their dtype; immediate numbers are arrays of no axes.
    """

    kind: str
    inputs: tuple[AnyArray, ...]
    named: Mapping[str, AnyArray] = field(default_factory=dict)  #: keyword arguments: dim, eps, ...
    shape: tuple[int, ...] | None = None

    @property
    def tensors(self) -> tuple[AnyArray, ...]:
        """The inputs that are no immediate numbers."""
        return tuple(array for array in self.inputs if array.ndim)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The immediate numbers among the inputs, in order."""
        return tuple(float(array) for array in self.inputs if not array.ndim)

    def number(self, *names: str, default: float) -> float:
        """A keyword argument under any of its spellings."""
        return next(
            (float(self.named[name].reshape(-1)[0]) for name in names if name in self.named),
            default,
        )


def call_of(
    kind: str,
    inputs: Sequence[AnyArray | float],
    named: Mapping[str, AnyArray | float] | None = None,
    shape: tuple[int, ...] | None = None,
) -> Call:
    """A call with its floating inputs raised to float64."""
    raised = {name: widened(value) for name, value in (named or {}).items()}
    return Call(kind, tuple(widened(value) for value in inputs), raised, shape)


def widened(value: AnyArray | float) -> AnyArray:
    """float64 of what floats, in which every narrower float is exact; all else as it is."""
    array = np.asarray(value)
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


def axes_between(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axes a reduction of ``before`` to ``after`` ran over, kept as length 1 or dropped; None if none fit.

    >>> axes_between((2, 3, 4), (2, 3, 1)), axes_between((2, 3, 4), (2, 4)), axes_between((2, 3), ())
    ((2,), (1,), (0, 1))
    """
    if len(before) == len(after):
        changed = tuple(
            axis for axis, (a, b) in enumerate(zip(before, after, strict=True)) if a != b
        )
        return changed if all(after[axis] == 1 for axis in changed) else None
    count = len(before) - len(after)
    if count < 0:
        return None
    for axes in sorted(
        combinations(range(len(before)), count), reverse=True
    ):  # the last axes are the likelier
        if tuple(length for axis, length in enumerate(before) if axis not in axes) == after:
            return axes
    return None
