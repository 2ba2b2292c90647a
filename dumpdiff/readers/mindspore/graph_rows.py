"""Add the executed ops of a MindSpore graph to the rows of the tables."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.dtypes import is_floating
from ...model.trace import BACKWARD, OPTIMIZER
from . import op_types
from .graph import (
    Dataflow,
    GraphOp,
    Slot,
    find_overwritten_outputs,
    find_partial_views,
    find_updates,
    get_slot_type,
)
from .join import Join
from .record import Record
from .rows import OpRow, Rows, TensorRow, may_be_weight
from .unlinked_rows import format_op_name

_SlotRecords = dict[tuple[str, int], Record]  #: (input or output, slot) -> record, of one op


class GraphRows:
    """Adds every executed op of a graph, as often as it was recorded, with all its slots.

    An op that overwrites its inputs (Adam, Assign, a batch norm's running statistics) is dumped
    after it ran: the file of such an input holds the new value. It is added as an output of the op.
    The op's recorded outputs are stale memory and are left out, unless it computes others, too.

    What is dumped of a view of a part of its memory may be another part. Such a record is left out;
    the slot remains, because the dataflow leads through it.
    """

    def __init__(
        self, rows: Rows, flow: Dataflow, join: Join, phases: Sequence[str], device: str
    ) -> None:
        self.rows, self.flow, self.join, self.phases = rows, flow, join, phases
        self.device = device
        self.overwritten = find_overwritten_outputs(flow)
        #: (op, output) with a consumer in the graph
        self.consumed = {(slot.op, slot.output) for op in flow.ops for slot in op.op_inputs}
        #: (op, output) whose records are those of other numbers
        self.misread_views = (
            find_partial_views(flow) if op_types.dumps_start_of_views(device) else frozenset()
        )
        self.n_runs = dict.fromkeys(join.names, 1)  #: how often an op was recorded, at least once
        for name, occurrence in rows.pending:
            if name in self.n_runs:
                self.n_runs[name] = max(self.n_runs[name], occurrence + 1)
        #: name of a parameter -> its tensor
        self.parameters = {
            rows.ops[tensor.op].name: index for index, tensor in enumerate(rows.tensors)
        }
        #: parameter -> name of the last op that updates it
        self.last_updates = {
            (op.inputs[index] or Slot()).parameter: op.name
            for op in flow.ops
            for index in find_updates(op)
        }
        #: (op, occurrence, output) -> tensor id
        self.output_tensors: dict[tuple[int, int, int], int] = {}

    def add_ops(self) -> None:
        """Add every op with its slots, one recorded run after the other."""
        ops = list(zip(self.flow.ops, self.join.names, self.phases, strict=True))
        for occurrence in range(max(self.n_runs.values(), default=0)):
            for number, (op, name, phase) in enumerate(ops):
                if occurrence >= self.n_runs[name]:
                    continue
                op_records = self.rows.pending.pop((name, occurrence), [])
                slot_records = {(record.io, record.slot): record for record in op_records}
                if op.attributes:
                    self.rows.communications.append((len(self.rows.ops), op.attributes))
                self.rows.ops.append(_make_op(op, phase, occurrence))
                self._add_inputs(op, phase, occurrence, slot_records)
                self._add_outputs(number, op, occurrence, slot_records)

    def _add_inputs(
        self, op: GraphOp, phase: str, occurrence: int, slot_records: _SlotRecords
    ) -> None:
        rows = self.rows
        updated_parameter = self._find_updated_parameter(op)
        updates = find_updates(op)
        for index in _list_slots(len(op.inputs), "input", slot_records):
            slot = op.inputs[index] if index < len(op.inputs) else None
            record = slot_records.get(("input", index))
            if slot is None and record is None:
                continue
            slot = slot or Slot()
            record = self._drop_misread_view(record, slot.op, slot.output)
            tensor = rows.make_tensor("input", index, record, get_slot_type(self.flow, slot))
            constant = slot.constant
            tensor = tensor._replace(
                parameter=slot.parameter if self._is_weight(slot.parameter) else "",
                source_tensor=self._find_producer(slot, occurrence),
                trusted=index not in updates and not self._is_stale(phase, slot),
                constant=constant is not None,
                values=constant.values if constant is not None else None,
            )
            if updated_parameter and self._is_gradient(tensor, slot, updated_parameter):
                gradient = self._find_backward_output(slot)
                producer = self._find_producer(gradient, occurrence)
                if gradient == slot:
                    rows.gradients[len(rows.tensors)] = updated_parameter
                rows.gradients[producer] = updated_parameter
            rows.tensors.append(tensor)

    def _is_stale(self, phase: str, slot: Slot) -> bool:
        """Whether an input is not what its producer computed.

        Another op may have updated it before it was dumped, or no kernel wrote it.
        """
        if not slot.is_op_output:
            return False
        if phase == OPTIMIZER and (slot.op, slot.output) in self.overwritten:
            return True
        kind = self.flow.ops[slot.op].kind
        return slot.output in op_types.find_unwritten_outputs(kind, self.device)

    def _drop_misread_view(self, record: Record | None, op: int, output: int) -> Record | None:
        """Return the record of an op's output, None if it holds other numbers of its memory."""
        if record is None or (op, output) not in self.misread_views:
            return record
        self.rows.n_misread_views += 1
        return None

    def _add_outputs(
        self, number: int, op: GraphOp, occurrence: int, slot_records: _SlotRecords
    ) -> None:
        rows = self.rows
        first_output = len(rows.tensors)
        updates = find_updates(op)
        unwritten_outputs = op_types.find_unwritten_outputs(op.kind, self.device)
        n_computed = len(op.outputs)
        if op_types.is_in_place(op.kind):
            n_computed = 0
            slot_records = {
                key: record for key, record in slot_records.items() if key[0] == "input"
            }
        for index in _list_slots(n_computed, "output", slot_records):
            self.output_tensors[number, occurrence, index] = len(rows.tensors)
            output = op.outputs[index] if index < len(op.outputs) else None
            record = self._drop_misread_view(slot_records.get(("output", index)), number, index)
            tensor = rows.make_tensor("output", index, record, output)
            is_unread_half = tensor.dtype == "float16" and (number, index) not in self.consumed
            if is_unread_half and self._computes_in_float32(op, first_output):
                tensor = tensor._replace(trusted=False)
            if index in unwritten_outputs:
                tensor = tensor._replace(trusted=False)
            rows.tensors.append(tensor)
        for index, updated_input in enumerate(updates, n_computed):
            self.output_tensors[number, occurrence, index] = len(rows.tensors)
            self._add_update(op, index, updated_input, slot_records)

    def _add_update(
        self, op: GraphOp, index: int, updated_input: int, slot_records: _SlotRecords
    ) -> None:
        """Add the new value of an input as an output of the op that overwrites it.

        If the input was not recorded, but is a parameter that no later op updates, it is what was
        recorded of the parameter at the end of the step.
        """
        rows = self.rows
        slot = op.inputs[updated_input] or Slot()
        parameter = self._find_parameter(slot)
        record = slot_records.get(("input", updated_input))
        if record is None and slot.parameter and self.last_updates.get(slot.parameter) == op.name:
            record = rows.final_records.get(slot.parameter)
        if parameter:
            rows.updates[parameter] = len(rows.tensors)
        rows.tensors.append(
            rows.make_tensor("output", index, record, get_slot_type(self.flow, slot))
        )

    def _computes_in_float32(self, op: GraphOp, first_output: int) -> bool:
        """Whether the op added last computes in float32.

        Seen on CPU: if such a result has no consumer in the graph, it is dumped as the half
        precision that the graph says, and the file holds half of the float32 memory under the wrong
        type.
        """
        if op.kind == "Cast":
            return False
        last_op = len(self.rows.ops) - 1
        input_tensors = self.rows.tensors[first_output - len(op.inputs) : first_output]
        floating_dtypes = set()
        for tensor in input_tensors:
            if tensor.op == last_op and is_floating(tensor.dtype):
                floating_dtypes.add(tensor.dtype)
        return floating_dtypes == {"float32"}

    def _find_producer(self, slot: Slot, occurrence: int) -> int:
        if not slot.is_op_output:
            return self.parameters.get(slot.parameter, -1)
        run = min(occurrence, self.n_runs[self.join.names[slot.op]] - 1)
        return self.output_tensors.get((slot.op, run, slot.output), -1)

    def _find_updated_parameter(self, op: GraphOp) -> str:
        """Return the parameter that an optimizer op updates, '' for other ops.

        It is the first input, or in fp16 training the input of a cast before it.
        """
        if not op.inputs or not op_types.is_optimizer(op.kind):
            return ""
        return self._find_parameter(_get_first_input(op))

    def _find_parameter(self, slot: Slot) -> str:
        """Return the parameter in a slot, or in fp16 training the one whose cast is in it."""
        if slot.is_op_output:
            producer = self.flow.ops[slot.op]
            if producer.kind == "Cast" and producer.inputs:
                slot = _get_first_input(producer)
        return slot.parameter

    def _is_weight(self, parameter: str) -> bool:
        return may_be_weight(self.flow.parameters.get(parameter))

    def _is_gradient(self, tensor: TensorRow, slot: Slot, parameter_name: str) -> bool:
        """Whether an input of an optimizer op is the gradient of the parameter.

        It is the input that is computed, not updated by the op, and has the shape of the parameter.
        """
        parameter = self.flow.parameters.get(parameter_name)
        if parameter is None or tensor.shape != parameter.shape:
            return False
        is_computed = slot.is_op_output and tensor.source_tensor >= 0
        return is_computed and tensor.trusted

    def _find_backward_output(self, slot: Slot) -> Slot:
        """Return the gradient before the optimizer scales, clips or decays it.

        It is the only output of the backward pass of that shape that the value is computed from;
        the value itself if there is no such output, or several.
        """
        value_type = get_slot_type(self.flow, slot)
        if value_type is None:
            return slot
        results, visited, todo = set(), {slot}, [slot]
        while todo:
            current = todo.pop()
            phase = self.phases[current.op]
            if phase == BACKWARD:
                results.add(current)
            if phase != OPTIMIZER:  # a decay that is computed from the weight alone is forward
                continue
            for source in self.flow.ops[current.op].op_inputs:
                source_type = get_slot_type(self.flow, source)
                has_shape = source_type is not None and source_type.shape == value_type.shape
                if has_shape and source not in visited:
                    visited.add(source)
                    todo.append(source)
        return results.pop() if len(results) == 1 else slot


def _make_op(op: GraphOp, phase: str, occurrence: int) -> OpRow:
    places, lines = [], []
    for file, number, code in op.stack:
        place = f"{file.rsplit('/', 1)[-1]}:{number}"
        places.append(place)
        lines.append(f"{place} {code}")
    return OpRow(
        format_op_name(op.name, occurrence),
        op.kind,
        phase,
        op_types.extract_scope(op.name),
        op_types.is_recomputed(op.name),
        places[0] if places else "",
        "\n".join(lines),
    )


def _get_first_input(op: GraphOp) -> Slot:
    return op.inputs[0] or Slot()


def _list_slots(count: int, io: str, slot_records: _SlotRecords) -> list[int]:
    """Return the slots of the graph, and any further slots that were recorded."""
    extra_slots = [slot for record_io, slot in slot_records if record_io == io and slot >= count]
    return [*range(count), *sorted(extra_slots)]
