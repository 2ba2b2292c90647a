"""What is around a finding: its ops, their consumers, a router, the loss."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.finding import Finding
from ..model.trace import BACKWARD, FORWARD
from ..operators.recurrence import GATE_COUNTS
from .comparison_index import ComparisonIndex

#: Steps downstream over which the kinds of consumers are collected ...
_CONSUMER_STEPS = 3
#: ... unless one step reaches more values than this.
_MAX_CONSUMED_VALUES = 64
#: Backward ops between the loss and a gradient that is called a gradient of the loss.
_MAX_SEED_OPS = 12
#: Values between the last parameter and a loss.
_MAX_LOSS_VALUES = 128
#: Kinds of ops next to which experts are chosen.
_ROUTING_KINDS = {"topk", "router", "scatter_add", "index_add"}
_LOSS_KINDS = {"cross_entropy", "nll_loss", "log_softmax", "gather_elements"}


def list_finding_ops(index: ComparisonIndex, side: int, finding: Finding) -> list[int]:
    """Return the ops of one side that the finding names."""
    ops = []
    for name in (finding.target_ops, finding.reference_ops)[side]:
        op = index.ops_by_name[side].get(name)
        if op is not None:
            ops.append(op)
    return ops


def collect_consumer_kinds(index: ComparisonIndex, side: int, value: int) -> frozenset[str]:
    """Return the kinds of the ops that read a value, and of the consumers of their outputs."""
    flow, kinds = index.flows[side], index.kinds[side]
    consumer_kinds: set[str] = set()
    front = {value}
    for _ in range(_CONSUMER_STEPS):
        consumers = find_consumers(index, side, front)
        front = set()
        for op in consumers:
            consumer_kinds.add(kinds[op])
            front.update(flow.writes[op])
        if len(front) > _MAX_CONSUMED_VALUES:
            break
    return frozenset(consumer_kinds)


def find_consumers(index: ComparisonIndex, side: int, values: set[int]) -> set[int]:
    """Return the ops that read one of the values; module calls only if they are one operator."""
    flow, kinds = index.flows[side], index.kinds[side]
    levels = flow.trace.ops["level"]
    consumers: set[int] = set()
    for value in values:
        consumers.update(flow.consumers[value])
    return {op for op in consumers if levels.iat[op] == "op" or kinds[op] in GATE_COUNTS}


def is_routed(index: ComparisonIndex, finding: Finding, values: tuple[int, int]) -> bool:
    """Return whether experts are chosen next to a finding in the forward pass."""
    if finding.phase != FORWARD:
        return False
    for side in (0, 1):
        kinds = {index.kinds[side][op] for op in list_finding_ops(index, side, finding)}
        if _ROUTING_KINDS & (kinds | collect_consumer_kinds(index, side, values[side])):
            return True
    return False


def is_of_loss(index: ComparisonIndex, finding: Finding, values: tuple[int, int]) -> bool:
    """Return whether a value belongs to the loss, or follows from the loss's gradient alone.

    What is computed from it to the single number at the end reads no parameter on either side.
    """
    if finding.phase == FORWARD and all(
        _leads_to_number_alone(index, side, values[side]) for side in (0, 1)
    ):
        return True
    for side in (0, 1):
        ops = list_finding_ops(index, side, finding)
        if _is_near_loss(index, side, ops) or _follows_from_seed(index, side, values[side]):
            return True
    return False


def _is_near_loss(index: ComparisonIndex, side: int, ops: Sequence[int]) -> bool:
    """Return whether one of the ops belongs to a loss, or to the backward pass of a loss."""
    kinds = index.kinds[side]
    forward_ops = index.flows[side].trace.ops["forward"].to_numpy()
    op_kinds = {kinds[op].removeprefix("grad:") for op in ops}
    op_kinds |= {kinds[forward_ops[op]] for op in ops if forward_ops[op] >= 0}
    return bool(op_kinds & _LOSS_KINDS)


def _leads_to_number_alone(index: ComparisonIndex, side: int, value: int) -> bool:
    """Return whether few ops lead from a value to a number, and none of them reads a parameter."""
    flow = index.flows[side]
    phases, parameters = flow.phases, flow.list_column("parameter")
    front, has_number = [value], False
    for result in front:  # grows while it is read
        for op in find_consumers(index, side, {result}):
            if phases[op] != FORWARD:
                continue
            if any(parameters[operand] for operand in flow.reads[op]):
                return False
            has_number |= any(flow.sizes[output] == 1 for output in flow.writes[op])
            front += [output for output in flow.writes[op] if output not in front]
        if len(front) > _MAX_LOSS_VALUES:
            return False
    return has_number


def _follows_from_seed(index: ComparisonIndex, side: int, value: int) -> bool:
    """Return whether a gradient was computed from the gradient of one number: that of the loss.

    No other gradient on the way to it may agree. Then everything up to the start of the backward
    pass differs, so no layer changed a correct gradient.
    """
    flow = index.flows[side]
    phases = flow.list_column("phase")
    front = [value]
    has_seed = False
    for gradient in front:  # grows while it is read
        if phases[gradient] != BACKWARD or flow.producers[gradient] < 0:
            return False
        for input_value in flow.reads[int(flow.producers[gradient])]:
            if phases[input_value] != BACKWARD or input_value in front:
                continue
            if flow.sizes[input_value] == 1:
                has_seed = True
            elif input_value in index.agreed_classes[side]:
                return False
            else:
                front.append(input_value)
        if len(front) > _MAX_SEED_OPS:
            return False
    return has_seed
