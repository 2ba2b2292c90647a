"""Fused tensors: find the order in which one weight holds the rows of several others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, permutations
from math import gcd

import numpy as np

from ..model.arrays import AnyArray
from ..model.scaled_sums import compute_norm
from .layouts import REARRANGED_ERROR

_MATRIX_AXES = 2
#: End of a layout in which the joined parts are transposed.
_TRANSPOSED = ", transposed"
#: Largest number of blocks that is tried; a fused weight with more query groups is not joined in
#: its own order.
_MAX_BLOCKS = 4096


def join_parts(
    fused: AnyArray, parts: Sequence[AnyArray], *, is_numbered: bool = False
) -> tuple[str, AnyArray]:
    """Return (layout, array): the parts joined in the order nearest to ``fused``, in its shape.

    Three orders are tried along the first and the last axis, with every permutation of the parts:
    one part after the other ('concat'), block by block ('blocks(g)': query groups with their keys
    and values), and element by element ('interleaved': fused gate and up). A matrix of none of
    these shapes may hold them transposed, and so may each matrix of a stack that is far from all of
    them. Parts that are
    ``is_numbered`` keep their order, and may be stacked along a new first axis, as they are or
    with their last two axes exchanged. Raises ValueError if the shapes cannot be joined.
    """
    orders = [tuple(range(len(parts)))] if is_numbered else [*permutations(range(len(parts)))]
    candidates = _list_candidates(fused, parts, orders)
    if is_numbered:
        candidates = chain(_list_stacks(fused, parts), candidates)
    nearest = _find_nearest(fused, candidates)
    if nearest is None and _fit_transposed(fused, parts):
        layout, joined = join_parts(fused.T, parts, is_numbered=is_numbered)
        return f"{layout}{_TRANSPOSED}", joined.T
    if nearest is not None and fused.ndim > _MATRIX_AXES and not is_numbered:
        turned = fused.swapaxes(-1, -2)
        if nearest[0] > REARRANGED_ERROR * compute_norm(fused.astype(np.float64)):
            other = _find_nearest(turned, _list_candidates(turned, parts, orders))
            if other is not None and other[0] < nearest[0]:
                return f"{other[1]}{_TRANSPOSED}", other[2].swapaxes(-1, -2)
    if nearest is None:
        raise ValueError(f"parts of {[part.shape for part in parts]} do not make up {fused.shape}")
    return nearest[1], nearest[2]


def _find_nearest(
    fused: AnyArray, candidates: Iterable[tuple[str, AnyArray]]
) -> tuple[float, str, AnyArray] | None:
    """Return (L2 distance, layout, array) of the candidate nearest to ``fused``."""
    nearest: tuple[float, str, AnyArray] | None = None
    for layout, candidate in candidates:
        distance = compute_norm(candidate.astype(np.float64) - fused.astype(np.float64))
        if nearest is None or distance < nearest[0]:
            nearest = (distance, layout, candidate)
        if distance == 0:
            break
    return nearest


def _fit_transposed(fused: AnyArray, parts: Sequence[AnyArray]) -> bool:
    """Return whether a matrix may hold matrices transposed, with their rows next to each other."""
    has_size_of_parts = fused.size == sum(part.size for part in parts)
    if not has_size_of_parts or any(array.ndim != _MATRIX_AXES for array in (fused, *parts)):
        return False
    rows, columns = ({part.shape[axis] for part in parts} for axis in (0, 1))
    return rows == {fused.shape[1]} or columns == {fused.shape[0]}


def cut_part(fused: AnyArray, parts: Sequence[AnyArray], number: int) -> AnyArray:
    """Return what ``fused`` has in place of one of the parts, in the shape of that part.

    The order is that of :func:`join_parts`. Raises ValueError if the shapes cannot be joined.
    """
    layout, _ = join_parts(fused, parts)
    if layout.endswith(_TRANSPOSED):
        return cut_part(fused.swapaxes(-1, -2), parts, number)
    ends = np.cumsum([part.size for part in parts])
    places = [
        np.arange(end - part.size, end).reshape(part.shape)
        for part, end in zip(parts, ends.tolist(), strict=True)
    ]
    orders = [*permutations(range(len(parts)))]
    joined_places = next(
        joined for name, joined in _list_candidates(fused, places, orders) if name == layout
    )
    elements = fused.reshape(-1)[np.argsort(joined_places, axis=None)]
    part: AnyArray = elements[places[number].reshape(-1)].reshape(parts[number].shape)
    return part


def _list_stacks(fused: AnyArray, parts: Sequence[AnyArray]) -> Iterator[tuple[str, AnyArray]]:
    """Yield the parts along a new first axis; ``fused`` may have this axis merged with another."""
    if len({part.shape for part in parts}) > 1 or fused.size != parts[0].size * len(parts):
        return
    stacked = np.stack(parts)
    yield f"stacked({len(parts)})", stacked.reshape(fused.shape)
    if stacked.ndim > 2:
        transposed = np.swapaxes(stacked, -1, -2)
        yield f"stacked({len(parts)}), transposed", transposed.reshape(fused.shape)


def _list_candidates(
    fused: AnyArray, parts: Sequence[AnyArray], orders: Sequence[tuple[int, ...]]
) -> Iterator[tuple[str, AnyArray]]:
    """Yield (layout, parts joined in the shape of ``fused``); a vector may be a column of it."""
    if fused.ndim == _MATRIX_AXES:
        parts = [part[:, None] if part.shape == fused.shape[:1] else part for part in parts]
    for layout, joined in _join_rows(fused, parts, orders, "rows"):
        yield layout, joined
    if fused.ndim > 1:
        columns = _move_columns_to_rows(fused)
        column_parts = [_move_columns_to_rows(part) for part in parts]
        for layout, joined in _join_rows(columns, column_parts, orders, "columns"):
            yield layout, joined.T.reshape(fused.shape)
    yield from _join_along_inner_axes(fused, parts, orders)


def _join_along_inner_axes(
    fused: AnyArray, parts: Sequence[AnyArray], orders: Sequence[tuple[int, ...]]
) -> Iterator[tuple[str, AnyArray]]:
    """Yield the orders along the other axes; axes of one place may be missing on either side.

    An example are kernels (out, in, width) that are joined along their inputs, of layers whose own
    kernels are (out, in, 1, width).
    """
    squeezed, squeezed_parts = np.squeeze(fused), [np.squeeze(part) for part in parts]
    if any(part.ndim != squeezed.ndim for part in squeezed_parts):
        return
    for axis in range(1, squeezed.ndim):
        moved = np.moveaxis(squeezed, axis, 0)
        moved_parts = [np.moveaxis(part, axis, 0) for part in squeezed_parts]
        for layout, joined in _join_rows(moved, moved_parts, orders, f"axis {axis}"):
            yield layout, np.moveaxis(joined, 0, axis).reshape(fused.shape)


def _move_columns_to_rows(array: AnyArray) -> AnyArray:
    """Return a matrix with the last axis as its rows and all leading axes merged.

    Merging allows (batch, sequence, features) against (batch * sequence, features).
    """
    return array.reshape(-1, array.shape[-1]).T


def _join_rows(
    fused: AnyArray,
    parts: Sequence[AnyArray],
    orders: Sequence[tuple[int, ...]],
    axis_name: str,
) -> Iterator[tuple[str, AnyArray]]:
    """Yield (layout, joined array) of every order of rows that gives the shape of ``fused``."""
    if any(part.shape[1:] != fused.shape[1:] for part in parts):
        return
    lengths = [part.shape[0] for part in parts]
    if sum(lengths) != fused.shape[0]:
        return
    block_counts = _list_divisors(gcd(*lengths))
    for order in orders:
        for n_blocks in block_counts:
            pieces = [parts[i].reshape(n_blocks, -1, *parts[i].shape[1:]) for i in order]
            joined = np.concatenate(pieces, axis=1).reshape(fused.shape)
            yield f"{_format_order(n_blocks, lengths, order)} of {axis_name}", joined


def _format_order(n_blocks: int, lengths: Sequence[int], order: Sequence[int]) -> str:
    numbers = ",".join(str(i) for i in order)
    if n_blocks == 1:
        return f"concat({numbers})"
    if set(lengths) == {n_blocks}:
        return f"interleaved({numbers})"
    return f"blocks({n_blocks}: {numbers})"


def _list_divisors(number: int) -> list[int]:
    largest = min(number, _MAX_BLOCKS)
    return [divisor for divisor in range(1, largest + 1) if number % divisor == 0]
