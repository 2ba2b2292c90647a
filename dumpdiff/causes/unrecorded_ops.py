"""Ops that no recorder shows, found by the numbers that they read and wrote.

Recorders of APIs miss functions that are imported by name, some methods of tensors, and views. What
such an op made is a value without a producer. The values that were there shortly before it show
what it is: an activation, a clamp, a padding, a join.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from ..graph.joined_blocks import list_block_starts
from ..model.arrays import AnyArray, Ints
from ..operators import compute_relative_distance
from ..operators.activations import ACTIVATIONS, ACTIVATIONS_BY_KIND
from .element_places import find_padding, find_places

#: Elements of a padded tensor, in elements of what was padded, and elements that show an op.
_MAX_PADDED_SHARE, _MIN_ELEMENTS = 4, 8
#: Fewest axes of a tensor that is joined of others.
_MIN_JOINED_AXES = 2
#: Axes of a tensor whose orders are tried.
_MAX_MOVED_AXES = 4
#: Elements that rule out most activations.
_SAMPLE = 64


@dataclass(frozen=True)
class UnrecordedSource:
    """A value that was there before; its array is read when it may be an input."""

    value: int  #: class
    size: int
    load: Callable[[], AnyArray | None]


@dataclass(frozen=True, eq=False)
class UnrecordedOp:
    """What made a value, of which sources."""

    kind: str
    inputs: tuple[tuple[int, AnyArray], ...]  #: (class, array as the op read it)
    limits: tuple[float, ...] = ()  #: of a clamp
    #: where the elements of the value are among those of the inputs, and of ``other_values``
    places: Ints | None = None
    other_values: AnyArray | None = None  #: the value itself, where a part is of no known source


def find_unrecorded_op(
    sources: Sequence[UnrecordedSource], output: AnyArray, max_distance: float
) -> UnrecordedOp | None:
    """Return the op that made ``output`` of one or several sources; None if no op is found.

    ``max_distance``: relative L2 within which an activation gives the output.
    """
    if output.dtype.kind != "f" or output.size < _MIN_ELEMENTS:
        return None
    for source in sources:
        op = None
        if source.size == output.size:
            op = _find_function(source, output, max_distance)
        elif source.size < output.size <= _MAX_PADDED_SHARE * source.size:
            op = _find_padding(source, output)
        if op is not None:
            return op
    return _find_join(sources, output)


def _find_padding(source: UnrecordedSource, output: AnyArray) -> UnrecordedOp | None:
    array = _load_floats(source)
    places = None if array is None else find_padding(array, output)
    if array is None or places is None:
        return None
    return UnrecordedOp("pad", ((source.value, array),), places=places)


def _find_function(
    source: UnrecordedSource, output: AnyArray, max_distance: float
) -> UnrecordedOp | None:
    """Return the activation of a source that an output is, or the clamp to its own limits."""
    array = _load_floats(source)
    limits = float(output.min()), float(output.max())
    for x in () if array is None else _list_views(array, output.shape):
        if np.array_equal(x, output):
            continue
        kind = _name_activation(x, output, max_distance)
        if kind:
            return UnrecordedOp(kind, ((source.value, x),))
        if np.array_equal(np.clip(x, *limits), output):
            return UnrecordedOp("clamp", ((source.value, x),), limits)
    return None


def _load_floats(source: UnrecordedSource) -> AnyArray | None:
    array = source.load()
    return None if array is None or array.dtype.kind != "f" else array


def _list_views(array: AnyArray, shape: tuple[int, ...]) -> Iterator[AnyArray]:
    """Yield an array of as many elements in a shape: in memory order, and with its axes moved."""
    yield array.reshape(shape)
    if array.ndim == len(shape) <= _MAX_MOVED_AXES:
        for axes in permutations(range(array.ndim)):
            view = array.transpose(axes)
            if view.shape == shape and list(axes) != sorted(axes):
                yield view


def _name_activation(x: AnyArray, output: AnyArray, max_distance: float) -> str:
    """Return the kind of the activation of which a value is the result; '' if it is none."""
    rows = slice(None, None, max(1, x.size // _SAMPLE))
    sample, output_sample = x.reshape(-1)[rows], output.reshape(-1)[rows]
    for kind, names in ACTIVATIONS_BY_KIND.items():
        for function in (ACTIVATIONS[name] for name in names):
            is_close = compute_relative_distance(function(sample), output_sample) <= max_distance
            if is_close and compute_relative_distance(function(x), output) <= max_distance:
                return kind
    return ""


def _find_join(sources: Sequence[UnrecordedSource], output: AnyArray) -> UnrecordedOp | None:
    """Return the op that joined sources; what is none of them is kept."""
    if output.ndim < _MIN_JOINED_AXES:
        return None
    inputs: list[tuple[int, AnyArray]] = []
    places = np.full(output.size, -1)
    n_elements = 0
    for source in sources:
        is_part = _MIN_ELEMENTS <= source.size < output.size
        array = _load_floats(source) if is_part else None
        own_places = None if array is None else _find_part(output, array)
        if array is None or own_places is None or places[own_places].max() >= 0:
            continue
        if not len(own_places):
            return None  # it is repeated
        places[own_places] = n_elements + np.arange(array.size)
        inputs.append((source.value, array))
        n_elements += array.size
    if not inputs:
        return None
    is_unknown = places < 0
    if not is_unknown.any():
        return UnrecordedOp("concat", tuple(inputs), places=places)
    places[is_unknown] = n_elements + np.flatnonzero(is_unknown)
    return UnrecordedOp("concat", tuple(inputs), places=places, other_values=output)


def _find_part(output: AnyArray, array: AnyArray) -> Ints | None:
    """Return the places of an array's elements in what it was joined to; none if it is repeated.

    None if it is no part: neither a block along an axis, whose axes may have been moved afterwards,
    nor elements that are recognized by value.
    """
    if array.reshape(-1)[0] not in output:
        return None
    places = np.arange(output.size).reshape(output.shape)
    for axis in reversed(range(output.ndim)):
        block = _find_block(output, array, axis)
        if block is not None:
            return block.select(places)
    for axes in permutations(range(output.ndim)) if output.ndim <= _MAX_MOVED_AXES else ():
        block = _find_block(output.transpose(axes), array, output.ndim - 1)
        if block is not None:
            return block.select(places.transpose(axes))
    found_places = find_places([output], array)
    if found_places is None or found_places.min() < 0:
        return None
    return found_places if len(np.unique(found_places)) == array.size else None


@dataclass(frozen=True)
class _Block:
    """The columns of a matrix with so many rows that hold an array; several, if it is repeated."""

    n_rows: int
    starts: tuple[int, ...]
    width: int

    def select(self, places: Ints) -> Ints:
        """Return the places of the only block; none if there are several."""
        if len(self.starts) > 1:
            return np.zeros(0, dtype=int)
        columns = slice(self.starts[0], self.starts[0] + self.width)
        return places.reshape(self.n_rows, -1)[:, columns].reshape(-1)


def _find_block(output: AnyArray, array: AnyArray, axis: int) -> _Block | None:
    """Return the blocks along an axis that hold an array, None if none does.

    Along the last axis, the array may have another shape.
    """
    n_rows = math.prod(output.shape[:axis])
    has_shape = axis == output.ndim - 1 or (
        array.shape[:axis] == output.shape[:axis]
        and array.shape[axis + 1 :] == output.shape[axis + 1 :]
    )
    width, remainder = divmod(array.size, n_rows)
    if not has_shape or remainder or width <= 1:
        return None
    starts = tuple(list_block_starts(output, array, axis))
    return _Block(n_rows, starts, width) if starts else None
