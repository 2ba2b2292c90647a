"""Whole tensors in the shapes that the dump records: files of reshaped outputs hold others."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from operator import mul

import numpy as np

from .arrays import AnyArray
from .errors import DumpError
from .trace import Trace


def drop_unit_axes(shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the lengths of the axes of more than one element; () for an unknown shape.

    >>> drop_unit_axes((2, 1, 3))
    (2, 3)
    """
    return tuple(length for length in shape or () if length != 1)


def have_one_order(shape: tuple[int, ...], other_shape: tuple[int, ...]) -> bool:
    """Return whether axes of one shape are those of the other, joined or split.

    >>> have_one_order((2, 3, 4), (6, 4)), have_one_order((2, 3, 4), (2, 4, 3))
    (True, False)
    """
    lengths, other_lengths = drop_unit_axes(shape), drop_unit_axes(other_shape)
    ends, other_ends = set(accumulate(lengths, mul)), set(accumulate(other_lengths, mul))
    return prod(shape) == prod(other_shape) and (ends <= other_ends or other_ends <= ends)


def load_shaped_tensor(trace: Trace, tensor: int) -> AnyArray:
    """Return the whole tensor in its recorded shape.

    Raises DumpError if the file is unreadable, KeyError if only statistics were recorded.
    """
    array = trace.array(tensor)
    shape = trace.tensors["shape"].iat[tensor]
    if shape is not None and array.shape != shape and array.size == np.prod(shape, dtype=np.int64):
        return array.reshape(shape)
    return array


def load_readable_tensor(trace: Trace, tensor: int) -> AnyArray | None:
    """Return the whole tensor in its recorded shape; None if it has no file, or a damaged one."""
    try:
        return load_shaped_tensor(trace, tensor)
    except (DumpError, KeyError, OSError, ValueError):
        return None
