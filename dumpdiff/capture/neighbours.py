"""Select the ops around findings, on both sides: their whole tensors help to explain them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from ..alignment import Alignment
from ..graph import Flow
from ..model.finding import Finding
from ..model.trace import FORWARD

#: Kinds of records that are values without an op: a dumper cannot select them.
_VALUE_KINDS = ("Parameter", "parameters_grad")


def select_nearby_ops(
    alignment: Alignment, findings: Sequence[Finding], count: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return at most ``count`` ops per side, nearest first, starting with the ops of the findings.

    The search goes from an op to its partner, to the producers of its inputs and to the consumers
    of its outputs. Where the recorded dataflow ends too early (as between modules), the calls
    before and after are added. Module calls are skipped if ops were recorded too, because a module
    only repeats the values of its ops.
    """
    flows = alignment.target, alignment.reference
    partners = _list_partners(alignment)
    # A gradient never explains a forward pass: its phase counts only if a finding is in it.
    phases = {FORWARD, *(finding.phase for finding in findings)}
    recordable = [_flag_recordable_ops(flow) for flow in flows]
    selected_ops: tuple[dict[int, None], dict[int, None]] = ({}, {})
    visited: set[tuple[int, int]] = set()
    queue = deque(_list_finding_ops(flows, findings))
    while queue and min(len(selected_ops[0]), len(selected_ops[1])) < count:
        side, op = queue.popleft()
        if (side, op) in visited or flows[side].phases[op] not in phases:
            continue
        visited.add((side, op))
        if recordable[side][op] and len(selected_ops[side]) < count:
            selected_ops[side][op] = None
        if (partner := partners[side].get(op)) is not None:
            queue.append((1 - side, partner))
        queue.extend((side, neighbor) for neighbor in _list_neighbors(flows[side], op))
    sides = zip(selected_ops, flows, recordable, strict=True)
    target, reference = (
        _fill_up(list(ops), flow, is_allowed, phases)[:count] for ops, flow, is_allowed in sides
    )
    return target, reference


def _fill_up(
    ops: list[int], flow: Flow, recordable: Sequence[bool], phases: set[str]
) -> tuple[int, ...]:
    """Return the ops, then all other recordable ops, nearest first in the order of execution."""
    if not ops:
        return ()
    phase_ops = [op for op, phase in enumerate(flow.phases) if phase in phases]
    other_ops = [op for op in phase_ops if recordable[op]]
    other_ops.sort(key=lambda op: abs(op - ops[0]))
    return tuple(dict.fromkeys([*ops, *other_ops]))


def _list_partners(alignment: Alignment) -> tuple[dict[int, int], dict[int, int]]:
    target, reference = alignment.ops["target"].tolist(), alignment.ops["reference"].tolist()
    return dict(zip(target, reference, strict=True)), dict(zip(reference, target, strict=True))


def _flag_recordable_ops(flow: Flow) -> list[bool]:
    levels, kinds = flow.trace.ops["level"].tolist(), flow.trace.ops["kind"].tolist()
    modules = "op" not in levels
    return [
        (modules or level == "op") and kind not in _VALUE_KINDS
        for level, kind in zip(levels, kinds, strict=True)
    ]


def _list_finding_ops(
    flows: tuple[Flow, Flow], findings: Sequence[Finding]
) -> Iterable[tuple[int, int]]:
    """Yield (side, op) for the ops of the findings: both sides of the first finding come first."""
    op_names = [flow.trace.ops["name"].tolist() for flow in flows]
    op_ids = [dict(zip(names, range(len(names)), strict=True)) for names in op_names]
    for finding in findings:
        for side, names in enumerate((finding.target_ops, finding.reference_ops)):
            recorded_names = [name for name in names if name in op_ids[side]]
            for name in recorded_names:
                yield side, op_ids[side][name]


def _list_neighbors(flow: Flow, op: int) -> Iterable[int]:
    for value in flow.reads[op]:
        producer = int(flow.producers[value])
        if producer >= 0:
            yield producer
    outputs = flow.writes[op] or _list_parameter_values(flow, op)
    for value in outputs:
        yield from flow.consumers[value]


def _list_parameter_values(flow: Flow, op: int) -> Iterable[int]:
    """Return the values of an op without outputs, such as the record of a parameter."""
    return (value for value in flow.tensor_class[flow.get_tensor_ids(op)].tolist() if value >= 0)
