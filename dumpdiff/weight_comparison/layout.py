"""How the rows of one side of a group lie over those of the other: as the families say, else found by value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..model.arrays import Ints
from .family_layouts import check_layout, list_expected_orders, differs_in_rope_order
from .distance import Distance, measure_distance
from .families import ModelConfig
from .groups import Group, count_rows, join_members
from .matrix import Matrix
from .row_matches import match_rows
from .row_permutation import SAME, RowLayout, RowOrder, describe_layout, invert_order, swap_row_axes
from .whole_model import WholeModel
from .zero_centered_norms import is_norm, recenter_norm

#: Share of the rows that are not where they should be that must be found elsewhere, for the order to be another.
_FOUND = 0.5
_SAMPLE = 64  #: rows that an order is tried on
_NOT_TURNED = RowOrder(
    "rope",
    "rows of each head as in the reference, though this family keeps them in another RoPE layout",
)
_PADDED = ("embedding", "head")


@dataclass(frozen=True)
class GroupComparison:
    """A group, compared in the order of rows that fits it best."""

    group: Group
    target: Matrix
    reference: Matrix
    order: Ints  #: target row i is reference row order[i]; -1 where the reference has none
    expected: Ints  #: the same, as it should be
    distance: Distance
    layout: RowLayout
    right: bool | None  #: the layout is one that its family reads; None where nobody knows
    turns_right: (
        bool | None
    )  #: at least the parts lie as its family reads them, if not the rows of each
    padding: int = 0  #: rows that the target has more, or, if negative, less


@dataclass(frozen=True)
class ShapeMismatch:
    """The two sides of a group have shapes that cannot be one."""

    reason: str


@dataclass(frozen=True)
class _Fused:
    """What a fused weight is made of: rows and names of its parts, and which layouts its sides may have."""

    part: str  #: last module of the canonical name: qkv, gate_up_proj, ...
    sizes: list[int]
    names: list[str]
    target: list[
        Ints
    ]  #: orders that the target may have over the parts; its rows as they are where it has the parts
    reference: list[Ints]


def compare_group(group: Group, target: WholeModel, reference: WholeModel, done: Callable[[int], None]) -> GroupComparison | ShapeMismatch:
    """Find the order of a group's rows and compare all of them; a Misfit where shapes forbid it."""
    mine, theirs = _oriented(join_members(group.target), join_members(group.reference))
    if not is_norm(group.path) or mine.shape != theirs.shape:
        return _lay(group, mine, theirs, target, reference, done)
    factors = recenter_norm(mine, theirs, (target.config.zero_centered_norms, reference.config.zero_centered_norms))
    if factors is None:
        return _lay(group, mine, theirs, target, reference, done)
    laid = _lay(group, factors.target, factors.reference, target, reference, done)
    if isinstance(laid, ShapeMismatch):
        return laid
    return replace(laid, layout=RowLayout(SAME, (factors.order,)), right=factors.right)


def _lay(
    group: Group,
    mine: Matrix,
    theirs: Matrix,
    target: WholeModel,
    reference: WholeModel,
    done: Callable[[int], None],
) -> GroupComparison | ShapeMismatch:
    misfit = ShapeMismatch(
        f"{mine.shape[0]} x {mine.shape[1]} here, {theirs.shape[0]} x {theirs.shape[1]} there"
    )
    part = _module(group.path)
    padding = mine.shape[0] - theirs.shape[0]
    if mine.shape[1] != theirs.shape[1] or (padding and part not in _PADDED):
        return misfit
    numbers = _common(target.config, reference.config)
    fused = _fused(group, part, mine.shape[0], target.family, reference.family, numbers)
    if fused is None:
        orders = _plain(
            part, mine.shape[0], theirs.shape[0], numbers, (target.family, reference.family)
        )
    else:
        orders = [invert_order(there)[here] for here in fused.target for there in fused.reference]
        if not group.fused:
            orders.insert(0, np.arange(mine.shape[0]))  # both in one: most often alike
    first = _best(mine, theirs, orders)
    found = measure_distance(mine, theirs, first, done)
    order = _found_elsewhere(mine, theirs, first, found)
    if order is None:
        unturned = fused is None and len(orders) > 1 and first is orders[-1]
        layout = RowLayout(SAME, (_NOT_TURNED,)) if unturned else _described(fused, group, first)
        return GroupComparison(group, mine, theirs, first, first, found, layout, not unturned, True, padding)
    again = measure_distance(mine, theirs, order, done)
    layout = _described(fused, group, order)
    right, turns = (
        (False, True)
        if fused is None
        else _judged(fused, group, layout, numbers, target, reference)
    )
    return GroupComparison(group, mine, theirs, order, first, again, layout, right, turns, padding)


def _judged(
    fused: _Fused, group: Group, layout: RowLayout, numbers: ModelConfig, target: WholeModel, reference: WholeModel
) -> tuple[bool | None, bool | None]:
    """Whether the fused side's family reads this layout; and whether at least its parts lie as it reads them."""
    own, other = (reference, target) if group.fused == "reference" else (target, reference)
    families = own.family, other.family
    tidy = replace(layout, inside=(SAME,) * len(layout.part_orders))
    right, turns = (
        check_layout(fused.part, families, fused.names, one, numbers) for one in (layout, tidy)
    )
    return right, turns


def _fused(
    group: Group, part: str, rows: int, one: str, other: str, numbers: ModelConfig
) -> _Fused | None:
    """The parts of a group: those that one side has, or where both have all in one, those it must be made of."""
    parts = np.arange(rows)
    if group.fused:
        sizes, names = count_rows(group.parts), [_module(member.path) for member in group.parts]
        orders = list(
            list_expected_orders(part, one if group.fused == "target" else other, sizes, numbers)
        ) or [parts]
        sides = (orders, [parts]) if group.fused == "target" else ([parts], orders)
        return _Fused(part, sizes, names, *sides)
    made = _made_of(part, rows, numbers)
    if made is None or (
        one == other and group.evidence == "name" and part == "qkv" and not numbers.heads
    ):
        return None
    sizes, names = made
    return _Fused(
        part,
        sizes,
        names,
        *([*list_expected_orders(part, family, sizes, numbers)] or [parts] for family in (one, other)),
    )


def _made_of(part: str, rows: int, numbers: ModelConfig) -> tuple[list[int], list[str]] | None:
    """Sizes and names of the parts of a fused weight that neither side has in parts; None if it is not one."""
    if part == "gate_up_proj" and rows % 2 == 0:
        return [rows // 2] * 2, ["gate", "up"]
    if (
        part == "qkv"
        and numbers.heads
        and numbers.groups
        and rows % (numbers.heads + 2 * numbers.groups) == 0
    ):
        size = rows // (numbers.heads + 2 * numbers.groups)
        return [numbers.heads * size, numbers.groups * size, numbers.groups * size], ["q", "k", "v"]
    return None


def _module(path: str) -> str:
    """The last module of a canonical parameter: q of layers.0.attention.q.weight."""
    parts = path.split(".")
    return parts[-2] if len(parts) > 1 else path


def _oriented(target: Matrix, reference: Matrix) -> tuple[Matrix, Matrix]:
    """Both with the same number of columns, if that can be: a matrix may be stored transposed, a vector as a row."""
    if target.shape[1] == reference.shape[1]:
        return target, reference
    if target.shape == reference.shape[::-1]:
        return target, reference.T
    if target.size == reference.size and len(target.blocks) == len(reference.blocks) == 1:
        flat = [
            m.read_raw(slice(0, m.shape[0])).reshape(-1, 1) for m in (target, reference) if 1 in m.shape
        ]
        if len(flat) == 2:
            return Matrix((flat[0],), target.dtype), Matrix((flat[1],), reference.dtype)
    return target, reference


def _plain(
    part: str, rows_t: int, rows_r: int, numbers: ModelConfig, families: tuple[str, str]
) -> list[Ints]:
    """Orders of a weight that is not fused: as it stands, and in the other RoPE layout where the families differ."""
    same = np.where(np.arange(rows_t) < rows_r, np.arange(rows_t), -1)
    size = numbers.head_size
    if differs_in_rope_order(part, *families) and rows_t == rows_r and size and rows_t % size == 0:
        heads, half = rows_t // size, size // 2
        return [swap_row_axes(heads, 2, half), swap_row_axes(heads, half, 2), same]
    return [same]


def _best(target: Matrix, reference: Matrix, orders: list[Ints]) -> Ints:
    """The order under which most of some rows agree; of equals the first."""
    if not orders:  # nothing is expected: as the rows stand, and the rest is found
        return np.arange(target.shape[0])
    if len(orders) == 1:
        return orders[0]
    rows = np.unique(np.linspace(0, target.shape[0] - 1, _SAMPLE).astype(np.int64))
    a = target.read_values(rows)
    scores = []
    for order in orders:
        known = order[rows] >= 0
        b = reference.read_values(np.maximum(order[rows], 0))
        gap = np.linalg.norm(a - b, axis=1)
        scores.append(int(np.count_nonzero(known & (gap <= 0.05 * np.linalg.norm(b, axis=1)))))
    return orders[int(np.argmax(scores))]


def _found_elsewhere(
    target: Matrix, reference: Matrix, order: Ints, found: Distance
) -> Ints | None:
    """Another order that explains most of the rows that are wrong under this one; None if there is none."""
    if found.rounding is not None:
        return None
    wrong = found.wrong_rows
    wrong = wrong[order[wrong] >= 0]
    if len(wrong) < 2 or (target.shape[1] == 1 and not _same_numbers(target, reference, found)):
        return None
    free = np.ones(reference.shape[0], dtype=bool)
    right = np.setdiff1d(np.flatnonzero(order >= 0), wrong)
    free[order[right]] = False
    elsewhere = match_rows(target, reference, wrong, free)
    if np.count_nonzero(elsewhere >= 0) <= _FOUND * len(wrong):
        return None
    made = order.copy()
    made[wrong] = elsewhere
    return made


def _same_numbers(target: Matrix, reference: Matrix, found: Distance) -> bool:
    """Whether two vectors hold the same numbers in some order: near ones alone are found everywhere."""
    if target.shape != reference.shape:
        return False
    a, b = (
        np.sort(matrix.read_values(slice(0, matrix.shape[0])).ravel()) for matrix in (target, reference)
    )
    return bool(np.all(np.abs(a - b) <= found.noise * np.abs(b)))


def _described(fused: _Fused | None, group: Group, order: Ints) -> RowLayout:
    """The layout of the fused side over its parts; of two fused sides the target's, the reference's being right."""
    if fused is None:
        return describe_layout(order, [len(order)], [""])
    if group.fused == "reference":
        return describe_layout(invert_order(order, sum(fused.sizes)), fused.sizes, fused.names)
    if np.array_equal(order, np.arange(len(order))) and not group.fused:
        return RowLayout(SAME, (SAME,))
    tried = [
        describe_layout(np.where(order >= 0, there[order], -1), fused.sizes, fused.names)
        for there in fused.reference
    ]
    return next(
        (layout for layout in tried if layout.part_arrangement.kind not in ("blocks", "scattered")), tried[0]
    )


def _common(target: ModelConfig, reference: ModelConfig) -> ModelConfig:
    """The numbers of the model, of either side."""
    fields = ModelConfig.__dataclass_fields__
    chosen = {}
    for field in fields:
        mine = getattr(target, field)
        chosen[field] = mine if mine is not None else getattr(reference, field)
    return ModelConfig(**chosen)
