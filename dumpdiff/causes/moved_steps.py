"""Ops of one side that the other side applies to another value: they are moved, not missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..graph import Flow
from ..model.dtypes import is_floating
from ..model.trace import FORWARD
from .comparison_index import (
    ComparisonIndex,
    depends_on,
    find_inputs,
    list_following_values,
    name_producer,
)

#: Values upstream of one that is left out, among which a moved op is searched.
_MAX_UPSTREAM_VALUES = 256


@dataclass(frozen=True)
class MovedStep:
    """An op with a parameter that both sides apply, each to another value."""

    kind: str
    parameter: str  #: its name on the side on which it was looked up
    own_source: str  #: what it is applied to on that side
    other_source: str  #: what it is applied to on the other side


def find_moved_step(
    index: ComparisonIndex, side: int, omitted_values: Sequence[int], kept_value: int
) -> MovedStep | None:
    """Return an op that is needed for some values of one side, and is elsewhere on the other side.

    Nothing is moved that ``kept_value`` is computed with.
    """
    kept_values = _list_diverged_values(index, side, [kept_value])
    for value in _list_diverged_values(index, side, omitted_values):
        moved_step = None if value in kept_values else _find_moved_producer(index, side, value)
        if moved_step is not None:
            return moved_step
    return None


def find_later_op(
    index: ComparisonIndex, side: int, values: tuple[int, int], kind: str, operand: int
) -> str:
    """Return the op of a kind that the other side applies after a pair, and ``side`` does not.

    ``side`` applied one before it. ``operand`` is a value of ``side`` whose partner the op reads
    as well, -1 for any. '' if there is none.
    """
    other_operand = index.partners[side].get(operand, -1) if operand >= 0 else -1
    if operand >= 0 and other_operand < 0:
        return ""
    own_ops = _list_following_ops(index, side, values[side], kind, operand)
    other_ops = _list_following_ops(index, 1 - side, values[1 - side], kind, other_operand)
    if len(own_ops) >= len(other_ops):
        return ""
    return name_producer(index.flows[1 - side], other_ops[0])


def _list_following_ops(
    index: ComparisonIndex, side: int, value: int, kind: str, operand: int
) -> list[int]:
    """Return the forward ops of a kind that follow from a value, in order.

    With an operand those that read it as well; without, only the nearest ones.
    """
    flow, kinds = index.flows[side], index.kinds[side]
    if operand >= 0:
        candidates = [
            op
            for op in flow.users[operand]
            if value in flow.reads[op]
            or any(depends_on(flow, read, value) for read in flow.reads[op] if read != operand)
        ]
    else:
        values = (value, *list_following_values(flow, value))
        candidates = [op for following_value in values for op in flow.users[following_value]]
    return sorted(
        op
        for op in set(candidates)
        if kinds[op] == kind and flow.levels[op] == "op" and flow.phases[op] == FORWARD
    )


def _list_diverged_values(
    index: ComparisonIndex, side: int, values: Sequence[int]
) -> Sequence[int]:
    """Return values, and all from which they are computed back to the last agreement."""
    flow = index.flows[side]
    upstream_values = [value for value in values if value >= 0]
    for value in upstream_values:  # grows while it is read
        if value in index.agreed_classes[side] or len(upstream_values) > _MAX_UPSTREAM_VALUES:
            continue
        for input_value, _ in find_inputs(flow, value):
            if input_value not in upstream_values:
                upstream_values.append(input_value)
    return upstream_values


def _find_moved_producer(index: ComparisonIndex, side: int, value: int) -> MovedStep | None:
    """Return the op that computes ``value`` on one side if the other side applies it elsewhere.

    It reads values that agree, and a parameter. The other side has as many such ops of the
    parameter, and none of them reads the partner of one of these values. None in all other cases.
    """
    flow, other_flow = index.flows[side], index.flows[1 - side]
    op = int(flow.producers[value])
    if op < 0:
        return None
    parameters, sources = _divide_inputs(flow, op)
    if not sources or not set(sources) <= index.agreed_classes[side]:
        return None
    partners = index.partners[side]
    expected_sources = {partners[source] for source in sources if source in partners}
    kind = index.kinds[side][op]
    for parameter in parameters:
        other_parameter = partners.get(parameter)
        if other_parameter is None:
            continue
        readers = _list_readers(index, side, parameter, kind)
        other_readers = _list_readers(index, 1 - side, other_parameter, kind)
        if not readers or not other_readers:  # one op, or a module, here; written out there
            readers = _list_forward_readers(flow, parameter) or [op]
            other_readers = _list_forward_readers(other_flow, other_parameter)
            if not other_readers or value in index.agreed_classes[side]:
                continue
        other_sources = [_divide_inputs(other_flow, reader)[1] for reader in other_readers]
        if len(readers) != len(other_readers) or not all(other_sources):
            continue
        if any(expected_sources & set(reader_sources) for reader_sources in other_sources):
            continue
        name = str(flow.list_column("parameter")[parameter])
        position = readers.index(op) if op in readers else 0
        other_name = _name_value(other_flow, other_sources[position][0])
        return MovedStep(kind, name, _name_value(flow, sources[0]), other_name)
    return None


def _divide_inputs(flow: Flow, op: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return (parameters, other floating values) that an op reads."""
    parameter_names, dtypes = flow.list_column("parameter"), flow.list_column("dtype")
    values = [value for value in flow.reads[op] if is_floating(str(dtypes[value]))]
    parameters = [value for value in values if parameter_names[value]]
    return parameters, [value for value in values if not parameter_names[value]]


def _list_readers(index: ComparisonIndex, side: int, parameter: int, kind: str) -> list[int]:
    """Return the forward ops of a kind that read a parameter."""
    flow = index.flows[side]
    levels = flow.trace.ops["level"]
    return [
        op
        for op in flow.consumers[parameter]
        if index.kinds[side][op] == kind and levels.iat[op] == "op" and flow.phases[op] == FORWARD
    ]


def _list_forward_readers(flow: Flow, parameter: int) -> list[int]:
    """Return the forward ops of any kind that read a parameter and another value."""
    levels = flow.trace.ops["level"]
    return [
        op
        for op in flow.consumers[parameter]
        if levels.iat[op] == "op" and flow.phases[op] == FORWARD and _divide_inputs(flow, op)[1]
    ]


def _name_value(flow: Flow, value: int) -> str:
    """Return the name of the op that computes a value, or of what it was computed from."""
    producer = int(flow.producers[value])
    if producer < 0:
        for parent, _ in find_inputs(flow, value):
            producer = max(producer, int(flow.producers[parent]))
    return name_producer(flow, producer)
