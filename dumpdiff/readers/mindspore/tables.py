"""Build the op and tensor tables of a trace from the records and dataflow of a MindSpore dump."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...model.arrays import AnyArray
from ...model.dtypes import is_floating
from ...model.trace import BACKWARD, OPTIMIZER, Problem, build_op_table, build_tensor_table
from . import op_types
from .communications import build_communications
from .file_names import PARAMETER, encode_op_name
from .graph import Dataflow, GraphOp, Slot, find_overwritten_outputs, find_updates
from .join import Join
from .nodes import Output, Parameter
from .phases import assign_phases
from .record import Record, count_elements
from .record_columns import RecordColumns, list_record_columns
from .records import CSV, Records
from .unlinked_rows import UnlinkedRows, build_unlinked_rows, format_op_name

#: Share of the records that may have another type than in the graph before that is a property of
#: the recorder (Ascend's internal formats pad tensors), and no damage of single records.
_MAX_MISTYPED_SHARE = 0.01

_OpKey = tuple[str, int]  #: encoded op name, occurrence
_SlotRecords = dict[tuple[str, int], Record]  #: (input or output, slot) -> record, of one op


class _Op(NamedTuple):
    name: str
    kind: str
    phase: str = "forward"
    scope: str = ""
    recomputed: bool = False
    source: str = ""
    stack: str = ""


class _Tensor(NamedTuple):
    op: int
    slot: str
    slot_kind: str
    dtype: str
    shape: tuple[int, ...] | None
    size: int
    file: str
    row: int  #: row of the csv, -1 if none
    parameter: str = ""
    source_tensor: int = -1
    trusted: bool = True
    constant: bool = False
    values: tuple[float, ...] | None = None  #: values of a constant
    content: int = 0  #: fingerprint of the file, 0 if none


class Tables(NamedTuple):
    """The tables of a trace, and what came up while they were built."""

    ops: pd.DataFrame
    tensors: pd.DataFrame
    n_matched: int  #: records whose op is in the graph
    problems: list[Problem]  #: records that are not of the type that the graph gives
    communications: pd.DataFrame


def build_tables(
    records: Records, flow: Dataflow | None, join: Join | None, device: str = ""
) -> Tables:
    """Return the op table and the tensor table. ``device`` is that of the run, '' if unknown.

    Parameters and graph inputs come first, then the ops of the graph in topological order (once for
    each recorded run), then the ops that are not in the graph, by time.
    """
    rows = _Rows(records)
    n_matched = 0
    if flow is None or join is None:
        rows.add_unlinked_ops(records.build_columns(), parameters_first=True)
    else:
        rows.add_records(records)
        phases = assign_phases(flow)
        full_names = {encode_op_name(name): name for name in flow.parameters}
        rows.add_parameters(full_names, flow, trusted=OPTIMIZER not in phases)
        _GraphRows(rows, flow, join, phases, device).add_ops()
        pending = [record for op_records in rows.pending.values() for record in op_records]
        n_matched = len(records.places) - len(pending)
        rows.add_unlinked_ops(list_record_columns(pending), parameters_first=False)
    return Tables(
        rows.build_op_table(),
        rows.build_tensor_table(),
        n_matched,
        rows.list_problems(),
        build_communications(rows.communications),
    )


class _Rows:
    """The rows of both tables, as they are added."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.ops: list[_Op] = []
        self.tensors: list[_Tensor] = []
        self.gradients: dict[int, str] = {}  #: tensor id -> the parameter whose gradient it is
        #: op id -> attributes, of each communication
        self.communications: list[tuple[int, tuple[tuple[str, str], ...]]] = []
        self.n_typed = 0  #: records whose type the graph gives
        self.mistyped: list[Problem] = []  #: one for each record of another type
        self.updates: dict[str, int] = {}  #: parameter -> tensor id of its value after the step
        #: parameter -> what was recorded of it at the end of the step
        self.final_records: dict[str, Record] = {}
        #: records of the ops without rows so far
        self.pending: defaultdict[_OpKey, list[Record]] = defaultdict(list)
        self.unlinked_rows = UnlinkedRows({}, {})

    def add_records(self, records: Records) -> None:
        """Add the records of all ops to those without rows."""
        for (name, _, _, occurrence), record in records.places.items():
            self.pending[name, occurrence].append(record)

    def add_parameters(self, full_names: dict[str, str], flow: Dataflow, trusted: bool) -> None:
        """Add recorded parameters and graph inputs.

        They were written at the end of the step. So a weight is ``trusted`` as what the step began
        with only without an optimizer, and if no op updates it.
        """
        updated_parameters = _list_updated_parameters(flow)
        parameter_keys = [
            key for key, op_records in self.pending.items() if op_records[0].kind == PARAMETER
        ]
        for key in parameter_keys:
            encoded_name, occurrence = key
            name = full_names.get(encoded_name, encoded_name)
            parameter = flow.parameters.get(name)
            if parameter is None:
                continue
            self.ops.append(_Op(format_op_name(name, occurrence), PARAMETER))
            is_weight = _may_be_weight(parameter)
            output = Output(parameter.dtype, parameter.shape)
            for record in self.pending.pop(key):
                tensor = self.make_tensor("output", record.slot, record, output)
                is_before_step = (trusted or not is_weight) and name not in updated_parameters
                tensor = tensor._replace(
                    parameter=name if is_weight else "", trusted=is_before_step
                )
                self.tensors.append(tensor)
                self.final_records[name] = record

    def add_unlinked_ops(self, columns: RecordColumns, *, parameters_first: bool) -> None:
        """Add the ops that are not in the graph, after all others."""
        statistics = self.records.statistics
        rows = build_unlinked_rows(columns, statistics, parameters_first=parameters_first)
        rows.tensors["op"] = rows.tensors["op"] + len(self.ops)
        self.unlinked_rows = rows

    def make_tensor(
        self, io: str, index: int, record: Record | None, output: Output | None
    ) -> _Tensor:
        """Return a row for the last op.

        The graph's shape is used if its size is the recorded one: a reshape is dumped with its
        input's shape.
        """
        op, slot = len(self.ops) - 1, f"{io}.{index}"
        dtype, shape = output if output is not None else ("", None)
        size = math.prod(shape) if shape is not None else -1
        if record is None:
            return _Tensor(op, slot, io, dtype, shape, size, "", -1)
        statistics = self.records.statistics
        n_bytes = -1
        if statistics is not None and record.row >= 0:
            n_bytes = int(statistics.bytes[record.row])
        recorded_size = count_elements(record.shape, record.dtype, n_bytes)
        has_other_size = recorded_size not in (-1, size)
        has_other_dtype = bool(dtype and record.dtype) and dtype != record.dtype
        if output is not None:
            self.n_typed += 1
        if output is not None and shape is not None and (has_other_size or has_other_dtype):
            recorded_type = f"{record.dtype} {record.shape}"
            message = f"{slot} holds {recorded_type}, the graph has {dtype} {shape}"
            file = record.file or CSV
            name = self.ops[-1].name
            self.mistyped.append(Problem(file, f"{name} {message}", op=name, weakens=True))
        if shape is None or has_other_size:
            shape, size = record.shape, recorded_size
        content = record.hash_content()
        dtype = record.dtype or dtype
        return _Tensor(op, slot, io, dtype, shape, size, record.file, record.row, content=content)

    def list_problems(self) -> list[Problem]:
        """Return the records that are not of the type that the graph gives."""
        n_mistyped = len(self.mistyped)
        if n_mistyped <= max(1, _MAX_MISTYPED_SHARE * self.n_typed):
            return self.mistyped
        message = "another shape or dtype than in the graph: a format of the device, or another run"
        return [Problem("graphs", message, count=n_mistyped)]

    def build_op_table(self) -> pd.DataFrame:
        columns = _transpose(self.ops, _Op._fields)
        return build_op_table(_append_columns(columns, self.unlinked_rows.ops, _Op._field_defaults))

    def build_tensor_table(self) -> pd.DataFrame:
        listed_columns = _transpose(self.tensors, _Tensor._fields)
        constants = listed_columns.pop("values")
        columns = _append_columns(
            listed_columns, self.unlinked_rows.tensors, _Tensor._field_defaults
        )
        row = np.asarray(columns.pop("row"), dtype=np.int64)
        statistics = self.records.statistics
        numbers = {name: np.full(len(row), np.nan) for name in ("max", "min", "mean", "norm")}
        nonfinite = np.full(len(row), -1, dtype=np.int8)
        hashes = np.full(len(row), "", dtype=object)
        if statistics is not None:
            has_row = row >= 0
            for name, column in numbers.items():
                column[has_row] = getattr(statistics, name)[row[has_row]]
            nonfinite[has_row] = statistics.nonfinite[row[has_row]]
            hashes[has_row] = statistics.hash[row[has_row]]
        for tensor, values in enumerate(constants):
            if values:
                _fill_statistics(numbers, tensor, np.asarray(values, dtype=np.float64))
                nonfinite[tensor] = not np.isfinite(values).all()
        gradient_of = np.full(len(row), "", dtype=object)
        for tensor, parameter in self.gradients.items():
            if tensor >= 0:
                gradient_of[tensor] = parameter
        update_of = np.full(len(row), "", dtype=object)
        for parameter, tensor in self.updates.items():
            update_of[tensor] = parameter
        return build_tensor_table(
            {
                **columns,
                **numbers,
                "nonfinite": nonfinite,
                "hash": hashes,
                "gradient_of": gradient_of,
                "update_of": update_of,
            }
        )


class _GraphRows:
    """Adds every executed op of a graph, as often as it was recorded, with all its slots.

    An op that overwrites its inputs (Adam, Assign, a batch norm's running statistics) is dumped
    after it ran: the file of such an input holds the new value. It is added as an output of the op.
    The op's recorded outputs are stale memory and are left out, unless it computes others, too.
    """

    def __init__(
        self, rows: _Rows, flow: Dataflow, join: Join, phases: Sequence[str], device: str
    ) -> None:
        self.rows, self.flow, self.join, self.phases = rows, flow, join, phases
        self.device = device
        self.overwritten = find_overwritten_outputs(flow)
        #: (op, output) with a consumer in the graph
        self.consumed = {(slot.op, slot.output) for op in flow.ops for slot in op.op_inputs}
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
            tensor = rows.make_tensor("input", index, record, self._get_type(slot))
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
            tensor = rows.make_tensor("output", index, slot_records.get(("output", index)), output)
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
        rows.tensors.append(rows.make_tensor("output", index, record, self._get_type(slot)))

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

    def _get_type(self, slot: Slot) -> Output | None:
        """Return dtype and shape of the tensor in a slot, as the graph gives them."""
        if slot.is_op_output:
            outputs = self.flow.ops[slot.op].outputs
            return outputs[slot.output] if slot.output < len(outputs) else None
        parameter = self.flow.parameters.get(slot.parameter)
        if parameter is not None:
            return Output(parameter.dtype, parameter.shape)
        if slot.constant is not None:
            return Output(slot.constant.dtype, slot.constant.shape)
        return None

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
        return _may_be_weight(self.flow.parameters.get(parameter))

    def _is_gradient(self, tensor: _Tensor, slot: Slot, parameter_name: str) -> bool:
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
        value_type = self._get_type(slot)
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
                source_type = self._get_type(source)
                has_shape = source_type is not None and source_type.shape == value_type.shape
                if has_shape and source not in visited:
                    visited.add(source)
                    todo.append(source)
        return results.pop() if len(results) == 1 else slot


def _list_updated_parameters(flow: Dataflow) -> set[str]:
    """Return the parameters that some op of the graph overwrites."""
    names: set[str] = set()
    for op in flow.ops:
        names.update((op.inputs[index] or Slot()).parameter for index in find_updates(op))
    return names - {""}


def _may_be_weight(parameter: Parameter | None) -> bool:
    return parameter is None or parameter.is_weight is not False


def _make_op(op: GraphOp, phase: str, occurrence: int) -> _Op:
    places, lines = [], []
    for file, number, code in op.stack:
        place = f"{file.rsplit('/', 1)[-1]}:{number}"
        places.append(place)
        lines.append(f"{place} {code}")
    return _Op(
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


def _may_be_updated(slot: int, updated_inputs: frozenset[int] | None) -> bool:
    return updated_inputs is None or slot in updated_inputs


def _list_slots(count: int, io: str, slot_records: _SlotRecords) -> list[int]:
    """Return the slots of the graph, and any further slots that were recorded."""
    extra_slots = [slot for record_io, slot in slot_records if record_io == io and slot >= count]
    return [*range(count), *sorted(extra_slots)]


def _fill_statistics(numbers: dict[str, NDArray[Any]], tensor: int, values: NDArray[Any]) -> None:
    """Set the statistics of a constant where none were recorded."""
    with np.errstate(all="ignore"):
        statistics = {
            "max": values.max(),
            "min": values.min(),
            "mean": values.mean(),
            "norm": np.linalg.norm(values),
        }
    for name, column in numbers.items():
        if np.isnan(column[tensor]):
            column[tensor] = statistics[name]


def _transpose(rows: Sequence[tuple[Any, ...]], names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the columns of the rows by name."""
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in names]
    return dict(zip(names, columns, strict=True))


def _append_columns(
    listed_columns: dict[str, list[Any]],
    columns: Mapping[str, AnyArray],
    defaults: Mapping[str, Any],
) -> dict[str, AnyArray]:
    """Return columns, each followed by a second one, or by the default of a second one.

    Only columns that the first ones have are returned.
    """
    n_rows = len(next(iter(columns.values()), ()))
    joined_columns: dict[str, AnyArray] = {}
    for name, values in listed_columns.items():
        appended = columns[name] if name in columns else np.full(n_rows, defaults[name])
        if values:
            listed = np.fromiter(values, dtype=object, count=len(values))
            joined_columns[name] = np.concatenate([listed, appended.astype(object)])
        else:
            joined_columns[name] = appended
    return joined_columns
