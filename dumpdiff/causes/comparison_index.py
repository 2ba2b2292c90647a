"""What explaining looks up in a comparison: which values a finding is about, and which lie between it and agreement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..alignment import FusedGroup
from ..comparison import Comparison
from ..graph import Flow
from ..graph.missing_edges import find_bridge
from ..model.dtypes import is_floating
from ..model.finding import Finding
from ..rulebook import Rules

_BETWEEN = 12  # values of either side that a region is taken to hold
_INNER = 8  # pairs of them that are tried


@dataclass(frozen=True)
class ValuePair:
    """Two values to explain one by the other: the class and tensor of either side, and how they are laid out."""

    classes: tuple[int, int]
    tensors: tuple[int, int]
    layout: str = "same"  #: as in the pairs table
    group: FusedGroup | None = None  #: a fused tensor on one side and its parts on the other
    is_region_pair: bool = False  #: no pair of the comparison, but two values of one region


class ComparisonIndex:
    """What explaining looks up in a comparison, once for all findings."""

    def __init__(self, comparison: Comparison, rules: Rules) -> None:
        self.comparison, self.rules = comparison, rules
        alignment = comparison.alignment
        self.flows = (alignment.target, alignment.reference)
        self.kinds = (alignment.target_kinds, alignment.reference_kinds)

    @cached_property
    def pair_rows(self) -> dict[tuple[int, int], int]:
        """(class of the target, class of the reference) -> row of pairs."""
        pairs = self.comparison.pairs
        return {
            pair: row
            for row, pair in enumerate(zip(pairs["target"], pairs["reference"], strict=True))
        }

    @cached_property
    def agreed_classes(self) -> tuple[set[int], set[int]]:
        """Classes of either side that agree with their partner."""
        good = self.comparison.pairs[self.comparison.pairs["agrees"]]
        return set(good["target"].tolist()), set(good["reference"].tolist())

    @cached_property
    def ops_by_name(self) -> tuple[dict[str, int], dict[str, int]]:
        """Per side: the dump's own name -> op."""
        first, second = (
            {name: op for op, name in enumerate(flow.trace.ops["name"])} for flow in self.flows
        )
        return first, second

    def find_value_pair(self, finding: Finding) -> ValuePair | None:
        """The pair that a finding is about; None if it is about none, as other shapes are."""
        if not finding.slots:
            return None
        sides = [
            list(self._holders(side, names, slot))
            for side, (names, slot) in enumerate(
                zip((finding.target_ops, finding.reference_ops), finding.slots[0], strict=True)
            )
        ]
        for t in sides[0]:
            for r in sides[1]:
                if (row := self.pair_rows.get((t, r))) is not None:
                    pair = self.comparison.pairs.iloc[row]
                    tensors = int(pair["target_tensor"]), int(pair["reference_tensor"])
                    return ValuePair((t, r), tensors, str(pair["layout"]), pair["group"])
        return None

    def _holders(self, side: int, names: Sequence[str], slot: str) -> Iterator[int]:
        flow = self.flows[side]
        for name in reversed(names):
            op = self.ops_by_name[side].get(name)
            for row in flow.get_tensor_ids(op).tolist() if op is not None else ():
                if (
                    str(flow.tensors["slot"].iat[row]) in (slot or "output.0", slot)
                    and flow.tensor_class[row] >= 0
                ):
                    yield int(flow.tensor_class[row])

    def get_phases(self, sought: ValuePair) -> tuple[str, str]:
        """The phase of each of two values."""
        first, second = (
            str(flow.list_column("phase")[value])
            for flow, value in zip(self.flows, sought.classes, strict=True)
        )
        return first, second

    def get_producer_kind(self, side: int, value: int) -> str:
        """Canonical kind of the op that made a value, '' if nothing recorded did."""
        maker = int(self.flows[side].producers[value])
        return self.kinds[side][maker] if maker >= 0 else ""


def find_region_pairs(around: ComparisonIndex, sought: ValuePair) -> Iterator[ValuePair]:
    """Other pairs of values of the region, of one size, none of which agrees: the nearest to agreement first.

    Where one fault moves all that follows, the pair that was compared can be of different things; among what lies
    between it and the last agreement is the pair that is of one.
    """
    regions = [_between(around, side, value) for side, value in enumerate(sought.classes)]
    target, reference = around.flows
    pairs = [
        (around.get_producer_kind(0, t) != around.get_producer_kind(1, r), -i - j, t, r)
        for i, t in enumerate(regions[0])
        for j, r in enumerate(regions[1])
        if (t, r) != sought.classes and target.sizes[t] == reference.sizes[r] > 1
    ]
    for _, _, t, r in sorted(pairs)[:_INNER]:
        tensors = find_whole_tensor(target, t), find_whole_tensor(reference, r)
        if min(tensors) >= 0:
            yield ValuePair((t, r), tensors, is_region_pair=True)


def _between(around: ComparisonIndex, side: int, value: int) -> list[int]:
    """The value and what it was computed from up to the last agreement, the nearest first."""
    flow = around.flows[side]
    found = [value]
    for v in found:
        for above, _ in find_inputs(flow, v):
            computed = flow.producers[above] >= 0 and is_floating(str(flow.list_column("dtype")[above]))
            if (
                computed
                and above not in around.agreed_classes[side]
                and above not in found
                and len(found) < _BETWEEN
            ):
                found.append(above)
    return found


def find_inputs(flow: Flow, value: int) -> Sequence[tuple[int, int]]:
    """(class, tensor) of what a value was made from; of a hole what most likely lies above it; of a leaf nothing."""
    maker = int(flow.producers[value])
    if maker >= 0:
        return list_op_inputs(flow, maker)
    found = find_bridge(flow, value)
    return [(v, -1) for v in found.parents] if found else []


def list_op_inputs(flow: Flow, op: int) -> list[tuple[int, int]]:
    """(class, tensor) of each input of an op: one class can be read in several layouts."""
    rows = flow.get_tensor_ids(op).tolist()
    role = flow.tensors["role"].to_numpy()
    return [
        (int(flow.tensor_class[row]), row)
        for row in rows
        if role[row] != "output" and flow.tensor_class[row] >= 0
    ]


def find_whole_tensor(flow: Flow, value: int) -> int:
    """A tensor of the class that is whole, the one that stands for it if possible; -1 if there is none."""
    first = int(flow.list_column("tensor")[value])
    files = flow.tensors["file"].to_numpy()
    if files[first]:
        return first
    rows = np.flatnonzero((flow.tensor_class == value) & (files != ""))
    return int(rows[0]) if len(rows) else -1
