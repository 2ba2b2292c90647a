"""From records and dataflow to the op and tensor tables of a trace."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..trace import OPTIMIZER, op_table, tensor_table
from . import mindspore_kinds as kinds
from .mindspore_graph import Dataflow, GraphOp, Slot
from .mindspore_join import Join
from .mindspore_names import PARAMETER, encode
from .mindspore_nodes import Output
from .mindspore_records import Record, Records, size_of


class _Op(NamedTuple):
    name: str
    kind: str
    phase: str
    scope: str
    recomputed: bool
    source: str
    stack: str


class _Tensor(NamedTuple):
    op: int
    slot: str
    role: str
    dtype: str
    shape: tuple[int, ...] | None
    size: int
    constant: bool
    parameter: str
    producer: int
    trusted: bool
    file: str
    row: int  #: of the csv
    values: tuple[float, ...] | None  #: of a constant


@dataclass
class _Rows:
    ops: list[_Op] = field(default_factory=list)
    tensors: list[_Tensor] = field(default_factory=list)
    gradients: dict[int, str] = field(default_factory=dict)  #: tensor id -> the parameter it is the gradient of


def tables(records: Records, flow: Dataflow | None, join: Join | None) -> tuple[pd.DataFrame, pd.DataFrame, int]:
    """The op table, the tensor table, and how many records found their op in the graph."""
    rows = _Rows()
    ops: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for (name, _, _, occurrence), record in records.places.items():
        ops[name, occurrence].append(record)
    phases = _phases(flow) if flow is not None else []
    optimizer = OPTIMIZER in phases or any(
        kinds.is_optimizer(kept[0].kind, kept[0].name) for kept in ops.values() if kept[0].kind != PARAMETER
    )
    parameters = _parameter_rows(rows, ops, records, flow, trusted=not optimizer)
    matched = sum(len(ops[key]) for key in parameters) if flow is not None else 0
    for key in parameters:
        del ops[key]
    if flow is not None and join is not None:
        matched += _graph_rows(rows, ops, records, flow, join, phases)
    for (_, occurrence), kept in sorted(ops.items(), key=lambda item: min(record.time for record in item[1])):
        _record_rows(rows, kept, occurrence, records)
    return _op_table(rows), _tensor_table(rows, records), matched


def _phases(flow: Dataflow) -> list[str]:
    """Phase of every op; what reads a backward op's output belongs to the backward pass too."""
    phases: list[str] = []
    backward: list[bool] = []
    for op in flow.ops:
        reads = tuple(slot.parameter for slot in op.inputs if slot is not None and slot.parameter)
        optimizer = kinds.is_optimizer(op.kind, kinds.scope(op.name), reads)
        after = any(slot is not None and slot.op >= 0 and backward[slot.op] for slot in op.inputs)
        phases.append(kinds.phase(op.kind, op.name, optimizer, after))
        backward.append((after or kinds.is_backward(op.kind, op.name)) and not kinds.is_recomputed(op.name))
    return phases


_Key = tuple[str, int]  #: encoded op name, occurrence
_Kept = dict[_Key, list[Record]]


def _parameter_rows(rows: _Rows, ops: _Kept, records: Records, flow: Dataflow | None, trusted: bool) -> list[_Key]:
    """Parameters and graph inputs, first as everything reads them; written when the step ended, so after any update."""
    full = {encode(name): name for name in flow.parameters} if flow is not None else {}
    keys = [key for key, kept in ops.items() if kept[0].kind == PARAMETER]
    for name, occurrence in keys:
        parameter = full.get(name, name)
        known = flow.parameters.get(parameter) if flow is not None else None
        weight = known is None or known.weight is not False
        rows.ops.append(_Op(_numbered(parameter, occurrence), PARAMETER, "forward", "", False, "", ""))
        for record in ops[name, occurrence]:
            output = Output(known.dtype, known.shape) if known is not None else None
            # an input of the graph is not updated by the optimizer
            believed = trusted or not weight
            rows.tensors.append(
                _tensor(rows, record, "output", record.slot, records, output, parameter if weight else "", -1, believed)
            )
    return keys


def _graph_rows(rows: _Rows, ops: _Kept, records: Records, flow: Dataflow, join: Join, phases: list[str]) -> int:
    """Every executed op of the graph, as often as it was recorded, with all its slots; returns the records used."""
    matched = 0
    runs = dict.fromkeys(join.names, 1)
    for name, occurrence in ops:
        if name in runs:
            runs[name] = max(runs[name], occurrence + 1)
    inputs = {rows.ops[tensor.op].name: at for at, tensor in enumerate(rows.tensors)}
    written: dict[tuple[int, int, int], int] = {}  # op of the graph, occurrence, output -> tensor id
    for occurrence in range(max(runs.values(), default=0)):
        for number, (op, name, phase) in enumerate(zip(flow.ops, join.names, phases, strict=True)):
            if occurrence >= runs[name]:
                continue
            kept = {(record.io, record.slot): record for record in ops.pop((name, occurrence), [])}
            matched += len(kept)
            rows.ops.append(_graph_op(op, phase, occurrence))
            _input_rows(rows, op, kept, records, flow, written, inputs, occurrence, runs, join)
            for at in range(max(len(op.outputs), 1 + max((slot for io, slot in kept if io == "output"), default=-1))):
                written[number, occurrence, at] = len(rows.tensors)
                output = op.outputs[at] if at < len(op.outputs) else None
                trusted = not kinds.writes_in_place(op.kind)
                record = kept.get(("output", at))
                rows.tensors.append(_tensor(rows, record, "output", at, records, output, "", -1, trusted))
    return matched


def _input_rows(
    rows: _Rows,
    op: GraphOp,
    kept: Mapping[tuple[str, int], Record],
    records: Records,
    flow: Dataflow,
    written: Mapping[tuple[int, int, int], int],
    parameters: Mapping[str, int],
    occurrence: int,
    runs: Mapping[str, int],
    join: Join,
) -> None:
    updated = kinds.updated_inputs(op.kind)
    target = next((slot.parameter for slot in op.inputs if slot is not None and slot.parameter), "")
    for at in range(max(len(op.inputs), 1 + max((slot for io, slot in kept if io == "input"), default=-1))):
        slot = op.inputs[at] if at < len(op.inputs) else None
        record = kept.get(("input", at))
        if slot is None and record is None:
            continue
        slot = slot or Slot()
        known = flow.parameters.get(slot.parameter)
        producer, output = -1, None
        if slot.op >= 0:
            made = (slot.op, min(occurrence, runs[join.names[slot.op]] - 1), slot.output)
            producer = written.get(made, -1)
            outputs = flow.ops[slot.op].outputs
            output = outputs[slot.output] if slot.output < len(outputs) else None
        elif known is not None:
            producer, output = parameters.get(slot.parameter, -1), Output(known.dtype, known.shape)
        elif slot.constant is not None:
            output = Output(slot.constant.dtype, slot.constant.shape)
        changed = at in updated if updated is not None else bool(slot.parameter)
        name = slot.parameter if known is None or known.weight is not False else ""
        row = _tensor(rows, record, "input", at, records, output, name, producer, not changed)
        if slot.constant is not None:
            row = row._replace(constant=True, values=slot.constant.values)
        if target and kinds.is_optimizer(op.kind) and not changed and slot.op >= 0 and _same(row, flow, target):
            rows.gradients[len(rows.tensors)] = target
            if producer >= 0:
                rows.gradients[producer] = target
        rows.tensors.append(row)


def _same(row: _Tensor, flow: Dataflow, parameter: str) -> bool:
    known = flow.parameters.get(parameter)
    return known is not None and row.shape is not None and row.shape == known.shape


def _record_rows(rows: _Rows, kept: list[Record], occurrence: int, records: Records) -> None:
    """An op that no graph knows: what its file names say is all there is."""
    first = kept[0]
    name = first.spelled or first.name
    optimizer = kinds.is_optimizer(first.kind, name)
    phase = kinds.phase(first.kind, name, optimizer)
    scope = kinds.scope(first.spelled) if first.spelled else ""
    rows.ops.append(_Op(_numbered(name, occurrence), first.kind, phase, scope, kinds.is_recomputed(name), "", ""))
    updated = kinds.updated_inputs(first.kind)
    for record in sorted(kept, key=lambda record: (record.io, record.slot)):
        changed = updated is None or record.slot in updated
        trusted = not changed if record.io == "input" else not kinds.writes_in_place(first.kind)
        rows.tensors.append(_tensor(rows, record, record.io, record.slot, records, None, "", -1, trusted))


def _graph_op(op: GraphOp, phase: str, occurrence: int) -> _Op:
    frames = op.stack
    places = [f"{file.rsplit('/', 1)[-1]}:{line}" for file, line, _ in frames]
    source = places[0] if places else ""
    stack = "\n".join(f"{place} {code}" for place, (_, _, code) in zip(places, frames, strict=True))
    name = _numbered(op.name, occurrence)
    return _Op(name, op.kind, phase, kinds.scope(op.name), kinds.is_recomputed(op.name), source, stack)


def _numbered(name: str, occurrence: int) -> str:
    return f"{name}#{occurrence + 1}" if occurrence else name


def _tensor(
    rows: _Rows,
    record: Record | None,
    io: str,
    at: int,
    records: Records,
    output: Output | None,
    parameter: str,
    producer: int,
    trusted: bool,
) -> _Tensor:
    """A row of the last op; the graph's shape is taken where it fits, since reshapes are dumped with their input's."""
    dtype, shape = (output.dtype, output.shape) if output is not None else ("", None)
    size = math.prod(shape) if shape is not None else -1
    if record is not None:
        recorded = size_of(record, records.statistics)
        if shape is None or (recorded >= 0 and recorded != size):
            shape = record.shape
        dtype, size = record.dtype or dtype, recorded if recorded >= 0 else size
    file, row = (record.file, record.row) if record is not None else ("", -1)
    return _Tensor(
        len(rows.ops) - 1, f"{io}.{at}", io, dtype, shape, size, False, parameter, producer, trusted, file, row, None
    )


def _op_table(rows: _Rows) -> pd.DataFrame:
    return op_table(dict(zip(_Op._fields, _columns(rows.ops, len(_Op._fields)), strict=True)))


def _tensor_table(rows: _Rows, records: Records) -> pd.DataFrame:
    columns = dict(zip(_Tensor._fields, _columns(rows.tensors, len(_Tensor._fields)), strict=True))
    row = np.asarray(columns.pop("row"), dtype=np.int64)
    values = columns.pop("values")
    statistics = records.statistics
    table = {name: np.full(len(row), np.nan) for name in ("max", "min", "mean", "norm")}
    nonfinite = np.full(len(row), -1, dtype=np.int8)
    hashes = [""] * len(row)
    if statistics is not None:
        has = row >= 0
        for name, column in table.items():
            column[has] = getattr(statistics, name)[row[has]]
        nonfinite[has] = statistics.nonfinite[row[has]]
        hashes = [statistics.hash[at] if at >= 0 else "" for at in row.tolist()]
    for at, constant in enumerate(values):
        if constant and row[at] < 0:
            numbers = np.asarray(constant, dtype=np.float64)
            with np.errstate(all="ignore"):
                told = (numbers.max(), numbers.min(), numbers.mean(), np.sqrt(np.square(numbers).sum()))
            for column, value in zip(table.values(), told, strict=True):
                column[at] = value
            nonfinite[at] = not np.isfinite(numbers).all()
    gradient_of = [""] * len(row)
    for at, parameter in rows.gradients.items():
        gradient_of[at] = parameter
    return tensor_table({**columns, **table, "nonfinite": nonfinite, "hash": hashes, "gradient_of": gradient_of})


def _columns(rows: Iterable[tuple[object, ...]], width: int) -> list[list[object]]:
    columns = [list(column) for column in zip(*rows, strict=True)]
    return columns or [[] for _ in range(width)]
