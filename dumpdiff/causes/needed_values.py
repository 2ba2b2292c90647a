"""The values that explaining a finding reads: what a narrowed dump must hold as whole tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from ..comparison import Comparison
from ..graph import Flow
from ..graph.missing_edges import find_bridge, has_missing_producer
from ..model.dtypes import is_floating
from ..model.finding import Finding
from ..model.recorded_shapes import drop_unit_axes
from ..model.trace import FORWARD
from .comparison_index import (
    ComparisonIndex,
    find_inputs,
    list_cut_sources,
    list_following_values,
    list_region_values,
)
from .operands import (
    MAX_DEPTH,
    MAX_GIVEN_VALUES,
    MAX_OPERANDS,
    PARAMETER_KINDS,
    iterate_given_values,
    list_module_inputs,
    list_other_values,
    list_parameter_values,
)
from .recurrent_steps import iterate_step_values, list_agreeing_operands
from .routing import list_routing_values
from .surroundings import is_of_loss, is_routed, list_finding_ops

_SIDES = (0, 1)
#: Values or parameters of one size elsewhere in the model that may stand in place of another.
_MAX_OTHER_VALUES = 8

#: Recent values of a fitting shape that a value may have been cut from.
_MAX_CUT_SOURCES = 4
#: Evidence of a missing edge that does not follow from the recorded numbers.
_GUESSED_BRIDGES = {"order", "module call"}

#: (0 target or 1 reference, class of a value)
NeededValue = tuple[int, int]


def list_finding_op_ids(comparison: Comparison, finding: Finding) -> tuple[list[int], list[int]]:
    """Return the ops of the target and of the reference that a finding names.

    A gradient call comes with the forward call that it differentiates.
    """
    index = ComparisonIndex(comparison)
    ops_by_side: tuple[list[int], list[int]] = ([], [])
    for side in _SIDES:
        forward_ops = index.flows[side].trace.ops["forward"].to_numpy()
        for op in list_finding_ops(index, side, finding):
            ops_by_side[side].append(op)
            if forward_ops[op] >= 0:
                ops_by_side[side].append(int(forward_ops[op]))
    return ops_by_side


def list_region_op_ids(comparison: Comparison, finding: Finding) -> tuple[list[int], list[int]]:
    """Return the ops between the last agreement and the values that diverge, by side.

    They are run again with one change, for which all their inputs and outputs are read.
    """
    index = ComparisonIndex(comparison)
    ops_by_side: tuple[list[int], list[int]] = ([], [])
    for side in _SIDES:
        producers = index.flows[side].producers
        for start in _list_starts(index, side, finding):
            for value in list_region_values(index, side, start):
                if producers[value] >= 0:
                    ops_by_side[side].append(int(producers[value]))
    return ops_by_side


def iterate_needed_values(comparison: Comparison, finding: Finding) -> Iterator[NeededValue]:
    """Yield what the search for causes reads, the most important first; a value may repeat.

    First come the two values that diverge and everything back to the last agreement, then larger
    values that an unrecorded op may have cut these from, then the choice of experts next to them
    and what these were computed from, then what follows, and last values and parameters that may
    have been read by mistake. Of a parameter, these come first.
    """
    index = ComparisonIndex(comparison)
    starts = [_list_starts(index, side, finding) for side in _SIDES]
    regions = [
        [value for start in starts[side] for value in list_region_values(index, side, start)]
        for side in _SIDES
    ]
    other_parameters = [_list_other_parameters(index, side, regions[side]) for side in _SIDES]
    yield from _pair_with_side(regions)
    if finding.is_given:
        yield from _pair_with_side(other_parameters)
    inputs = [_list_inputs(index, side, regions[side]) for side in _SIDES]
    yield from _pair_with_side(inputs)
    yield from _pair_with_side(
        [_list_cut_sources(index.flows[side], regions[side] + inputs[side]) for side in _SIDES]
    )
    value_pair = index.find_value_pair(finding)
    if value_pair is not None and is_routed(index, finding, value_pair.classes):
        yield from _pair_with_side(
            [list_routing_values(index, side, value_pair.classes[side]) for side in _SIDES]
        )
    operands = list(_iterate_operands(index, starts))
    yield from operands
    if value_pair is not None and is_of_loss(index, finding, value_pair.classes):
        yield from _iterate_labels(index, operands)
    yield from _pair_with_side([_list_module_inputs(index, side, finding) for side in _SIDES])
    following = [
        [
            value
            for start in starts[side]
            for value in list_following_values(index.flows[side], start)
        ]
        for side in _SIDES
    ]
    yield from _pair_with_side(following)
    if finding.phase == FORWARD:
        for side, value, other_values in iterate_step_values(index):
            yield side, value
            for other_value in other_values:
                yield 1 - side, other_value
        yield from list_agreeing_operands(index)
    for side in _SIDES:
        for value in _list_other_values(index, side, starts[side], regions[side]):
            yield side, value
    yield from _pair_with_side(other_parameters)


def _pair_with_side(values_by_side: Sequence[Sequence[int]]) -> Iterator[NeededValue]:
    for side, values in enumerate(values_by_side):
        for value in values:
            yield side, value


def _list_inputs(index: ComparisonIndex, side: int, values: Sequence[int]) -> list[int]:
    flow = index.flows[side]
    return [input_value for value in values for input_value, _ in find_inputs(flow, value)]


def _list_cut_sources(flow: Flow, values: Sequence[int]) -> list[int]:
    """Return what unrecorded ops may have cut values from, of shapes that fit along one axis.

    Only whole tensors show of which value a value without a recorded producer is a part.
    """
    sources: list[int] = []
    for value in values:
        bridge = find_bridge(flow, value) if has_missing_producer(flow, value) else None
        is_bridged = bridge is not None and bridge.evidence not in _GUESSED_BRIDGES
        if has_missing_producer(flow, value) and not is_bridged:
            fitting_sources = (
                source
                for source in list_cut_sources(flow, value)
                if _may_be_cut(flow.shapes[source], flow.shapes[value])
            )
            sources += islice(fitting_sources, _MAX_CUT_SOURCES)
    return sources


def _may_be_cut(source_shape: tuple[int, ...] | None, shape: tuple[int, ...] | None) -> bool:
    """Return whether a shape is another one with fewer elements along one axis, in any order."""
    axes, source_axes = Counter(drop_unit_axes(shape)), Counter(drop_unit_axes(source_shape))
    return (source_axes - axes).total() == 1 and (axes - source_axes).total() <= 1


def _list_module_inputs(index: ComparisonIndex, side: int, finding: Finding) -> list[int]:
    """Return the inputs of the module calls around the ops of a finding."""
    flow = index.flows[side]
    ops = list_finding_ops(index, side, finding)
    return [value for op in ops for value in list_module_inputs(flow, op)]


def _list_starts(index: ComparisonIndex, side: int, finding: Finding) -> list[int]:
    """Return the value of a side that a finding is about; else the results of its last op."""
    value_pair = index.find_value_pair(finding)
    if value_pair is not None:
        if value_pair.group is not None:
            return list((value_pair.group.target, value_pair.group.reference)[side])
        return [value_pair.classes[side]]
    ops = list_finding_ops(index, side, finding)
    flow = index.flows[side]
    return [value for op in ops[-1:] for value in flow.writes[op] or flow.reads[op]]


def _iterate_operands(index: ComparisonIndex, starts: list[list[int]]) -> Iterator[NeededValue]:
    """Yield what the values were computed from, one step upstream after the other."""
    reached = [dict.fromkeys(values) for values in starts]
    fronts = [list(values) for values in starts]
    for _ in range(MAX_DEPTH):
        for side in _SIDES:
            next_front = []
            for value in fronts[side]:
                for input_value, _ in find_inputs(index.flows[side], value):
                    if input_value not in reached[side] and len(reached[side]) < MAX_OPERANDS:
                        reached[side][input_value] = None
                        next_front.append(input_value)
                        yield side, input_value
            fronts[side] = next_front


def _iterate_labels(
    index: ComparisonIndex, operands: Sequence[NeededValue]
) -> Iterator[NeededValue]:
    """Yield the labels of a loss: whole numbers of the size of those that it reads.

    The other side may have shifted them, or read those of other tokens.
    """
    sizes: dict[int, None] = {}
    for side, value in operands:
        flow = index.flows[side]
        if str(flow.list_column("dtype")[value]).startswith(("int", "uint")):
            sizes[int(flow.sizes[value])] = None
    for size in sizes:
        for side in _SIDES:
            for value in islice(iterate_given_values(index, side, size), MAX_GIVEN_VALUES):
                yield side, value


def _list_other_parameters(index: ComparisonIndex, side: int, region: Sequence[int]) -> list[int]:
    """Return parameters of the sizes of those in a region, which may have been taken for these.

    They are of the region if they are compared themselves, or select or scale in it. Those that are
    read next to it come first.
    """
    flow = index.flows[side]
    names = flow.list_column("parameter")
    own_parameters = [value for value in region if names[value]]
    for value in region:
        if index.get_producer_kind(side, value) in PARAMETER_KINDS:
            own_parameters += [item for item, _ in find_inputs(flow, value) if names[item]]
    others: dict[int, None] = {}
    for parameter in dict.fromkeys(own_parameters):
        place = min(flow.consumers[parameter], default=0)
        distances = [
            (abs(min(flow.consumers[value], default=0) - place), value)
            for value in list_parameter_values(flow, int(flow.sizes[parameter]))
            if value != parameter
        ]
        others.update(dict.fromkeys(value for _, value in sorted(distances)[:_MAX_OTHER_VALUES]))
    return list(others)


def _list_other_values(
    index: ComparisonIndex, side: int, starts: Sequence[int], region: Sequence[int]
) -> list[int]:
    """Return agreeing forward values that may have been read in a region, the nearest first.

    They have the size of the first start, or of what the region reads of agreeing values.
    """
    flow = index.flows[side]
    names, dtypes = flow.list_column("parameter"), flow.list_column("dtype")
    sizes = {int(flow.sizes[start]): start for start in starts[:1]}
    for value in region:
        for input_value, _ in find_inputs(flow, value):
            is_source = input_value in index.agreed_classes[side] and not names[input_value]
            if is_source and is_floating(str(dtypes[input_value])) and flow.sizes[input_value] > 1:
                sizes.setdefault(int(flow.sizes[input_value]), value)
    return [
        other
        for size, value in sizes.items()
        for other in list_other_values(index, side, value, size)[:_MAX_OTHER_VALUES]
    ]
