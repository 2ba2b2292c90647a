"""Along which axis and in which order the shards of a tensor make up the whole tensor.

Slices of the shards are found among those of the whole tensor of the other run. One search covers
contiguous shards, blocks (gate and up of each rank, q, k and v by group) and zigzag. What only
pads the shards is found in :mod:`padding`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from ..model.arrays import AnyArray, Floats, Ints

#: Difference of an element, relative to the root mean square, up to which two slices are the same.
#: Correct runs of float32 differ by 1e-5; of bfloat16 by some of its roundoffs (2**-8).
#: The second is that of half precision.
ELEMENT_ERRORS = (2e-3, 6e-2)
#: Axes of a tensor whose every permutation is tried.
_MAX_PERMUTED_AXES = 4


@dataclass(frozen=True)
class Assembly:
    """How shards are concatenated."""

    axis: int
    #: (slices,) which slice of the concatenated shards comes next; None: as they are
    order: tuple[int, ...] | None = None
    #: shards by number that are first concatenated along ``inner_axis``; (): none
    groups: tuple[tuple[int, ...], ...] = ()
    inner_axis: int = 0
    #: an axis of the whole tensor, and how many of its first slices are kept: the rest is padding
    kept: tuple[int, int] | None = None

    def join(self, parts: Sequence[AnyArray]) -> AnyArray:
        """Return the whole tensor."""
        shards = list(parts)
        if self.groups:
            shards = [
                np.concatenate([parts[part] for part in group], axis=self.inner_axis)
                for group in self.groups
            ]
        whole: AnyArray = np.concatenate(shards, axis=self.axis)
        if self.order is not None:
            whole = np.take(whole, np.array(self.order), axis=self.axis)
        if self.kept is not None:
            whole = keep_slices(whole, *self.kept)
        return whole


def keep_slices(array: AnyArray, axis: int, count: int) -> AnyArray:
    """Return a view of the first ``count`` slices along an axis."""
    view: AnyArray = np.moveaxis(np.moveaxis(array, axis, 0)[:count], 0, axis)
    return view


def measure_equal_share(first: AnyArray, second: AnyArray, axis: int, *, is_narrow: bool) -> float:
    """Return the share of the slices along an axis in which two arrays of one shape are equal."""
    first_slices = _to_floats(np.moveaxis(first, axis, 0)).reshape(first.shape[axis], -1)
    second_slices = _to_floats(np.moveaxis(second, axis, 0)).reshape(first.shape[axis], -1)
    error = ELEMENT_ERRORS[is_narrow]
    scale = float(np.sqrt(np.mean(np.square(second_slices)))) if second.size else 0.0
    is_equal = (np.abs(first_slices - second_slices) <= error * scale).all(axis=1)
    return float(is_equal.mean()) if len(is_equal) else 0.0


def find_assembly(
    parts: Sequence[AnyArray], whole: AnyArray, *, is_narrow: bool
) -> Assembly | None:
    """Return how ``parts`` make up ``whole``; None if they do not.

    ``whole`` may have another shape of as many elements, or permuted axes. ``is_narrow`` says that
    the numbers were computed with half precision.
    """
    error = ELEMENT_ERRORS[is_narrow]
    for iterate_views in (_keep_shape, _iterate_permutations, _reshape):
        for candidate in iterate_candidates(parts):
            joined = candidate.join(parts)
            for view in iterate_views(whole, joined.shape):
                if _is_close(joined, view, error):
                    return candidate
        for candidate in iterate_candidates(parts):
            joined = candidate.join(parts)
            for view in iterate_views(whole, joined.shape):
                order = _find_order(joined, view, candidate.axis, error)
                if order is not None:
                    return replace(candidate, order=tuple(order.tolist()))
    return None


def iterate_candidates(parts: Sequence[AnyArray]) -> Iterator[Assembly]:
    """Yield the ways to concatenate: along one axis, or in a grid along two."""
    n_axes = parts[0].ndim
    if any(part.ndim != n_axes for part in parts):
        return
    for axis in range(n_axes):
        if _can_join(parts, axis):
            yield Assembly(axis)
    n_parts = len(parts)
    if any(part.shape != parts[0].shape for part in parts):
        return
    for n_inner in range(2, n_parts):
        n_outer, remainder = divmod(n_parts, n_inner)
        if remainder or n_outer < 2:
            continue
        consecutive = tuple(
            tuple(range(begin, begin + n_inner)) for begin in range(0, n_parts, n_inner)
        )
        strided = tuple(tuple(range(begin, n_parts, n_outer)) for begin in range(n_outer))
        for groups in (consecutive, strided):
            for inner_axis, axis in permutations(range(n_axes), 2):
                yield Assembly(axis, None, groups, inner_axis)


def _can_join(parts: Sequence[AnyArray], axis: int) -> bool:
    shapes = {(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts}
    return len(shapes) == 1


def _keep_shape(whole: AnyArray, shape: tuple[int, ...]) -> Iterator[AnyArray]:
    """Yield the whole tensor if it has the shape."""
    if whole.shape == shape:
        yield whole


def _iterate_permutations(whole: AnyArray, shape: tuple[int, ...]) -> Iterator[AnyArray]:
    """Yield the whole tensor with its axes permuted, where that gives the shape."""
    if not 1 < whole.ndim <= _MAX_PERMUTED_AXES:
        return
    for axes in permutations(range(whole.ndim)):
        permuted = whole.transpose(axes)
        if axes != tuple(range(whole.ndim)) and permuted.shape == shape:
            yield permuted


def _reshape(whole: AnyArray, shape: tuple[int, ...]) -> Iterator[AnyArray]:
    """Yield the whole tensor reshaped, if it has as many elements."""
    if whole.shape != shape and whole.size == np.prod(shape):
        yield whole.reshape(shape)


def _is_close(first: AnyArray, second: AnyArray, error: float) -> bool:
    first, second = _to_floats(first), _to_floats(second)
    scale = float(np.sqrt(np.mean(np.square(second)))) if second.size else 0.0
    with np.errstate(invalid="ignore"):
        return bool(np.all((np.abs(first - second) <= error * scale) | (first == second)))


def _find_order(joined: AnyArray, whole: AnyArray, axis: int, error: float) -> Ints | None:
    """Return which slice of ``joined`` is each slice of ``whole``; None if they are others."""
    slices = _to_floats(np.moveaxis(joined, axis, 0)).reshape(joined.shape[axis], -1)
    wanted = _to_floats(np.moveaxis(whole, axis, 0)).reshape(whole.shape[axis], -1)
    weights = np.random.default_rng(0).standard_normal(slices.shape[1])
    wanted_keys = wanted @ weights
    if len(np.unique(wanted_keys)) < len(wanted_keys):
        return None  # of equal slices the order cannot be told
    slice_order = np.argsort(slices @ weights, kind="stable")
    wanted_order = np.argsort(wanted_keys, kind="stable")
    order = np.empty(len(slices), dtype=int)
    order[wanted_order] = slice_order
    return order if _is_close(slices[order], wanted, error) else None


def _to_floats(array: AnyArray) -> Floats:
    floats: Floats = np.clip(np.nan_to_num(array.astype(np.float64)), -1e30, 1e30)
    return floats
