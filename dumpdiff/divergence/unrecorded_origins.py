"""Ops from whose results a value comes that no recorded op computed.

A recorder leaves out ops that join, cut or repeat tensors. What they read was recorded as the
result of an op that nothing reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..graph.passing_values import WINDOW
from ..model.trace import FORWARD
from ..model.verdict import AGREEING, UNPAIRED
from .joint_graph import GraphSide
from .states import States

#: Ops that follow from one without any partner; more are a part of a model, not a lost value.
_MAX_LOST_OPS = 24


def list_lost_ops(
    own: GraphSide,
    other: GraphSide,
    states: States,
    nodes: Sequence[int],
    other_ops: Sequence[int],
) -> set[int]:
    """Return the ops of one side with whose results the region may begin, as no recorded op shows.

    ``nodes`` are those of the region. Where no recorded op of the side computed one of them, it was
    computed from results like these: no result of it and of what is computed from it has a partner,
    and the first op reads an agreeing value that the other side's ops of the region read, and no
    parameter.
    """
    flow = own.flow
    values = [int(own.classes[node]) for node in nodes if own.classes[node] >= 0]
    unrecorded_values = [value for value in values if flow.producers[value] < 0]
    if not unrecorded_values:
        return set()
    first_read = max(int(flow.first_reads[value]) for value in unrecorded_values)
    names, phases = flow.list_column("parameter"), flow.list_column("phase")
    phase = phases[unrecorded_values[0]]
    read_nodes = dict.fromkeys(
        int(other.nodes[value]) for op in other_ops for value in other.flow.operands[op]
    )
    lost_ops: set[int] = set()
    for node in read_nodes:
        value = int(own.classes[node])
        if value < 0 or states.state[node] != AGREEING or names[value]:
            continue
        for op in flow.consumers[value]:
            if op < first_read and flow.phases[op] == phase:
                lost_ops |= _collect_lost_ops(own, states, op)
    return lost_ops


def _collect_lost_ops(side: GraphSide, states: States, op: int) -> set[int]:
    """Return an op with results and what reads them, if none of them has one with a partner."""
    flow = side.flow
    lost_ops: set[int] = {op} if flow.writes[op] else set()
    todo = list(lost_ops)
    while todo:
        results = flow.writes[todo.pop()]
        has_partner = any(states.state[side.nodes[result]] != UNPAIRED for result in results)
        if has_partner or len(lost_ops) > _MAX_LOST_OPS:
            return set()
        readers = {reader for result in results for reader in flow.consumers[result]} - lost_ops
        lost_ops |= readers
        todo.extend(readers)
    return lost_ops


def list_ops_of_parts(side: GraphSide, states: States, value: int) -> set[int]:
    """Return the ops whose results are most likely parts of a value that no recorded op computed.

    They ran shortly before, in the module call that computed the value, their results fit into it
    and have no partner, and no recorded op reads them: such as sines that are joined to the input.
    With them are the ops of the same call from whose unpaired results these are computed.
    """
    flow, shape = side.flow, side.flow.shapes[value]
    consumer, first_read = flow.consumers[value][0], int(flow.first_reads[value])
    if flow.phases[consumer] != FORWARD or shape is None:
        return set()
    calls = flow.iterate_enclosing_calls(consumer)
    call = next((call for call in calls if value not in flow.reads[call]), -1)
    recent_ops = range(max(0, first_read - WINDOW), first_read)
    inner_ops = [op for op in recent_ops if flow.parents[op] == call and flow.levels[op] == "op"]
    return list_unread_ops(
        side,
        states,
        inner_ops,
        lambda part: states.state[side.nodes[part]] == UNPAIRED
        and _fits_into(flow.shapes[part], shape),
    )


def _fits_into(part: tuple[int, ...] | None, whole: tuple[int, ...]) -> bool:
    """Return whether a tensor, repeated along missing axes, may be a part of a larger one."""
    if not part or len(part) > len(whole):
        return False
    lengths = zip(reversed(part), reversed(whole), strict=False)
    return all(length <= whole_length for length, whole_length in lengths)


def list_unread_ops(
    side: GraphSide,
    states: States,
    ops: Sequence[int],
    is_part: Callable[[int], bool] = lambda _: True,
) -> set[int]:
    """Return those of some ops whose results do not agree and that no op reads.

    With those from whose uncompared results these are computed. ``is_part`` chooses results.
    """
    flow, inner_ops = side.flow, set(ops)
    unread_ops = {
        op
        for op in inner_ops
        for value in flow.writes[op]
        if flow.phases[op] == FORWARD
        and not flow.consumers[value]
        and states.state[side.nodes[value]] != AGREEING
        and is_part(value)
    }
    todo = list(unread_ops)
    while todo:
        for value in flow.operands[todo.pop()]:
            producer = int(flow.producers[value])
            is_uncompared = states.state[side.nodes[value]] == UNPAIRED
            if is_uncompared and producer in inner_ops and producer not in unread_ops:
                unread_ops.add(producer)
                todo.append(producer)
    return unread_ops
