"""Steps of a recurrence that one side has as one op each, and the other as many small ones.

From a fault in the first step on, all later steps differ, so the ops of one side may be paired with
those of another step. The first step is known all the same: what its op reads still agrees.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..model.dtypes import is_floating
from ..model.trace import FORWARD
from ..operators.recurrence import GATE_COUNTS
from .comparison_index import ComparisonIndex, ValuePair, find_whole_tensor

#: Kind of a recurrent op -> kind of the last op of one step that is written out: o tanh(c) of an
#: LSTM, the sum of old state and new content of a GRU, the activation of a plain RNN.
_LAST_KINDS = {"lstm": ("mul",), "gru": ("add", "sub", "mul"), "rnn": ("tanh", "relu")}
#: Values of the other side that are tried: those of the first steps.
_MAX_VALUES = 12
#: Ops from a value inside of a step to the state that the step leaves.
_MAX_STEPS_TO_AGREEMENT = 2


def find_step_pairs(index: ComparisonIndex) -> Iterator[ValuePair]:
    """Yield the output of the first recurrent op that diverges, with values of the other side."""
    for side, value, other_values in iterate_step_values(index):
        flow, other_flow = index.flows[side], index.flows[1 - side]
        for other_value in other_values:
            tensors = [find_whole_tensor(flow, value), find_whole_tensor(other_flow, other_value)]
            if min(tensors) < 0:
                continue
            values = [value, other_value]
            if side == 1:
                values.reverse()
                tensors.reverse()
            yield ValuePair((values[0], values[1]), (tensors[0], tensors[1]))


def iterate_step_values(index: ComparisonIndex) -> Iterator[tuple[int, int, list[int]]]:
    """Yield side, output of its first recurrent op that diverges, and values of the other side.

    The values may be the output of a first step that is written out.
    """
    for side in (0, 1):
        op = _find_first_divergent_op(index, side)
        if op is None:
            continue
        flow = index.flows[side]
        value = flow.writes[op][0]
        size = int(flow.sizes[value])
        yield side, value, _list_step_values(index, 1 - side, index.kinds[side][op], size)


def list_agreeing_operands(index: ComparisonIndex) -> Iterator[tuple[int, int]]:
    """Yield (side, value) of agreeing values that the first divergent recurrent op may have read.

    They have the sizes of what it reads and returns: first states, and weights of other layers.
    """
    for side in (0, 1):
        op = _find_first_divergent_op(index, side)
        if op is None:
            continue
        flow, other_flow = index.flows[side], index.flows[1 - side]
        sizes = {int(flow.sizes[value]) for value in (*flow.reads[op], *flow.writes[op])}
        phases = other_flow.list_column("phase")
        for value in sorted(index.agreed_classes[1 - side]):
            if int(other_flow.sizes[value]) in sizes and phases[value] == FORWARD:
                yield 1 - side, value


def _find_first_divergent_op(index: ComparisonIndex, side: int) -> int | None:
    """Return the first recurrent op whose inputs agree and whose output does not."""
    flow, kinds = index.flows[side], index.kinds[side]
    agreed_values = index.agreed_classes[side]
    phases = flow.trace.ops["phase"].to_numpy()
    for op, kind in enumerate(kinds):
        if kind not in GATE_COUNTS or phases[op] != FORWARD or not flow.writes[op]:
            continue
        if flow.writes[op][0] in agreed_values:
            continue
        has_agreeing_inputs = all(
            value in agreed_values or flow.producers[value] < 0 for value in flow.reads[op]
        )
        return op if has_agreeing_inputs else None
    return None


def _list_step_values(index: ComparisonIndex, side: int, kind: str, size: int) -> list[int]:
    """Return the first values that may be the output of a step, in execution order."""
    flow = index.flows[side]
    phases, dtypes = flow.list_column("phase"), flow.list_column("dtype")
    values = []
    for value in range(len(flow.sizes)):
        if flow.sizes[value] != size or value in index.agreed_classes[side]:
            continue
        if _leads_to_agreement(index, side, value):
            continue
        is_last_op = index.get_producer_kind(side, value) in (*_LAST_KINDS[kind], kind)
        if is_last_op and phases[value] == FORWARD and is_floating(str(dtypes[value])):
            values.append(value)
    return sorted(values, key=lambda value: int(flow.producers[value]))[:_MAX_VALUES]


def _leads_to_agreement(index: ComparisonIndex, side: int, value: int) -> bool:
    """Return whether an op that reads the value, or one after it, computes a value that agrees."""
    flow = index.flows[side]
    front = [value]
    for _ in range(_MAX_STEPS_TO_AGREEMENT):
        front = [
            written_value
            for front_value in front
            for consumer in flow.users[front_value]
            for written_value in flow.writes[consumer]
        ]
        if any(written_value in index.agreed_classes[side] for written_value in front):
            return True
    return False
