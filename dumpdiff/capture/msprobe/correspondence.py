"""Which call of one side is which of the other, and which of its tensors: what an alignment says, slot by slot.

An alignment pairs values, and a value stands in many slots: a module repeats what an op inside it made, a residual is
read again and again. A mapping file names slots, so every target call is given the reference call that has most of its
values in the same roles.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ...alignment import Alignment
from ...rulebook import Rules

#: Confidence below which a pair is a guess (near values, roles): good to look at, but not for a file of facts.
MIN_CONFIDENCE = 0.7


@dataclass(frozen=True)
class Correspondence:
    """Pairs of ops and of tensors (row numbers of either side's tables); each target row at most once."""

    ops: dict[int, int]  #: target op -> reference op, one to one
    tensors: dict[
        int, int
    ]  #: target tensor -> reference tensor, of one shape; a reference tensor may serve twice
    reshaped: tuple[
        int, ...
    ]  #: target tensors whose values are there on the other side, but in no equal shape


def build_correspondence(alignment: Alignment, rules: Rules) -> Correspondence:
    """The slots of a paired value, call by call; scalars of two calls that were paired, slot by slot."""
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


#: What makes two slots the same: the value (numbered by the target), its role, and the level and phase of the call.
_Key = tuple[int, str, str, str]


class _Side:
    """The tables of one side as lists, and its slots by what is in them."""

    def __init__(self, alignment: Alignment, rules: Rules, side: int) -> None:
        flow = (alignment.target, alignment.reference)[side]
        tensors, ops = flow.tensors, flow.trace.ops
        self.op: list[int] = tensors["op"].tolist()
        self.slots: list[str] = tensors["slot"].tolist()
        self.shapes = tensors["shape"].tolist()
        self.scopes = [rules.resolve_scope(scope) if scope else "" for scope in ops["scope"]]
        number = np.full(
            len(flow.classes) + 1, -1
        )  # of a value: the target's; -1 stands last for "no class"
        pairs = select_certain_pairs(alignment)
        number[pairs[("target", "reference")[side]].to_numpy()] = pairs["target"].to_numpy()
        phases, levels = ops["phase"].tolist(), ops["level"].tolist()
        self.keys: list[_Key | None] = [
            (value, role, levels[op], phases[op]) if value >= 0 else None
            for value, role, op in zip(
                number[flow.tensor_class].tolist(), tensors["role"].tolist(), self.op, strict=True
            )
        ]
        self.rows: dict[_Key, list[int]] = defaultdict(list)
        self.of_op: list[list[int]] = [[] for _ in range(len(ops))]
        for row, key in enumerate(self.keys):
            if key is not None:
                self.rows[key].append(row)
                self.of_op[self.op[row]].append(row)


def select_certain_pairs(alignment: Alignment) -> pd.DataFrame:
    """The pairs of classes that are more than a guess."""
    return alignment.classes[alignment.classes["confidence"] >= MIN_CONFIDENCE]


def _pair_ops(alignment: Alignment, target: _Side, reference: _Side) -> dict[int, int]:
    """The best pairs first: by the share of values in common; pairs of the alignment, then of equal scope, before."""
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
    """Scalar arguments in the same slot of two calls of one kind: an epsilon that differs is to be compared."""
    scalar_rows = []
    for side, flow in zip(sides, (alignment.target, alignment.reference), strict=True):
        rows = np.flatnonzero(
            flow.tensors["constant"].to_numpy() & (flow.tensors["size"].to_numpy() == 1)
        )
        scalar_rows.append({(side.op[row], side.slots[row]): row for row in rows.tolist()})
    for (op, slot), row in scalar_rows[0].items():
        other = ops.get(op, -1)
        if (
            other >= 0
            and alignment.target_kinds[op] == alignment.reference_kinds[other]
            and (other, slot) in scalar_rows[1]
        ):
            yield row, scalar_rows[1][other, slot]
