"""Weights that one side stores as [in, out] and the other as [out, in]: a layout, or a mistake.

Only matrices that are not square are judged here. A square one that is transposed has other values
in most places, and is named by its values (see :mod:`.mistakes`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from .families import OTHER
from .groups import join_members
from .layout import GroupComparison
from .row_permutation import SAME, RowLayout, RowOrder
from .whole_model import WholeModel

_TRANSPOSED = RowOrder("transposed", "the reference's transposed, in another shape")
_NOT_TRANSPOSED = RowOrder(
    "transposed", "as in the reference, though other layers hold the reference's transposed"
)


def judge_transposed(
    comparisons: Sequence[GroupComparison], target: WholeModel, reference: WholeModel
) -> list[GroupComparison]:
    """Return the comparisons; those whose target is wrongly transposed are marked.

    What a known family stores as [in, out] is transposed before it is compared, so any further
    transpose is wrong. A family that is not known may store all weights of a kind in this way; in
    some layers only, it is a mistake of the fewer layers.
    """
    is_known = OTHER not in (target.naming.family, reference.naming.family)
    comparisons_by_kind: dict[str, list[GroupComparison]] = defaultdict(list)
    for comparison in comparisons:
        if not len(comparison.distance.wrong_rows):
            kind = re.sub(r"\d+", "#", comparison.group.path)
            comparisons_by_kind[kind].append(comparison)
    wrong_ids: set[int] = set()
    for similar_comparisons in comparisons_by_kind.values():
        turned_ids = set(map(id, filter(_is_turned, similar_comparisons)))
        if is_known:
            wrong_ids |= turned_ids
        elif turned_ids:
            wrong_ids |= _list_minority(similar_comparisons, turned_ids)
    return [
        _mark_transposed(comparison) if id(comparison) in wrong_ids else comparison
        for comparison in comparisons
    ]


def _is_turned(comparison: GroupComparison) -> bool:
    """Whether the reference was transposed to be compared."""
    stored_shape = join_members(comparison.group.reference).shape
    return comparison.reference.shape != stored_shape and min(stored_shape) > 1


def _list_minority(comparisons: Iterable[GroupComparison], turned_ids: set[int]) -> set[int]:
    """Return the fewer ones, transposed or not; of as many the transposed ones, of all none."""
    other_ids = {id(comparison) for comparison in comparisons} - turned_ids
    if not other_ids:
        return set()
    return turned_ids if len(turned_ids) <= len(other_ids) else other_ids


def _mark_transposed(comparison: GroupComparison) -> GroupComparison:
    order = _TRANSPOSED if _is_turned(comparison) else _NOT_TRANSPOSED
    layout = RowLayout(SAME, (order,) * len(comparison.group.components))
    return replace(comparison, layout=layout, is_correct=False)
