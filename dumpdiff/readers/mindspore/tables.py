"""From records and dataflow to the op and tensor tables of a trace."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...model.dtypes import is_floating
from ...model.trace import OPTIMIZER, op_table, tensor_table
from . import op_types
from .file_names import PARAMETER, encode_op_name
from .graph import Dataflow, GraphOp, Slot, find_overwritten_outputs
from .join import Join
from .nodes import Output
from .phases import assign_phases
from .records import Record, Records, count_elements


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
    role: str
    dtype: str
    shape: tuple[int, ...] | None
    size: int
    file: str
    row: int  #: of the csv, -1 if none
    parameter: str = ""
    producer: int = -1
    trusted: bool = True
    constant: bool = False
    values: tuple[float, ...] | None = None  #: of a constant


def build_tables(
    records: Records, flow: Dataflow | None, join: Join | None
) -> tuple[pd.DataFrame, pd.DataFrame, int]:
    """The op table, the tensor table, and how many records found their place in the graph.

    Parameters and graph inputs come first, then the ops of the graph in topological order (once per recorded run),
    then what the graph does not know, by time.
    """
    rows = _Rows(records)
    if flow is None or join is None:
        rows.add_parameters({}, None, trusted=not rows.optimizer_recorded())
        matched = 0
    else:
        op_phases = assign_phases(flow)
        rows.add_parameters(
            {encode_op_name(name): name for name in flow.parameters},
            flow,
            trusted=OPTIMIZER not in op_phases,
        )
        _GraphRows(rows, flow, join, op_phases).add()
        matched = len(records.places) - sum(len(kept) for kept in rows.left.values())
    rows.add_the_rest()
    return rows.op_table(), rows.tensor_table(), matched


class _Rows:
    """The rows of both tables as they grow."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.ops: list[_Op] = []
        self.tensors: list[_Tensor] = []
        self.gradients: dict[int, str] = {}  #: tensor id -> the parameter it is the gradient of
        self.left: defaultdict[tuple[str, int], list[Record]] = defaultdict(
            list
        )  #: (op, occurrence) without rows yet
        for (name, _, _, occurrence), record in records.places.items():
            self.left[name, occurrence].append(record)

    def optimizer_recorded(self) -> bool:
        """Judged by op types and names alone."""
        firsts = (kept[0] for kept in self.left.values())
        return any(
            op_types.is_optimizer(first.kind, first.name)
            for first in firsts
            if first.kind != PARAMETER
        )

    def add_parameters(self, full: dict[str, str], flow: Dataflow | None, trusted: bool) -> None:
        """Recorded parameters and graph inputs. They were written at the end of the step: a weight after its update."""
        for key in [key for key, kept in self.left.items() if kept[0].kind == PARAMETER]:
            name, occurrence = key
            parameter = full.get(name, name)
            known = flow.parameters.get(parameter) if flow is not None else None
            if flow is not None and known is None:
                continue
            weight = known is None or known.is_weight is not False
            self.ops.append(_Op(_numbered(parameter, occurrence), PARAMETER))
            for record in self.left.pop(key):
                row = self.tensor(
                    "output",
                    record.slot,
                    record,
                    Output(known.dtype, known.shape) if known else None,
                )
                self.tensors.append(
                    row._replace(
                        parameter=parameter if weight else "", trusted=trusted or not weight
                    )
                )

    def add_the_rest(self) -> None:
        """Ops that no graph knows: what their file names say is all there is."""
        for (_, occurrence), kept in sorted(
            self.left.items(), key=lambda item: min(record.time for record in item[1])
        ):
            first = kept[0]
            name = first.full_name or first.name
            phase = op_types.classify_phase(first.kind, name, op_types.is_optimizer(first.kind, name))
            scope = op_types.extract_scope(first.full_name)
            self.ops.append(
                _Op(
                    _numbered(name, occurrence),
                    first.kind,
                    phase,
                    scope,
                    op_types.is_recomputed(name),
                )
            )
            updated = op_types.find_updated_inputs(first.kind)
            in_place = op_types.is_in_place(first.kind)
            for record in sorted(kept, key=attrgetter("io", "slot")):
                stale = in_place if record.io == "output" else _in(record.slot, updated)
                row = self.tensor(record.io, record.slot, record, None)
                self.tensors.append(row._replace(trusted=False) if stale else row)
        self.left.clear()

    def tensor(self, io: str, at: int, record: Record | None, output: Output | None) -> _Tensor:
        """A row of the last op. The graph's shape is taken where it fits: reshapes are dumped with their input's."""
        op, slot = len(self.ops) - 1, f"{io}.{at}"
        dtype, shape = output if output is not None else ("", None)
        size = math.prod(shape) if shape is not None else -1
        if record is None:
            return _Tensor(op, slot, io, dtype, shape, size, "", -1)
        recorded = count_elements(record, self.records.statistics)
        if shape is None or recorded not in (-1, size):
            shape, size = record.shape, recorded
        return _Tensor(op, slot, io, record.dtype or dtype, shape, size, record.file, record.row)

    def op_table(self) -> pd.DataFrame:
        return op_table(_columns(self.ops, _Op._fields))

    def tensor_table(self) -> pd.DataFrame:
        columns = _columns(self.tensors, _Tensor._fields)
        row = np.asarray(columns.pop("row"), dtype=np.int64)
        values = columns.pop("values")
        statistics = self.records.statistics
        numbers = {name: np.full(len(row), np.nan) for name in ("max", "min", "mean", "norm")}
        nonfinite = np.full(len(row), -1, dtype=np.int8)
        hashes = [""] * len(row)
        if statistics is not None:
            has = row >= 0
            for name, column in numbers.items():
                column[has] = getattr(statistics, name)[row[has]]
            nonfinite[has] = statistics.nonfinite[row[has]]
            hashes = [statistics.hash[at] if at >= 0 else "" for at in row.tolist()]
        for at, constant in enumerate(values):
            if constant:
                _fill(numbers, at, np.asarray(constant, dtype=np.float64))
                nonfinite[at] = not np.isfinite(constant).all()
        gradient_of = [self.gradients.get(at, "") for at in range(len(row))]
        return tensor_table(
            {
                **columns,
                **numbers,
                "nonfinite": nonfinite,
                "hash": hashes,
                "gradient_of": gradient_of,
            }
        )


class _GraphRows:
    """Adds every executed op of a graph, as often as it was recorded, with all its slots."""

    def __init__(self, rows: _Rows, flow: Dataflow, join: Join, phases: Sequence[str]) -> None:
        self.rows, self.flow, self.join, self.phases = rows, flow, join, phases
        self.overwritten = find_overwritten_outputs(flow)
        self.read = {
            (slot.op, slot.output) for op in flow.ops for slot in op.inputs if slot is not None
        }
        self.runs = dict.fromkeys(join.names, 1)  #: how often an op was recorded, at least once
        for name, occurrence in rows.left:
            if name in self.runs:
                self.runs[name] = max(self.runs[name], occurrence + 1)
        self.parameters = {rows.ops[tensor.op].name: at for at, tensor in enumerate(rows.tensors)}
        self.written: dict[tuple[int, int, int], int] = {}  #: op, occurrence, output -> tensor id

    def add(self) -> None:
        ops = list(
            zip(range(len(self.flow.ops)), self.flow.ops, self.join.names, self.phases, strict=True)
        )
        for occurrence in range(max(self.runs.values(), default=0)):
            for number, op, name, phase in ops:
                if occurrence < self.runs[name]:
                    records = self.rows.left.pop((name, occurrence), [])
                    kept = {(record.io, record.slot): record for record in records}
                    self.rows.ops.append(_graph_op(op, phase, occurrence))
                    self._add_inputs(op, phase, occurrence, kept)
                    self._add_outputs(number, op, occurrence, kept)

    def _add_inputs(
        self, op: GraphOp, phase: str, occurrence: int, kept: dict[tuple[str, int], Record]
    ) -> None:
        rows, updated = self.rows, op_types.find_updated_inputs(op.kind)
        weight = self._optimized(op)
        for at in _slots(len(op.inputs), "input", kept):
            slot, record = op.inputs[at] if at < len(op.inputs) else None, kept.get(("input", at))
            if slot is None and record is None:
                continue
            slot = slot or Slot()
            row = rows.tensor("input", at, record, self._type(slot))
            stale = _in(at, updated) if updated is not None else bool(slot.parameter)
            stale = stale or (phase == OPTIMIZER and (slot.op, slot.output) in self.overwritten)
            constant = slot.constant
            row = row._replace(
                parameter=slot.parameter if self._is_weight(slot.parameter) else "",
                producer=self._producer(slot, occurrence),
                trusted=not stale,
                constant=constant is not None,
                values=constant.values if constant is not None else None,
            )
            if weight and self._is_gradient(row, slot, weight):
                rows.gradients[len(rows.tensors)] = rows.gradients[row.producer] = weight
            rows.tensors.append(row)

    def _add_outputs(
        self, number: int, op: GraphOp, occurrence: int, kept: dict[tuple[str, int], Record]
    ) -> None:
        rows, stale, first = self.rows, op_types.is_in_place(op.kind), len(self.rows.tensors)
        for at in _slots(len(op.outputs), "output", kept):
            self.written[number, occurrence, at] = len(rows.tensors)
            output = op.outputs[at] if at < len(op.outputs) else None
            row = rows.tensor("output", at, kept.get(("output", at)), output)
            wrong = stale or (
                row.dtype == "float16"
                and (number, at) not in self.read
                and self._is_wide(op, first)
            )
            rows.tensors.append(row._replace(trusted=False) if wrong else row)

    def _is_wide(self, op: GraphOp, end: int) -> bool:
        """The op last added computes in float32: seen on CPU, such a result that nobody in the graph reads is dumped as
        the half precision that the graph says, and the file holds half of the float32 memory under the wrong type.
        """
        inputs = self.rows.tensors[end - len(op.inputs) : end]
        floats = {
            row.dtype
            for row in inputs
            if row.op == len(self.rows.ops) - 1 and is_floating(row.dtype)
        }
        return op.kind != "Cast" and floats == {"float32"}

    def _type(self, slot: Slot) -> Output | None:
        """What the graph says of the tensor in a slot."""
        if slot.op >= 0:
            outputs = self.flow.ops[slot.op].outputs
            return outputs[slot.output] if slot.output < len(outputs) else None
        known = self.flow.parameters.get(slot.parameter)
        if known is not None:
            return Output(known.dtype, known.shape)
        return (
            Output(slot.constant.dtype, slot.constant.shape) if slot.constant is not None else None
        )

    def _producer(self, slot: Slot, occurrence: int) -> int:
        if slot.op < 0:
            return self.parameters.get(slot.parameter, -1)
        run = min(occurrence, self.runs[self.join.names[slot.op]] - 1)
        return self.written.get((slot.op, run, slot.output), -1)

    def _optimized(self, op: GraphOp) -> str:
        """The parameter that an optimizer op updates: its first input, maybe cast up from fp16; '' for other ops."""
        first = op.inputs[0] if op.inputs else None
        if first is None or not op_types.is_optimizer(op.kind):
            return ""
        if (
            first.op >= 0
            and self.flow.ops[first.op].kind == "Cast"
            and self.flow.ops[first.op].inputs
        ):
            first = self.flow.ops[first.op].inputs[0]
        return first.parameter if first is not None else ""

    def _is_weight(self, parameter: str) -> bool:
        known = self.flow.parameters.get(parameter)
        return known is None or known.is_weight is not False

    def _is_gradient(self, row: _Tensor, slot: Slot, weight: str) -> bool:
        """Among what an optimizer op reads: computed, not updated by it, and shaped like the weight."""
        known = self.flow.parameters.get(weight)
        return (
            slot.op >= 0
            and row.trusted
            and row.producer >= 0
            and known is not None
            and row.shape == known.shape
        )


def _graph_op(op: GraphOp, phase: str, occurrence: int) -> _Op:
    frames = op.stack
    places = [f"{file.rsplit('/', 1)[-1]}:{line}" for file, line, _ in frames]
    stack = "\n".join(f"{place} {code}" for place, (_, _, code) in zip(places, frames, strict=True))
    source = places[0] if places else ""
    scope, recomputed = op_types.extract_scope(op.name), op_types.is_recomputed(op.name)
    return _Op(_numbered(op.name, occurrence), op.kind, phase, scope, recomputed, source, stack)


def _numbered(name: str, occurrence: int) -> str:
    return f"{name}#{occurrence + 1}" if occurrence else name


def _in(slot: int, updated: frozenset[int] | None) -> bool:
    return updated is None or slot in updated


def _slots(count: int, io: str, kept: dict[tuple[str, int], Record]) -> list[int]:
    """The slots that the graph knows, and any more that were recorded."""
    return [*range(count), *sorted(slot for role, slot in kept if role == io and slot >= count)]


def _fill(numbers: dict[str, NDArray[Any]], at: int, constant: NDArray[Any]) -> None:
    """The statistics of a constant, where none were recorded."""
    with np.errstate(all="ignore"):
        told = {
            "max": constant.max(),
            "min": constant.min(),
            "mean": constant.mean(),
            "norm": np.linalg.norm(constant),
        }
    for name, column in numbers.items():
        if np.isnan(column[at]):
            column[at] = told[name]


def _columns(rows: Sequence[tuple[Any, ...]], names: Sequence[str]) -> dict[str, list[Any]]:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in names]
    return dict(zip(names, columns, strict=True))
