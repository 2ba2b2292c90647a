"""Pairs of values that are tried in place of that of a finding: in its region, and after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from ..model.dtypes import is_floating
from ..model.finding import Finding
from ..model.trace import FORWARD
from ..operators.recurrence import GATE_COUNTS
from .comparison_index import (
    ComparisonIndex,
    ValuePair,
    find_inputs,
    find_whole_tensor,
    list_following_values,
    list_region_values,
)
from .surroundings import list_finding_ops

#: At most this many pairs of values of a region are tried as an explanation.
_MAX_REGION_PAIRS = 8
#: Pairs at the start of a region that are tried.
_MAX_HEAD_PAIRS = 4
#: Values between a pair and the agreeing value from which both sides compute it.
_MAX_STEPS_FROM_SOURCE = 6
#: States of a recurrence that are tried on either side.
_MAX_STATES = 4
#: Values that follow from one that has no partner, and that it is made of, that are tried.
_MAX_BYPASS_OUTPUTS, _MAX_BYPASS_SOURCES = 4, 2


def find_region_pairs(index: ComparisonIndex, value_pair: ValuePair) -> Iterator[ValuePair]:
    """Yield other pairs of values of the region, of one size, the nearest to agreement first.

    None of the values agrees with its partner. If one fault changes everything that follows, the
    compared pair may be of two different quantities; a pair between it and the last agreement can
    be of the same quantity.
    """
    target, reference = index.flows
    target_values = list_region_values(index, 0, value_pair.classes[0])
    reference_values = list_region_values(index, 1, value_pair.classes[1])
    ranked_pairs = []
    for i, value_t in enumerate(target_values):
        for j, value_r in enumerate(reference_values):
            has_same_size = target.sizes[value_t] == reference.sizes[value_r] > 1
            if (value_t, value_r) == value_pair.classes or not has_same_size:
                continue
            if not _may_be_one_quantity(index, value_pair.classes, (value_t, value_r)):
                continue
            kind_t = index.get_producer_kind(0, value_t)
            kind_r = index.get_producer_kind(1, value_r)
            ranked_pairs.append((kind_t != kind_r, -i - j, value_t, value_r))
    for _, _, value_t, value_r in sorted(ranked_pairs)[:_MAX_REGION_PAIRS]:
        yield from _pair_whole_tensors(index, value_t, value_r)


def _may_be_one_quantity(
    index: ComparisonIndex, pair: tuple[int, int], region_pair: tuple[int, int]
) -> bool:
    """Return whether two values of a region may be of one quantity; ``pair``: its last values.

    A gradient that no op wrote is the sum that the last op read; it is none of its addends.
    """
    has_producers = all(
        flow.producers[value] >= 0 for flow, value in zip(index.flows, region_pair, strict=True)
    )
    return has_producers or all(
        value in {item for item, _ in find_inputs(flow, last)}
        for flow, last, value in zip(index.flows, pair, region_pair, strict=True)
    )


def find_head_pairs(
    index: ComparisonIndex, finding: Finding, value_pair: ValuePair
) -> Iterator[ValuePair]:
    """Yield pairs of one size that the first ops of a finding compute from one agreeing value.

    In a long region the fault is often there, far from the pair that was compared.
    """
    heads = [_list_heads(index, side, finding) for side in (0, 1)]
    target, reference = index.flows
    n_pairs = 0
    for value_t, value_r in product(*heads):
        has_same_size = target.sizes[value_t] == reference.sizes[value_r] > 1
        is_other = (value_t, value_r) != value_pair.classes
        if not has_same_size or not is_other or n_pairs == _MAX_HEAD_PAIRS:
            continue
        if _have_common_inputs(index, 0, value_t, value_r):
            n_pairs += 1
            yield from _pair_whole_tensors(index, value_t, value_r)


def _list_heads(index: ComparisonIndex, side: int, finding: Finding) -> list[int]:
    """Return what the ops of a finding compute from agreeing values and parameters alone."""
    flow = index.flows[side]
    dtypes, parameters = flow.list_column("dtype"), flow.list_column("parameter")
    agreed_values = index.agreed_classes[side]
    heads = []
    for op in list_finding_ops(index, side, finding):
        computed = [
            value
            for value in flow.reads[op]
            if is_floating(str(dtypes[value])) and not parameters[value] and flow.sizes[value] > 1
        ]
        if computed and agreed_values.issuperset(computed):
            heads += [value for value in flow.writes[op] if value not in agreed_values]
    return heads


def find_state_pairs(index: ComparisonIndex, value_pair: ValuePair) -> Iterator[ValuePair]:
    """Yield sums of one size around a pair, the first ones of both sides first.

    They may be the states of a recurrence that is written out: each is a sum of the decayed state
    before it and of what enters. If it runs in the other direction on one side, its steps are
    paired with any others.
    """
    sizes = {index.flows[side].sizes[value_pair.classes[side]] for side in (0, 1)}
    if len(sizes) > 1:
        return
    sums: list[list[int]] = []
    for side in (0, 1):
        flow, value = index.flows[side], value_pair.classes[side]
        candidates = {
            *list_region_values(index, side, value),
            *list_following_values(flow, value),
        }
        states = [
            candidate
            for candidate in candidates
            if index.get_producer_kind(side, candidate) == "add"
            and flow.sizes[candidate] == flow.sizes[value]
            and candidate not in index.agreed_classes[side]
        ]
        sums.append(sorted(states, key=lambda state: int(index.flows[side].producers[state])))
    places = [
        (i + j, abs(i - j), target, reference)
        for i, target in enumerate(sums[0][:_MAX_STATES])
        for j, reference in enumerate(sums[1][:_MAX_STATES])
    ]
    for _, _, target, reference in sorted(places)[:_MAX_REGION_PAIRS]:
        yield from _pair_whole_tensors(index, target, reference)


def find_following_pairs(index: ComparisonIndex, value_pair: ValuePair) -> Iterator[ValuePair]:
    """Yield a value of the pair with values that follow from the other one, the nearest first.

    If a chain of operators has no partner from one fault on, its last value may be paired with one
    in the middle of the other side's chain. Both values are of one size and of one kind of op.
    """
    for side in (0, 1):
        flow = index.flows[side]
        value, other_value = value_pair.classes[side], value_pair.classes[1 - side]
        other_flow = index.flows[1 - side]
        other_kind = index.get_producer_kind(1 - side, other_value)
        for following_value in list_following_values(flow, value):
            has_other_size = flow.sizes[following_value] != other_flow.sizes[other_value]
            kind = index.get_producer_kind(side, following_value)
            if has_other_size or kind != other_kind:
                continue
            values = (following_value, other_value) if side == 0 else (other_value, following_value)
            pairs = list(_pair_whole_tensors(index, *values))
            yield from pairs
            if pairs:
                break


def find_bypass_pairs(index: ComparisonIndex, value_pair: ValuePair) -> Iterator[ValuePair]:
    """Yield pairs of which one follows from a value, the other one from what the value is made of.

    If one side leaves a step out, the step's output has no partner. What reads it has one that
    reads the step's input. A linear op with a bias may be two ops.
    """
    for side in (0, 1):
        flow, other_flow = index.flows[side], index.flows[1 - side]
        value = value_pair.classes[side]
        outputs = _list_written_values(index, side, [value])[:_MAX_BYPASS_OUTPUTS]
        for source in _list_agreeing_sources(index, side, value):
            partner = index.partners[side][source]
            other_outputs = _list_written_values(index, 1 - side, [partner])
            other_outputs += _list_written_values(index, 1 - side, other_outputs)
            for output, other_output in product(outputs, other_outputs):
                has_same_size = flow.sizes[output] == other_flow.sizes[other_output]
                if has_same_size and _have_common_inputs(index, side, output, other_output):
                    values = (output, other_output) if side == 0 else (other_output, output)
                    yield from _pair_whole_tensors(index, *values)


def _list_written_values(index: ComparisonIndex, side: int, values: Sequence[int]) -> list[int]:
    """Return the values that do not agree and that forward ops compute from one of these values.

    A cell of a recurrent network is one op.
    """
    flow = index.flows[side]
    written_values: list[int] = []
    for value in values:
        for op in flow.users[value]:
            is_cell = index.kinds[side][op] in GATE_COUNTS
            if not (flow.levels[op] == "op" or is_cell) or flow.phases[op] != FORWARD:
                continue
            written_values += [
                written
                for written in flow.writes[op]
                if written not in index.agreed_classes[side] and written not in written_values
            ]
    return written_values


def _list_agreeing_sources(index: ComparisonIndex, side: int, value: int) -> list[int]:
    """Return the agreeing values of its size, and no parameters, that a value is computed from."""
    flow = index.flows[side]
    parameters = flow.list_column("parameter")
    return [
        source
        for region_value in list_region_values(index, side, value)
        for source, _ in find_inputs(flow, region_value)
        if source in index.agreed_classes[side]
        and source in index.partners[side]
        and not parameters[source]
        and flow.sizes[source] == flow.sizes[value]
    ][:_MAX_BYPASS_SOURCES]


def _have_common_inputs(index: ComparisonIndex, side: int, value: int, other_value: int) -> bool:
    """Return whether both values are computed with the same agreeing value or weight."""
    own, other = (
        set(flow.reads[int(flow.producers[item])]) if flow.producers[item] >= 0 else set()
        for flow, item in ((index.flows[side], value), (index.flows[1 - side], other_value))
    )
    return bool({index.partners[side].get(item) for item in own} & other)


def have_common_source(index: ComparisonIndex, value_pair: ValuePair) -> bool:
    """Return whether both sides compute a pair from one agreeing value, as large as the pair."""
    sources = [_list_sources(index, side, value_pair.classes[side]) for side in (0, 1)]
    partners = {index.partners[0].get(item) for item in sources[0]}
    return bool(partners & sources[1])


def _list_sources(index: ComparisonIndex, side: int, value: int) -> set[int]:
    """Return the agreeing values of one size from which a value follows, by values of that size."""
    flow, agreed_values = index.flows[side], index.agreed_classes[side]
    sources: set[int] = set()
    seen_values, todo = {value}, [value]
    while todo and len(seen_values) <= _MAX_STEPS_FROM_SOURCE:
        producer = int(flow.producers[todo.pop()])
        for item in flow.operands[producer] if producer >= 0 else ():
            if flow.sizes[item] != flow.sizes[value] or item in seen_values:
                continue
            if item in agreed_values:
                sources.add(item)
            else:
                seen_values.add(item)
                todo.append(item)
    return sources


def _pair_whole_tensors(
    index: ComparisonIndex, target_value: int, reference_value: int
) -> Iterator[ValuePair]:
    """Yield the pair of two values if both have a whole tensor."""
    values = target_value, reference_value
    target_tensor, reference_tensor = map(find_whole_tensor, index.flows, values)
    if min(target_tensor, reference_tensor) >= 0:
        yield ValuePair(values, (target_tensor, reference_tensor))
