"""Orders of rows: how the parts of a fused weight, and the rows within a part, can lie; and what an order is called.

An order is an array: row ``i`` of one matrix is row ``order[i]`` of the other; -1 where it has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import gcd

import numpy as np

from ..model.arrays import Ints


@dataclass(frozen=True)
class RowOrder:
    """What an order of rows is: ``kind`` for programs, ``said`` for people."""

    kind: str  #: same, concatenated, grouped, interleaved, exchanged, regrouped, shifted, blocks, scattered, centred
    description: str
    groups: int = 1  #: of which the parts lie in turns

    @property
    def key(self) -> tuple[str, int]:
        """What must be equal for two orders to be one layout."""
        return self.kind, self.groups


SAME = RowOrder("same", "as they are")


def build_fused_order(sizes: Sequence[int], groups: int, turn: Sequence[int] | None = None) -> Ints | None:
    """The order of a fused weight over the concatenation of its parts; None if a part does not divide by ``groups``.

    In each group stand that group's share of the parts, in the order ``turn`` (of their numbers). One group is
    the concatenation; as many as query groups is Megatron's QKV; as many as rows are gate and up in turns.
    """
    if any(size % groups for size in sizes):
        return None
    starts = np.cumsum([0, *sizes[:-1]])
    places = [
        start + np.arange(size).reshape(groups, -1)
        for start, size in zip(starts, sizes, strict=True)
    ]
    order: Ints = np.concatenate(
        [places[part] for part in (turn or range(len(sizes)))], axis=1
    ).ravel()
    return order


def invert_order(order: Ints, length: int | None = None) -> Ints:
    """The order of the other direction; -1 for rows that nothing stands for."""
    found = np.full(len(order) if length is None else length, -1, dtype=np.int64)
    known = order >= 0
    found[order[known]] = np.flatnonzero(known)
    return found


@dataclass(frozen=True)
class RowLayout:
    """The order of a fused weight: how its parts lie, and how the rows of each part do."""

    part_arrangement: RowOrder
    part_orders: tuple[RowOrder, ...]  #: of each part, in the order of the names given

    @property
    def key(self) -> tuple[tuple[str, int], ...]:
        """What must be equal for two orders to be one layout."""
        return (self.part_arrangement.key, *(order.key for order in self.part_orders))


def describe_layout(order: Ints, sizes: Sequence[int], names: Sequence[str]) -> RowLayout:
    """What an order of a fused weight over the concatenation of parts of these sizes is; -1 rows are not judged."""
    starts = np.cumsum([0, *sizes])
    if len(sizes) == 1:
        return RowLayout(SAME, (describe_order(order),))
    known = order >= 0
    owner = np.where(known, np.searchsorted(starts, order, side="right") - 1, -1)
    tidy = (
        order.copy()
    )  # each part's rows as they follow each other, so that only the turns of the parts are left
    inside = []
    for part, size in enumerate(sizes):
        places = np.flatnonzero(owner == part)
        tidy[places] = np.sort(order[places])
        inside.append(describe_order(order[places] - starts[part]) if len(places) == size else SAME)
    for turn in _turns(len(sizes)):
        for groups in _divisors(gcd(*sizes)):
            candidate = build_fused_order(sizes, groups, turn)
            if (
                candidate is not None
                and len(candidate) == len(order)
                and np.array_equal(tidy[known], candidate[known])
            ):
                return RowLayout(
                    _grouped(groups, [names[part] for part in turn], min(sizes), turn),
                    tuple(inside),
                )
    return RowLayout(describe_order(order), tuple(SAME for _ in sizes))


def _grouped(groups: int, names: Sequence[str], rows: int, turn: Sequence[int]) -> RowOrder:
    exchanged = "-exchanged" if list(turn) != sorted(turn) else ""
    if groups == 1:
        return RowOrder("exchanged" if exchanged else "concatenated", _listed(names))
    if groups == rows:
        return RowOrder("interleaved" + exchanged, f"{', '.join(names)} in turns, row by row", groups)
    return RowOrder("grouped" + exchanged, f"{_listed(names)} in each of {groups} groups", groups)


def _listed(names: Sequence[str]) -> str:
    return "[" + "; ".join(names) + "]"


def _turns(parts: int) -> Iterator[tuple[int, ...]]:
    return permutations(range(parts)) if parts <= 4 else iter([tuple(range(parts))])


def _divisors(number: int) -> list[int]:
    low = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})


def describe_order(order: Ints) -> RowOrder:
    """What an order of the rows of one weight is; rows of -1 are new ones."""
    rows = np.arange(len(order))
    known = np.flatnonzero(order >= 0)
    shifts = (order - rows)[known]
    if not np.any(shifts):
        return SAME
    if np.all(shifts == shifts[0]):
        return RowOrder("shifted", f"rows shifted by {-int(shifts[0])}")
    found = _permuted(order) if np.array_equal(np.sort(order), rows) else None
    moved = int(np.count_nonzero(order != rows))
    return found or RowOrder("scattered", f"{moved} of {len(order)} rows in other places")


def _permuted(order: Ints) -> RowOrder | None:
    """The pattern of a permutation, if it has one."""
    length, rows = len(order), np.arange(len(order))
    cyclic = (order - rows) % length
    if np.all(cyclic == cyclic[0]):
        step = int(cyclic[0])
        if step * 2 == length:
            return RowOrder("blocks", f"the two halves of its {length} rows exchanged", length // 2)
        return RowOrder(
            "shifted",
            f"rows shifted by {-step if step * 2 < length else length - step}, cyclically",
        )
    if (found := _periodic(order)) is not None:
        return found
    block = _block(order)
    if block == 1:
        return None
    moved = int(np.count_nonzero(order[::block] != rows[::block]))
    return RowOrder(
        "blocks", f"{moved} of {length // block} blocks of {block} rows in other places", block
    )


def _periodic(order: Ints) -> RowOrder | None:
    """The same order in each head, and there two axes of some of the rows exchanged: what RoPE layouts do."""
    length = len(order)
    for period in _divisors(length):
        heads = length // period
        if period < 4 or not np.array_equal(order.reshape(heads, period) - np.arange(heads)[:, None] * period,
                                            np.broadcast_to(order[:period], (heads, period))):  # fmt: skip
            continue
        moved = np.flatnonzero(order[:period] != np.arange(period))
        # the first and the last row of an exchange of axes stay where they are
        for first, last in ((moved[0] - 1, moved[-1] + 1), (0, period - 1)):
            if first < 0 or last >= period:
                continue
            part = order[first : last + 1] - first
            inner = int(part[1])
            count = len(part)
            if (
                inner > 1
                and count % inner == 0
                and np.array_equal(part, swap_row_axes(1, count // inner, inner))
            ):
                return _exchange(heads, count // inner, inner, count < period)
    return None


def _exchange(heads: int, a: int, b: int, partly: bool) -> RowOrder:
    """(a, b) rows of each head in the order (b, a)."""
    if 2 in (a, b):
        kept, made = ("halves", "pairs") if a == 2 else ("pairs", "halves")
        which = f"{a * b} rows of " if partly else "rows of "
        each = f"each of {heads} heads" if heads > 1 else "the weight"
        return RowOrder(
            "rope",
            f"{which}{each} in {made} where the other side has {kept}: another RoPE layout",
            heads,
        )
    return RowOrder(
        "regrouped", f"rows regrouped: {heads} x {a} x {b} as {heads} x {b} x {a}", heads * a
    )


def swap_row_axes(outer: int, a: int, b: int) -> Ints:
    """The order that reads (outer, a, b) rows as (outer, b, a)."""
    return np.arange(outer * a * b).reshape(outer, a, b).transpose(0, 2, 1).ravel()


def _block(order: Ints) -> int:
    """How many rows stay together, at least."""
    breaks = np.flatnonzero(np.diff(order) != 1) + 1
    return int(np.gcd.reduce(np.append(breaks, len(order))))
