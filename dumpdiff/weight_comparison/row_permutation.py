"""Permutations of rows: how a fused weight arranges its components and their rows.

An order is an array: row ``i`` of one matrix is row ``order[i]`` of the other; -1 if there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import gcd

import numpy as np

from ..model.arrays import Ints

#: For more components, only their given sequence is tried: the number of sequences grows as a
#: factorial.
_MAX_PERMUTED_PARTS = 4
#: Last modules of the canonical names of the weights whose rows RoPE rotates, fused ones included.
_ROTATED = frozenset({"q", "k", "qkv", "q_b", "q_b_rope", "kv_a", "kv_a_rope"})
_MIN_HEAD_ROWS = 4  #: heads of fewer rows cannot show whether RoPE rotates halves or pairs


@dataclass(frozen=True)
class RowOrder:
    """An order of rows: ``kind`` for programs, ``description`` for people."""

    #: same, concatenated, grouped, interleaved, exchanged, regrouped, rope, shifted, blocks,
    #: scattered, zero-centered
    kind: str
    description: str
    groups: int = 1  #: number of groups in which the components alternate

    @property
    def key(self) -> tuple[str, int]:
        """Equal for two orders of the same layout."""
        return self.kind, self.groups


SAME = RowOrder("same", "as they are")


def build_fused_order(
    sizes: Sequence[int], groups: int, sequence: Sequence[int] | None = None
) -> Ints | None:
    """Return the order of a fused weight over the concatenation of its components.

    Each group holds its share of every component, in ``sequence`` (numbers of the components). One
    group is plain concatenation; the number of query groups gives Megatron's QKV; the number of
    rows of a component gives alternating rows (gate, up, gate, ...). Returns None if a component is
    not divisible by ``groups``.
    """
    if any(size % groups for size in sizes):
        return None
    starts = np.cumsum([0, *sizes[:-1]])
    component_rows = []
    for start, size in zip(starts, sizes, strict=True):
        component_rows.append(start + np.arange(size).reshape(groups, -1))
    if sequence:
        component_rows = [component_rows[component] for component in sequence]
    order: Ints = np.concatenate(component_rows, axis=1).ravel()
    return order


def invert_order(order: Ints, length: int | None = None) -> Ints:
    """Return the order of the other direction; -1 for rows that ``order`` does not contain."""
    inverse = np.full(len(order) if length is None else length, -1, dtype=np.int64)
    is_mapped = order >= 0
    inverse[order[is_mapped]] = np.flatnonzero(is_mapped)
    return inverse


def swap_row_axes(outer: int, a: int, b: int) -> Ints:
    """Return the order that reads (outer, a, b) rows as (outer, b, a)."""
    return np.arange(outer * a * b).reshape(outer, a, b).transpose(0, 2, 1).ravel()


@dataclass(frozen=True)
class RowLayout:
    """The layout of a fused weight: arrangement of the components, and row order in each."""

    component_arrangement: RowOrder
    component_orders: tuple[RowOrder, ...]  #: of each component, in the order of the given names

    @property
    def key(self) -> tuple[tuple[str, int], ...]:
        """Equal for two orders of the same layout."""
        return (self.component_arrangement.key, *(order.key for order in self.component_orders))


def describe_layout(order: Ints, sizes: Sequence[int], names: Sequence[str]) -> RowLayout:
    """Describe an order of a fused weight over its concatenated components; -1 is ignored."""
    if len(sizes) == 1:
        return RowLayout(SAME, (describe_order(order, names[0]),))
    starts = np.cumsum([0, *sizes])
    is_mapped = order >= 0
    component_of_row = np.where(is_mapped, np.searchsorted(starts, order, side="right") - 1, -1)
    # The rows of each component are sorted, so that only the arrangement of the components is left.
    sorted_order = order.copy()
    component_orders = []
    for component, size in enumerate(sizes):
        rows = np.flatnonzero(component_of_row == component)
        sorted_order[rows] = np.sort(order[rows])
        is_complete = len(rows) == size
        component_order = SAME
        if is_complete:
            component_order = describe_order(order[rows] - starts[component], names[component])
        component_orders.append(component_order)
    for sequence, groups, candidate in _list_fused_orders(sizes):
        if len(candidate) != len(order):
            continue
        if np.array_equal(sorted_order[is_mapped], candidate[is_mapped]):
            component_names = [names[component] for component in sequence]
            is_exchanged = list(sequence) != sorted(sequence)
            arrangement = _describe_arrangement(groups, component_names, min(sizes), is_exchanged)
            return RowLayout(arrangement, tuple(component_orders))
    return RowLayout(describe_order(order, ""), tuple(SAME for _ in sizes))


def _list_fused_orders(sizes: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int, Ints]]:
    """Yield every arrangement of some components: sequence, number of groups, order."""
    sequences: Iterator[tuple[int, ...]] = iter([tuple(range(len(sizes)))])
    if len(sizes) <= _MAX_PERMUTED_PARTS:
        sequences = permutations(range(len(sizes)))
    for sequence in sequences:
        for groups in _find_divisors(gcd(*sizes)):
            order = build_fused_order(sizes, groups, sequence)
            if order is not None:
                yield sequence, groups, order


def _describe_arrangement(
    groups: int, names: Sequence[str], n_rows: int, is_exchanged: bool
) -> RowOrder:
    listed_names = "[" + "; ".join(names) + "]"
    if groups == 1:
        return RowOrder("exchanged" if is_exchanged else "concatenated", listed_names)
    suffix = "-exchanged" if is_exchanged else ""
    if groups == n_rows:
        description = f"{', '.join(names)} interleaved row by row"
        return RowOrder("interleaved" + suffix, description, groups)
    return RowOrder("grouped" + suffix, f"{listed_names} in each of {groups} groups", groups)


def _find_divisors(number: int) -> list[int]:
    small_divisors = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small_divisors, *(number // n for n in small_divisors)})


def describe_order(order: Ints, module: str) -> RowOrder:
    """Describe an order of the rows of one weight; -1 rows are new rows.

    ``module`` is the last module of its canonical name: only the rows of some have a RoPE layout.
    """
    rows = np.arange(len(order))
    mapped_rows = np.flatnonzero(order >= 0)
    shifts = (order - rows)[mapped_rows]
    if not np.any(shifts):
        return SAME
    if np.all(shifts == shifts[0]):
        return RowOrder("shifted", f"rows shifted by {-int(shifts[0])}")
    if np.array_equal(np.sort(order), rows):
        permutation = _describe_permutation(order, is_rotated=module in _ROTATED)
        if permutation is not None:
            return permutation
    n_moved = int(np.count_nonzero(order != rows))
    return RowOrder("scattered", f"{n_moved} of {len(order)} rows in other places")


def _describe_permutation(order: Ints, *, is_rotated: bool) -> RowOrder | None:
    """Describe a permutation that has a pattern; None if it has none."""
    length, rows = len(order), np.arange(len(order))
    shifts = (order - rows) % length
    if np.all(shifts == shifts[0]):
        return _describe_cyclic_shift(length, int(shifts[0]))
    head_order = _describe_head_order(order, is_rotated=is_rotated)
    if head_order is not None:
        return head_order
    block = _find_block_size(order)
    if block == 1:
        return None
    n_moved = int(np.count_nonzero(order[::block] != rows[::block]))
    description = f"{n_moved} of {length // block} blocks of {block} rows in other places"
    return RowOrder("blocks", description, block)


def _describe_cyclic_shift(length: int, step: int) -> RowOrder:
    if step * 2 == length:
        return RowOrder("blocks", f"the two halves of its {length} rows exchanged", length // 2)
    shift = -step if step * 2 < length else length - step
    return RowOrder("shifted", f"rows shifted by {shift}, cyclically")


def _describe_head_order(order: Ints, *, is_rotated: bool) -> RowOrder | None:
    """Describe an order that swaps two axes of the rows of each head, as RoPE layouts do.

    Halves against pairs say nothing about a weight whose rows are not rotated: exchanging two of
    four rows is the same order.
    """
    length = len(order)
    for head_rows in _find_divisors(length):
        heads = length // head_rows
        head_order = order[:head_rows]
        if head_rows < _MIN_HEAD_ROWS or not _repeats(order, head_order, heads):
            continue
        axes = _find_swapped_axes(head_order)
        if axes is not None and (is_rotated or 2 not in axes):
            return _describe_axis_swap(heads, *axes, axes[0] * axes[1] < head_rows)
    return None


def _repeats(order: Ints, head_order: Ints, heads: int) -> bool:
    """Whether the order of every head is ``head_order``."""
    offsets = np.arange(heads)[:, None] * len(head_order)
    return np.array_equal(order.reshape(heads, -1), head_order + offsets)


def _find_swapped_axes(head_order: Ints) -> tuple[int, int] | None:
    """Return (a, b) if some consecutive rows are (a, b) rows read as (b, a); else None."""
    n_rows = len(head_order)
    moved_rows = np.flatnonzero(head_order != np.arange(n_rows))
    # The first and the last row of a swap stay in place.
    for first, last in ((moved_rows[0] - 1, moved_rows[-1] + 1), (0, n_rows - 1)):
        if first < 0 or last >= n_rows:
            continue
        segment = head_order[first : last + 1] - first
        count, inner = len(segment), int(segment[1])
        if inner <= 1 or count % inner:
            continue
        if np.array_equal(segment, swap_row_axes(1, count // inner, inner)):
            return count // inner, inner
    return None


def _describe_axis_swap(heads: int, a: int, b: int, is_partial: bool) -> RowOrder:
    """Describe (a, b) rows of each head in the order (b, a)."""
    if 2 not in (a, b):
        description = f"rows regrouped: {heads} x {a} x {b} as {heads} x {b} x {a}"
        return RowOrder("regrouped", description, heads * a)
    reference_form, target_form = ("halves", "pairs") if a == 2 else ("pairs", "halves")
    rows = f"{a * b} rows of " if is_partial else "rows of "
    rows += f"each of {heads} heads" if heads > 1 else "the weight"
    description = (
        f"{rows} in {target_form} where the other side has {reference_form}: another RoPE layout"
    )
    return RowOrder("rope", description, heads)


def _find_block_size(order: Ints) -> int:
    """Return the largest block size such that the rows of every block stay together."""
    breaks = np.flatnonzero(np.diff(order) != 1) + 1
    return int(np.gcd.reduce(np.append(breaks, len(order))))
