"""How the rows of one side of a group lie over those of the other: as the families say, else found by value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..arrays import Ints
from .conventions import accepted, expected, rope_reordered
from .distance import Distance, distance
from .families import Numbers
from .groups import Group, sizes_of, whole
from .matrix import Matrix
from .orders import Described, described, inverse, regrouped
from .rows import matched
from .side import Side

#: Share of the rows that are not where they should be that must be found elsewhere, for the order to be another.
_FOUND = 0.5
_SAMPLE = 64  #: rows that an order is tried on
_PADDED = ("embedding", "head")


@dataclass(frozen=True)
class Laid:
    """A group, compared in the order of rows that fits it best."""

    group: Group
    target: Matrix
    reference: Matrix
    order: Ints  #: target row i is reference row order[i]; -1 where the reference has none
    expected: Ints  #: the same, as it should be
    distance: Distance
    layout: Described
    right: bool | None  #: the layout is one that its family reads; None where nobody knows
    padding: int = 0  #: rows that the target has more, or, if negative, less


class Misfit(Exception):
    """The two sides of a group have shapes that cannot be one."""


def lay(group: Group, target: Side, reference: Side, done: Callable[[int], None]) -> Laid:
    """Find the order of a group's rows and compare all of them. Raises Misfit where shapes forbid it."""
    mine, theirs = _oriented(whole(group.target), whole(group.reference))
    sizes = sizes_of(group.parts)
    names = [_module(member.path) for member in group.parts]
    part = _module(group.path)
    numbers = _common(target.numbers, reference.numbers)
    family = (target if group.fused != "reference" else reference).family
    padding = mine.shape[0] - theirs.shape[0]
    if padding and part not in _PADDED:
        raise Misfit(f"{mine.shape[0]} x {mine.shape[1]} here, {theirs.shape[0]} x {theirs.shape[1]} there")
    first = _best(mine, theirs, _candidates(group, part, family, sizes, numbers, target.family, reference.family))
    found = distance(mine, theirs, first, done)
    order = _found_elsewhere(mine, theirs, first, found)
    if order is None:
        layout = _describe(group, first, sizes, names)
        return Laid(group, mine, theirs, first, first, found, layout, True, padding)
    again = distance(mine, theirs, order, done)
    layout = _describe(group, order, sizes, names)
    right = accepted(part, family, layout, numbers) if group.fused else False
    return Laid(group, mine, theirs, order, first, again, layout, right, padding)


def _module(path: str) -> str:
    """The last module of a canonical parameter: q of layers.0.attention.q.weight."""
    parts = path.split(".")
    return parts[-2] if len(parts) > 1 else path


def _oriented(target: Matrix, reference: Matrix) -> tuple[Matrix, Matrix]:
    """Both with the same number of columns: a row vector is a column, a matrix may be stored transposed."""
    if target.shape[1] == reference.shape[1]:
        return target, reference
    if target.shape == reference.shape[::-1]:
        return target, reference.T
    if target.size == reference.size and len(target.blocks) == len(reference.blocks) == 1:
        flat = [m.take(slice(0, m.shape[0])).reshape(-1, 1) for m in (target, reference) if 1 in m.shape]
        if len(flat) == 2:
            return Matrix((flat[0],), target.dtype), Matrix((flat[1],), reference.dtype)
    rows, columns = target.shape
    raise Misfit(f"{rows} x {columns} here, {reference.shape[0]} x {reference.shape[1]} there")


def _candidates(
    group: Group, part: str, family: str, sizes: list[int], numbers: Numbers, one: str, other: str
) -> list[Ints]:
    rows_t, rows_r = (sum(sizes_of(members)) for members in (group.target, group.reference))
    if group.fused:
        orders = [order for order in expected(part, family, sizes, numbers) if len(order) == sum(sizes)]
        return [inverse(order) for order in orders] if group.fused == "reference" else orders
    same = np.where(np.arange(rows_t) < rows_r, np.arange(rows_t), -1)
    if rope_reordered(part, one, other) and rows_t == rows_r and numbers.head_size and rows_t % numbers.head_size == 0:
        heads, half = rows_t // numbers.head_size, numbers.head_size // 2
        return [regrouped(heads, 2, half), regrouped(heads, half, 2), same]
    return [same]


def _best(target: Matrix, reference: Matrix, orders: list[Ints]) -> Ints:
    """The order under which most of some rows agree; of equals the first."""
    if not orders:  # nothing is expected: as the rows stand, and the rest is found
        return np.arange(target.shape[0])
    if len(orders) == 1:
        return orders[0]
    rows = np.unique(np.linspace(0, target.shape[0] - 1, _SAMPLE).astype(np.int64))
    a = target.values(rows)
    scores = []
    for order in orders:
        known = order[rows] >= 0
        b = reference.values(np.maximum(order[rows], 0))
        gap = np.linalg.norm(a - b, axis=1)
        scores.append(int(np.count_nonzero(known & (gap <= 0.05 * np.linalg.norm(b, axis=1)))))
    return orders[int(np.argmax(scores))]


def _found_elsewhere(target: Matrix, reference: Matrix, order: Ints, found: Distance) -> Ints | None:
    """Another order that explains most of the rows that are wrong under this one; None if there is none."""
    wrong = found.wrong
    wrong = wrong[order[wrong] >= 0]
    if len(wrong) < 2:
        return None
    free = np.ones(reference.shape[0], dtype=bool)
    right = np.setdiff1d(np.flatnonzero(order >= 0), wrong)
    free[order[right]] = False
    elsewhere = matched(target, reference, wrong, free)
    if np.count_nonzero(elsewhere >= 0) <= _FOUND * len(wrong):
        return None
    made = order.copy()
    made[wrong] = elsewhere
    return made


def _describe(group: Group, order: Ints, sizes: list[int], names: list[str]) -> Described:
    """The layout in the direction in which the fused side is made of the parts."""
    if group.fused == "reference":
        return described(inverse(order, sum(sizes)), sizes, names)
    return described(order, sizes if group.fused else [len(order)], names)


def _common(target: Numbers, reference: Numbers) -> Numbers:
    """The numbers of the model, of either side."""
    fields = Numbers.__dataclass_fields__
    chosen = {}
    for field in fields:
        mine = getattr(target, field)
        chosen[field] = mine if mine is not None else getattr(reference, field)
    return Numbers(**chosen)
