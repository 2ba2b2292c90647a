"""Pair calls and their tensors, slot by slot, from an alignment.

An alignment pairs values, and one value occurs in many slots: a module repeats the output of an op
inside it, a residual has many consumers. A mapping file names slots. Therefore every target call
gets the reference call that has most of its values in the same slot_kinds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ...alignment import Alignment
from ...rulebook import Rules

#: Lowest confidence of a pair in a mapping file. A pair below it is a guess (close values, roles):
#: it may help a reader, but must not become input of another tool.
MIN_CONFIDENCE = 0.7


@dataclass(frozen=True)
class Correspondence:
    """Pairs of ops and of tensors, as row numbers; each target row occurs at most once."""

    ops: dict[int, int]  #: target op -> reference op, one to one
    #: target tensor -> reference tensor of the same shape; a reference tensor may occur twice
    tensors: dict[int, int]
    #: target tensors whose values exist in the reference, but only in other shapes
    reshaped: tuple[int, ...]


def build_correspondence(alignment: Alignment, rules: Rules) -> Correspondence:
    """Return pairs of ops and tensors: by paired values, and scalars of paired calls by slot."""
    sides = _Side(alignment, rules, 0), _Side(alignment, rules, 1)
    ops = _pair_ops(alignment, *sides)
    tensors: dict[int, int] = {}
    reshaped = []
    for row, (op, key) in enumerate(zip(sides[0].op, sides[0].keys, strict=True)):
        if key is None:
            continue
        candidate_rows = sides[1].rows.get(key, ())
        shape, partner = sides[0].shapes[row], ops.get(op, -1)
        same_shape_rows = [other for other in candidate_rows if sides[1].shapes[other] == shape]
        if same_shape_rows:
            partner_rows = [other for other in same_shape_rows if sides[1].op[other] == partner]
            same_slot_rows = [
                other for other in partner_rows if sides[1].slots[other] == sides[0].slots[row]
            ]
            tensors[row] = (same_slot_rows or partner_rows or same_shape_rows)[0]
        elif candidate_rows:
            reshaped.append(row)
    tensors.update(_pair_scalars(alignment, ops, *sides))
    return Correspondence(ops, tensors, tuple(reshaped))


#: Two slots correspond if these agree: the value (numbered as in the target), its kind of slot, and
#: the level and phase of the call.
_Key = tuple[int, str, str, str]


class _Side:
    """The tables of one side as lists, and its slots by key."""

    def __init__(self, alignment: Alignment, rules: Rules, side: int) -> None:
        flow = (alignment.target, alignment.reference)[side]
        tensors, ops = flow.tensors, flow.trace.ops
        self.op: list[int] = tensors["op"].tolist()
        self.slots: list[str] = tensors["slot"].tolist()
        self.shapes = tensors["shape"].tolist()
        self.scopes = [rules.resolve_scope(scope) if scope else "" for scope in ops["scope"]]
        # Value class -> number of the paired class of the target; index -1 means "no class".
        number = np.full(len(flow.classes) + 1, -1)
        pairs = select_certain_pairs(alignment)
        number[pairs[("target", "reference")[side]].to_numpy()] = pairs["target"].to_numpy()
        phases, levels = ops["phase"].tolist(), ops["level"].tolist()
        self.keys: list[_Key | None] = [
            (value, slot_kind, levels[op], phases[op]) if value >= 0 else None
            for value, slot_kind, op in zip(
                number[flow.tensor_class].tolist(),
                tensors["slot_kind"].tolist(),
                self.op,
                strict=True,
            )
        ]
        self.rows: dict[_Key, list[int]] = defaultdict(list)
        self.of_op: list[list[int]] = [[] for _ in range(len(ops))]
        for row, key in enumerate(self.keys):
            if key is not None:
                self.rows[key].append(row)
                self.of_op[self.op[row]].append(row)


def select_certain_pairs(alignment: Alignment) -> pd.DataFrame:
    """Return the pairs of classes that are more than a guess."""
    return alignment.classes[alignment.classes["confidence"] >= MIN_CONFIDENCE]


def _pair_ops(alignment: Alignment, target: _Side, reference: _Side) -> dict[int, int]:
    """Return one-to-one pairs of ops, best first.

    Pairs of the alignment come first, then pairs of equal scope, then more common values.
    """
    paired = dict(
        zip(alignment.ops["target"].tolist(), alignment.ops["reference"].tolist(), strict=True)
    )
    ranked_pairs: list[tuple[float, int, int]] = []
    for op, rows in enumerate(target.of_op):
        votes: Counter[int] = Counter()
        for key in {target.keys[row] for row in rows}:
            votes.update(
                {reference.op[other] for other in reference.rows.get(key, ())} if key else ()
            )
        for other, count in votes.items():
            share = 2 * count / (len(rows) + len(reference.of_op[other]))
            same_scope = target.scopes[op] == reference.scopes[other] != ""
            ranked_pairs.append((share + 2 * (paired.get(op) == other) + same_scope, op, other))
    ops: dict[int, int] = {}
    paired_references: set[int] = set()
    for _, op, other in sorted(
        ranked_pairs, key=lambda row: (-row[0], abs(row[1] - row[2]), row[1])
    ):
        if op not in ops and other not in paired_references:
            ops[op] = other
            paired_references.add(other)
    return ops


def _pair_scalars(
    alignment: Alignment, ops: dict[int, int], *sides: _Side
) -> Iterator[tuple[int, int]]:
    """Yield pairs of scalar arguments in the same slot of two paired calls of one kind.

    Their values may differ: a different epsilon must be compared, too.
    """
    scalar_rows = []
    for side, flow in zip(sides, (alignment.target, alignment.reference), strict=True):
        rows = np.flatnonzero(
            flow.tensors["constant"].to_numpy() & (flow.tensors["size"].to_numpy() == 1)
        )
        scalar_rows.append({(side.op[row], side.slots[row]): row for row in rows.tolist()})
    for (op, slot), row in scalar_rows[0].items():
        other = ops.get(op, -1)
        if other < 0 or alignment.target_kinds[op] != alignment.reference_kinds[other]:
            continue
        if (other, slot) in scalar_rows[1]:
            yield row, scalar_rows[1][other, slot]
