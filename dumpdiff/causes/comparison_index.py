"""Look up values in a comparison: those of a finding, and those between it and agreement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..alignment import FusedGroup
from ..comparison import Comparison
from ..graph import Flow
from ..graph.missing_edges import find_bridge
from ..graph.recent_values import list_recent_values
from ..model.dtypes import is_floating
from ..model.finding import Finding
from ..model.trace import BACKWARD, FORWARD

#: A region holds at most this many values of either side; farther ones are ignored. A loss that is
#: written out has about 20.
_MAX_REGION_VALUES = 32
#: Ops after a value among which its partner is searched.
_MAX_FOLLOWING_STEPS = 4
#: Pairs after a pair that are tried as an explanation.
_MAX_LATER_PAIRS = 2
#: Values upstream of a value among which another one is searched.
_MAX_UPSTREAM_VALUES = 256
#: Name of a value whose producer was not recorded.
UNKNOWN_SOURCE = "an input"


@dataclass(frozen=True)
class ValuePair:
    """Two values to compare: (target, reference) classes and tensors, and their layout."""

    classes: tuple[int, int]
    tensors: tuple[int, int]
    layout: str = "same"  #: as in the pairs table
    group: FusedGroup | None = None  #: a fused tensor on one side and its components on the other
    part: int | None = None  #: which component of the group is compared; None for all of them
    has_mask_fill: bool = False  #: as in the pairs table
    #: tensors of the two classes in the slots that the finding names; -1 where it names none
    slot_tensors: tuple[int, int] = (-1, -1)


class ComparisonIndex:
    """Look-up tables of a comparison, built once for all findings."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        alignment = comparison.alignment
        self.flows = (alignment.target, alignment.reference)
        self.kinds = (alignment.target_kinds, alignment.reference_kinds)

    @cached_property
    def pair_rows(self) -> dict[tuple[int, int], int]:
        """(class of the target, class of the reference) -> row of ``comparison.pairs``."""
        pairs = self.comparison.pairs
        classes = zip(pairs["target"], pairs["reference"], strict=True)
        return {pair: row for row, pair in enumerate(classes)}

    @cached_property
    def agreed_classes(self) -> tuple[set[int], set[int]]:
        """Classes of either side that agree with their partner."""
        agreeing_pairs = self.comparison.pairs[self.comparison.pairs["agrees"]]
        return set(agreeing_pairs["target"].tolist()), set(agreeing_pairs["reference"].tolist())

    @cached_property
    def partners(self) -> tuple[dict[int, int], dict[int, int]]:
        """Per side: class -> class of its partner on the other side."""
        partners = self.comparison.alignment.partners
        return dict(partners), {reference: target for target, reference in partners.items()}

    @cached_property
    def ops_by_name(self) -> tuple[dict[str, int], dict[str, int]]:
        """Per side: the dump's own op name -> op."""
        target, reference = self.flows
        return _index_names(target), _index_names(reference)

    def find_value_pair(self, finding: Finding) -> ValuePair | None:
        """Return the pair of values that a finding reports; None if it has none.

        A finding of different shapes, for example, has none. Of several pairs of its ops it is the
        one of the last ops on either side, in whichever direction the dumps are compared.
        """
        if not finding.slots:
            return None
        target_slot, reference_slot = finding.slots[0]
        target_tensors = self._find_tensors(0, finding.target_ops, target_slot)
        reference_tensors = self._find_tensors(1, finding.reference_ops, reference_slot)
        pairs: list[tuple[int, int, bool, int, tuple[int, int]]] = []
        for i, (target_value, target_tensor) in enumerate(target_tensors.items()):
            for j, (reference_value, reference_tensor) in enumerate(reference_tensors.items()):
                row = self.pair_rows.get((target_value, reference_value))
                if row is not None:
                    kinds = {
                        self.get_producer_kind(0, target_value),
                        self.get_producer_kind(1, reference_value),
                    }
                    tensors = (target_tensor, reference_tensor)
                    pairs.append((min(i, j), i + j, len(kinds) > 1, row, tensors))
        if pairs:
            *_, row, tensors = min(pairs)
            return self._make_value_pair(row, tensors)
        target_values, reference_values = list(target_tensors), list(reference_tensors)
        return self._find_unrecorded_output(target_values, target_slot, reference_slot) or (
            self._find_unrecorded_output(reference_values, reference_slot, target_slot, side=1)
        )

    def _find_unrecorded_output(
        self, values: Sequence[int], slot: str, other_slot: str, side: int = 0
    ) -> ValuePair | None:
        """Return the pair of a value whose partner is in no slot of the finding.

        The op that computes the partner did not record it, an op that reads it did. None if the
        value has no partner, or several.
        """
        if not slot or other_slot:
            return None
        column = self.comparison.pairs[("target", "reference")[side]].to_numpy()
        for value in values:
            rows = np.flatnonzero(column == value)
            if len(rows) == 1:
                return self._make_value_pair(int(rows[0]))
        return None

    def find_tensor_pair(self, target: int, reference: int) -> ValuePair | None:
        """Return the pair of two tensors that a row of the result's table of pairs names.

        ``target`` and ``reference`` are tensor ids. None if no pair has them.
        """
        for row, slot_pair in self.comparison.slot_pairs:
            if (slot_pair.target_tensor, slot_pair.reference_tensor) == (target, reference):
                return self._make_value_pair(row)
        classes = []
        for flow, tensor in zip(self.flows, (target, reference), strict=True):
            classes.append(int(flow.tensor_class[tensor]) if tensor < len(flow.tensors) else -1)
        class_row = self.pair_rows.get((classes[0], classes[1]))
        return None if class_row is None else self._make_value_pair(class_row)

    def _make_value_pair(self, row: int, slot_tensors: tuple[int, int] = (-1, -1)) -> ValuePair:
        pair = self.comparison.pairs.iloc[row]
        return ValuePair(
            classes=(int(pair["target"]), int(pair["reference"])),
            tensors=(int(pair["target_tensor"]), int(pair["reference_tensor"])),
            layout=str(pair["layout"]),
            group=pair["group"],
            has_mask_fill=bool(pair["has_mask_fill"]),
            slot_tensors=slot_tensors,
        )

    @cached_property
    def weighted_calls(self) -> tuple[dict[str, dict[int, int]], ...]:
        """Per side: kind -> input -> weight, of the forward calls that read one of each."""
        calls_of_sides: tuple[dict[str, dict[int, int]], ...] = ({}, {})
        for flow, kinds, calls_of_kinds in zip(self.flows, self.kinds, calls_of_sides, strict=True):
            is_parameter = (flow.classes["parameter"] != "").to_numpy()
            for op in np.flatnonzero(flow.flag_readers(is_parameter)).tolist():
                call = find_weighted_call(flow, op)
                if call is not None:
                    calls_of_kinds.setdefault(kinds[op], {}).setdefault(*call)
        return calls_of_sides

    def list_part_pairs(self, value_pair: ValuePair) -> list[ValuePair]:
        """Return a pair for each component of a fused tensor; none of a pair of single tensors."""
        group = value_pair.group
        if group is None or group.is_numbered:
            return []
        parts_side = 0 if len(group.target) > 1 else 1
        part_pairs = []
        for part, value in enumerate((group.target, group.reference)[parts_side]):
            classes, tensors = list(value_pair.classes), list(value_pair.tensors)
            classes[parts_side] = value
            tensors[parts_side] = find_whole_tensor(self.flows[parts_side], value)
            part_pairs.append(
                replace(
                    value_pair,
                    classes=(classes[0], classes[1]),
                    tensors=(tensors[0], tensors[1]),
                    part=part,
                )
            )
        return part_pairs

    def have_common_consumers(self, value_pair: ValuePair) -> bool:
        """Return whether ops of one kind read both values of a pair, or none reads one of them."""
        kinds: list[set[str]] = []
        for side, value in enumerate(value_pair.classes):
            flow = self.flows[side]
            users = [op for op in flow.users[value] if flow.levels[op] == "op"]
            kinds.append({self.kinds[side][op] for op in users if flow.phases[op] == FORWARD})
        return not all(kinds) or bool(kinds[0] & kinds[1])

    def find_later_pairs(self, value_pair: ValuePair) -> Iterator[ValuePair]:
        """Yield the next pairs of values that follow from a pair on both sides."""
        following_t, following_r = (
            list_following_values(flow, value)
            for flow, value in zip(self.flows, value_pair.classes, strict=True)
        )
        n_pairs = 0
        for value in following_t:
            partner = self.partners[0].get(value, -1)
            row = self.pair_rows.get((value, partner))
            if partner not in following_r or row is None or n_pairs == _MAX_LATER_PAIRS:
                continue
            n_pairs += 1
            pair = self._make_value_pair(row)
            if min(pair.tensors) >= 0:
                yield pair

    def _find_tensors(self, side: int, op_names: Sequence[str], slot: str) -> dict[int, int]:
        """Return value -> tensor in a slot of the named ops, the last op first."""
        flow = self.flows[side]
        slots = (slot or "output.0", slot)
        tensors: dict[int, int] = {}
        for name in reversed(op_names):
            op = self.ops_by_name[side].get(name)
            if op is None:
                continue
            for row in flow.get_tensor_ids(op).tolist():
                value = int(flow.tensor_class[row])
                if value >= 0 and str(flow.tensors["slot"].iat[row]) in slots:
                    tensors.setdefault(value, row)
        return tensors

    def get_phases(self, value_pair: ValuePair) -> tuple[str, str]:
        """Return the phase of each of the two values.

        What a record names as a gradient belongs to the backward pass, also if an op computed it
        that a backward function written by hand calls.
        """
        phases = [
            BACKWARD
            if flow.list_column("gradient_of")[value]
            else str(flow.list_column("phase")[value])
            for flow, value in zip(self.flows, value_pair.classes, strict=True)
        ]
        return phases[0], phases[1]

    def get_producer_kind(self, side: int, value: int) -> str:
        """Return the canonical kind of the op that produced a value, '' if none was recorded."""
        producer = int(self.flows[side].producers[value])
        return self.kinds[side][producer] if producer >= 0 else ""


def name_producer(flow: Flow, op: int) -> str:
    """Return the name of the op that makes a value; ``UNKNOWN_SOURCE`` if none was recorded."""
    return str(flow.trace.ops["name"].iat[op]) if op >= 0 else UNKNOWN_SOURCE


def _index_names(flow: Flow) -> dict[str, int]:
    return {name: op for op, name in enumerate(flow.trace.ops["name"])}


def list_following_values(flow: Flow, value: int) -> list[int]:
    """Return the values of the same phase that follow from a value, the nearest first."""
    phases = flow.list_column("phase")
    following_values, front = [value], [value]
    for _ in range(_MAX_FOLLOWING_STEPS):
        next_front = []
        for front_value in front:
            for consumer in flow.users[front_value]:
                for written_value in flow.writes[consumer]:
                    is_new = written_value not in following_values
                    if is_new and phases[written_value] == phases[value]:
                        following_values.append(written_value)
                        next_front.append(written_value)
        front = next_front
        if len(following_values) > _MAX_REGION_VALUES:
            break
    return following_values[1:]


def list_region_values(index: ComparisonIndex, side: int, value: int) -> list[int]:
    """Return the value and its computed inputs back to the last agreement, the nearest first.

    No op needs to have written the gradient that a backward op reads: sums of gradients are not
    recorded.
    """
    flow = index.flows[side]
    dtypes, parameters = flow.list_column("dtype"), flow.list_column("parameter")
    region_values = [value]
    for region_value in region_values:  # grows while it is read
        producer = int(flow.producers[region_value])
        if producer < 0 and region_value != value:
            continue
        is_gradient = producer >= 0 and flow.phases[producer] == BACKWARD
        for input_value, _ in find_inputs(flow, region_value):
            is_computed = flow.producers[input_value] >= 0 or is_gradient
            is_known = bool(parameters[input_value]) or input_value in index.agreed_classes[side]
            if is_known or not is_computed or not is_floating(str(dtypes[input_value])):
                continue
            if input_value not in region_values and len(region_values) < _MAX_REGION_VALUES:
                region_values.append(input_value)
    return region_values


def find_inputs(flow: Flow, value: int) -> Sequence[tuple[int, int]]:
    """Return (value class, tensor) of the values that a value was computed from.

    For a value with a missing producer these are its most likely inputs, with tensor -1. A graph
    input has none.
    """
    producer = int(flow.producers[value])
    if producer >= 0:
        return list_op_inputs(flow, producer)
    bridge = find_bridge(flow, value)
    if bridge is None:
        return []
    return [(parent, -1) for parent in bridge.parents]


def list_cut_sources(flow: Flow, value: int) -> list[int]:
    """Return the recent larger values within whose extremes a value is, latest first.

    An op that is not recorded may have cut the value from one of them.
    """
    lows, highs = flow.list_column("min"), flow.list_column("max")
    return [
        source
        for source in list_recent_values(flow, value)
        if lows[source] <= lows[value]
        and highs[value] <= highs[source]
        and flow.sizes[source] > flow.sizes[value]
    ]


def depends_on(flow: Flow, value: int, other: int) -> bool:
    """Return whether a value was computed from another one, as far as the search reaches.

    An immediate number, value -1, was not.
    """
    upstream_values = [value] if value >= 0 else []
    for upstream_value in upstream_values:  # grows while it is read
        for input_value, _ in find_inputs(flow, upstream_value):
            if input_value == other:
                return True
            if input_value not in upstream_values:
                upstream_values.append(input_value)
        if len(upstream_values) > _MAX_UPSTREAM_VALUES:
            return False
    return False


def list_op_inputs(flow: Flow, op: int) -> list[tuple[int, int]]:
    """Return (value class, tensor) of each input of an op.

    An op can read a value class in several layouts.
    """
    slot_kinds = flow.tensors["slot_kind"].to_numpy()
    inputs = []
    for row in flow.get_tensor_ids(op).tolist():
        value = int(flow.tensor_class[row])
        if value >= 0 and slot_kinds[row] != "output":
            inputs.append((value, row))
    return inputs


def find_weighted_call(flow: Flow, op: int) -> tuple[int, int] | None:
    """Return the input and the weight of a forward op that reads one of each; None for others."""
    if flow.phases[op] != FORWARD or flow.is_module[op]:
        return None
    names, operands = flow.list_column("parameter"), flow.operands[op]
    weights = [v for v in operands if names[v] and len(flow.shapes[v] or ()) > 1]
    inputs = [value for value in operands if not names[value]]
    return (inputs[0], weights[0]) if len(weights) == len(inputs) == 1 else None


def find_whole_tensor(flow: Flow, value: int) -> int:
    """Return a whole tensor of the value class, -1 if none; its standard tensor if possible."""
    standard_tensor = int(flow.list_column("tensor")[value])
    files = flow.tensors["file"].to_numpy()
    if files[standard_tensor]:
        return standard_tensor
    rows = np.flatnonzero((flow.tensor_class == value) & (files != ""))
    return int(rows[0]) if len(rows) else -1
