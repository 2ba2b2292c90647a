"""The axis and order of shards, decided once per kind of value from whole tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..model.arrays import AnyArray, Ints
from ..model.dtypes import get_unit_roundoff
from .relations import JOINED, Relation
from .siblings import Siblings
from .slices import Assembly, find_assembly

#: Values of a kind whose shards are searched for in the whole tensor.
_SAMPLES = 2
#: Unit roundoff from which on numbers count as of half precision.
_NARROW = 2.0**-12


def find_assemblies(
    siblings: Siblings,
    other: Siblings,
    kinds: Ints,
    matches: Ints,
    relations: Sequence[Relation | None],
) -> dict[int, Assembly]:
    """Return row -> how its shards are concatenated, where whole tensors tell it.

    ``matches`` are rows of ``other`` that equal the combined values.
    """
    votes: dict[tuple[int, int], Counter[Assembly]] = {}
    samples: Counter[int] = Counter()
    joined_rows = [
        row
        for row, relation in enumerate(relations)
        if relation is not None and relation.how == JOINED and len(relation.parts) > 1
    ]
    for row in joined_rows:
        kind = int(kinds[row])
        relation = relations[row]
        if matches[row] < 0 or samples[kind] >= _SAMPLES or relation is None:
            continue
        parts = load_parts(siblings, row, relation.parts)
        whole = load_base(other, int(matches[row]))
        if parts is None or whole is None:
            continue
        samples[kind] += 1
        dtype = siblings.flows[0].tensors["dtype"].iat[int(siblings.rows[row, 0])]
        if relation.factor != 1.0:
            parts = [part * relation.factor for part in parts]
        assembly = find_assembly(parts, whole, is_narrow=get_unit_roundoff(dtype) > _NARROW)
        if assembly is not None:
            votes.setdefault((kind, len(parts)), Counter())[assembly] += 1
    assemblies: dict[int, Assembly] = {}
    for row in joined_rows:
        relation = relations[row]
        if relation is None:
            continue
        counts = votes.get((int(kinds[row]), len(relation.parts)))
        if counts:
            assemblies[row] = counts.most_common(1)[0][0]
    return assemblies


def load_parts(siblings: Siblings, row: int, ranks: Sequence[int]) -> list[AnyArray] | None:
    """Return the whole tensors of some ranks in their recorded shape; None if one is missing."""
    arrays = []
    for rank in ranks:
        array = _load(siblings, row, rank)
        if array is None:
            return None
        arrays.append(array)
    return arrays


def load_base(siblings: Siblings, row: int) -> AnyArray | None:
    """Return the whole tensor of a value that all ranks share; None if it is not, or missing."""
    if len(set(siblings.labels[row].tolist()) - {-1}) != 1:
        return None
    return _load(siblings, row, int(siblings.bases[row]))


def _load(siblings: Siblings, row: int, rank: int) -> AnyArray | None:
    flow = siblings.flows[rank]
    tensor = int(siblings.rows[row, rank])
    if tensor < 0 or not flow.tensors["file"].iat[tensor]:
        return None
    array = flow.trace.array(tensor)
    shape = flow.tensors["shape"].iat[tensor]
    if shape is not None and array.shape != shape and array.size == np.prod(shape):
        array = array.reshape(shape)
    return array
