"""The axis and order of shards, decided once per kind of value from whole tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..model.arrays import AnyArray, Flags, Ints
from ..model.dtypes import get_unit_roundoff
from .other_run import OtherRun, load_tensor
from .relation import Relation, add_arrays
from .sibling_tensors import Siblings
from .slices import Assembly, find_assembly

#: Values of a kind whose shards are searched for in the whole tensor, if all are joined alike.
_SAMPLES = 2
#: Share of the values of a kind that are joined alike, from which on all others should be.
_CLEAR_MAJORITY = 0.5
#: Unit roundoff from which on numbers count as of half precision.
NARROW = 2.0**-12


def find_assemblies(
    siblings: Siblings,
    other: OtherRun,
    kinds: Ints,
    matches: Ints,
    relations: Sequence[Relation | None],
) -> dict[int, Assembly]:
    """Return row -> how its shards are concatenated, where whole tensors tell it.

    ``matches`` are rows of ``other`` that equal the combined values.
    """
    votes: dict[tuple[int, int], Counter[Assembly]] = {}
    samples: Counter[int] = Counter()
    assemblies: dict[int, Assembly] = {}
    own_assemblies: dict[int, Assembly] = {}
    cached_assemblies: dict[tuple[object, ...], Assembly | None] = {}
    joined_rows = [
        (row, relation)
        for row, relation in enumerate(relations)
        if relation is not None and (len(relation.parts) > 1 or -1 in relation.pattern)
    ]
    is_single = siblings.is_loose | _flag_squares(siblings)
    for row, relation in joined_rows:
        kind = int(kinds[row])
        counts = votes.setdefault((kind, len(relation.parts)), Counter())
        is_decided = samples[kind] >= _SAMPLES and len(counts) < 2
        if matches[row] < 0 or (is_decided and not is_single[row]):
            continue
        key = _get_value_key(siblings, row, relation)
        if key not in cached_assemblies:
            cached_assemblies[key] = _search_assembly(
                siblings, other, row, int(matches[row]), relation
            )
        assembly = cached_assemblies[key]
        samples[kind] += 1
        if assembly is not None:
            counts[assembly] += 1
            own_assemblies[row] = assembly
    for row, relation in joined_rows:
        common_assembly = _choose_common(votes[int(kinds[row]), len(relation.parts)])
        if row in own_assemblies and (is_single[row] or common_assembly is None):
            assemblies[row] = own_assemblies[row]
        elif common_assembly is not None and not is_single[row]:
            assemblies[row] = common_assembly
    return assemblies


def _choose_common(counts: Counter[Assembly]) -> Assembly | None:
    """Return how most values of a kind are joined; None if each is joined in its own way.

    One layer that is joined otherwise is a fault. If there are as many of both, what keeps the
    order of the slices is right. The order of routed tokens is another one in each layer.
    """
    if not counts:
        return None
    assembly, count = counts.most_common(1)[0]
    if len(counts) == 1 or count > _CLEAR_MAJORITY * counts.total():
        return assembly
    plain_assemblies = [assembly for assembly in counts if assembly.order is None]
    return plain_assemblies[0] if len(plain_assemblies) == 1 else None


def _flag_squares(siblings: Siblings) -> Flags:
    """Return (tensors,) whether unnamed shards are square: a transposed one looks the same."""
    shapes = siblings.collect_base("shape").tolist()
    flags = [shape is not None and len(shape) == 2 and shape[0] == shape[1] for shape in shapes]
    is_square = np.array(flags, dtype=bool)
    for column in ("parameter", "gradient_of", "update_of"):
        is_square &= siblings.collect_base(column) == ""
    return is_square


def _get_value_key(siblings: Siblings, row: int, relation: Relation) -> tuple[object, ...]:
    """Return a key that two rows share if they hold the same values in the same order.

    What an op writes may be what it reads with axes exchanged, which square shards do not show.
    """
    classes = []
    for rank, flow in enumerate(siblings.flows):
        tensor = int(siblings.rows[row, rank])
        value = int(flow.tensor_class[tensor]) if tensor >= 0 else -1
        classes.append(value if value >= 0 else f"row {row}")
    flow = siblings.flows[siblings.base]
    kind = flow.trace.ops["kind"].iat[int(siblings.row_ops[row])]
    base = int(siblings.bases[row])
    slot = siblings.flows[base].tensors["slot"].iat[int(siblings.rows[row, base])]
    return (*classes, *siblings.shape_codes[row].tolist(), relation, kind, slot)


def _search_assembly(
    siblings: Siblings, other: OtherRun, row: int, match: int, relation: Relation
) -> Assembly | None:
    parts = load_parts(siblings, row, relation)
    whole = other.load(match)
    if parts is None or whole is None:
        return None
    rank = int(siblings.bases[row])
    dtype = siblings.flows[rank].tensors["dtype"].iat[int(siblings.rows[row, rank])]
    if relation.factor != 1.0:
        parts = [part * relation.factor for part in parts]
    return find_assembly(parts, whole, is_narrow=get_unit_roundoff(dtype) > NARROW)


def load_parts(siblings: Siblings, row: int, relation: Relation) -> list[AnyArray] | None:
    """Return the parts of a value in their recorded shape; None if a whole tensor is missing."""
    parts = []
    for ranks in relation.parts:
        arrays = [load_tensor(siblings, row, rank) for rank in ranks]
        known_arrays = [array for array in arrays if array is not None]
        if len(known_arrays) < len(arrays):
            return None
        parts.append(add_arrays(known_arrays, range(len(known_arrays))))
    return parts
