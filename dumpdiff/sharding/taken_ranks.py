"""Which rank's copy of a value is taken where ranks that should have the same one do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .relation import Relation
from .sibling_tensors import Siblings
from .value_index import ValueIndex

#: Relative difference up to which a copy of a replicated value is that of the other run.
_COPY_ERROR = 1e-4


def take_ranks(
    siblings: Siblings, index: ValueIndex, relations: Sequence[Relation | None]
) -> tuple[list[Relation | None], dict[int, tuple[str, ...]]]:
    """Return the relations with the ranks whose values are taken, and row -> ranks that deviate.

    Where ranks that hold the same part have different numbers, the one that differs from the
    others is taken: the comparison then shows it. ``index`` has the values of the other run.
    """
    taken: list[Relation | None] = []
    deviations: dict[int, tuple[str, ...]] = {}
    for row, relation in enumerate(relations):
        labels = siblings.labels[row].tolist()
        if relation is None or list(relation.pattern) == labels:
            taken.append(relation)
            continue
        replacements = {}
        for first in sorted(set(relation.pattern) - {-1}):
            ranks = [
                rank
                for rank, label in enumerate(relation.pattern)
                if label == first and labels[rank] >= 0
            ]
            if not ranks:
                continue
            replacements[first] = ranks[0]
            if len({labels[rank] for rank in ranks}) > 1:
                deviating_rank = _find_deviating_rank(siblings, index, row, relation, ranks)
                deviations[row] = (siblings.names[deviating_rank],)
                replacements[first] = deviating_rank
        parts = []
        for part in relation.parts:
            ranks = [replacements[rank] for rank in part if rank in replacements]
            if ranks:
                parts.append(tuple(ranks))
        taken.append(replace(relation, parts=tuple(parts)) if parts else None)
    return taken, deviations


def _find_deviating_rank(
    siblings: Siblings, index: ValueIndex, row: int, relation: Relation, ranks: list[int]
) -> int:
    """Return the rank whose copy differs from the other run, else from the other ranks."""
    if relation.is_replicated:
        errors = np.full(len(ranks), _COPY_ERROR)
        entries = index.find(siblings.sizes[row, ranks], siblings.statistics[row, ranks], errors)
        strangers = [rank for rank, entry in zip(ranks, entries, strict=True) if entry < 0]
        if 0 < len(strangers) < len(ranks):
            return strangers[0]
    labels = siblings.labels[row]
    n_equal_peers = {rank: int((labels[ranks] == labels[rank]).sum()) for rank in ranks}
    return min(reversed(ranks), key=n_equal_peers.__getitem__)
