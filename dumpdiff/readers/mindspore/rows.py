"""The rows of the op and tensor tables of a MindSpore dump, as they are added."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...model.arrays import AnyArray
from ...model.trace import Problem, build_op_table, build_tensor_table
from .file_names import PARAMETER
from .graph import Dataflow, Slot, find_updates
from .nodes import Output, Parameter
from .record import Record, count_elements
from .record_columns import RecordColumns
from .records import CSV, Records
from .unlinked_rows import UnlinkedRows, build_unlinked_rows, format_op_name

#: Share of the records that may have another type than in the graph before that is a property of
#: the recorder (Ascend's internal formats pad tensors), and no damage of single records.
_MAX_MISTYPED_SHARE = 0.01

_OpKey = tuple[str, int]  #: encoded op name, occurrence


class OpRow(NamedTuple):
    """A row of the op table; the other columns have their neutral value."""

    name: str
    kind: str
    phase: str = "forward"
    scope: str = ""
    recomputed: bool = False
    source: str = ""
    stack: str = ""


class TensorRow(NamedTuple):
    """A row of the tensor table, before its statistics are taken from the csv."""

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


class Rows:
    """The rows of both tables, as they are added."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.ops: list[OpRow] = []
        self.tensors: list[TensorRow] = []
        self.gradients: dict[int, str] = {}  #: tensor id -> the parameter whose gradient it is
        #: op id -> attributes, of each communication
        self.communications: list[tuple[int, tuple[tuple[str, str], ...]]] = []
        self.n_typed = 0  #: records whose type the graph gives
        self.mistyped: list[Problem] = []  #: one for each record of another type
        self.n_misread_views = 0  #: records left out: they hold another part of their memory
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
            self.ops.append(OpRow(format_op_name(name, occurrence), PARAMETER))
            is_weight = may_be_weight(parameter)
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
    ) -> TensorRow:
        """Return a row for the last op.

        The graph's shape is used if its size is the recorded one: a reshape is dumped with its
        input's shape.
        """
        op, slot = len(self.ops) - 1, f"{io}.{index}"
        dtype, shape = output if output is not None else ("", None)
        size = math.prod(shape) if shape is not None else -1
        if record is None:
            return TensorRow(op, slot, io, dtype, shape, size, "", -1)
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
        return TensorRow(op, slot, io, dtype, shape, size, record.file, record.row, content=content)

    def list_problems(self) -> list[Problem]:
        """Return what is wrong with records: of another type than in the graph, or misread."""
        problems = self.mistyped
        n_mistyped = len(self.mistyped)
        if n_mistyped > max(1, _MAX_MISTYPED_SHARE * self.n_typed):
            message = (
                "another shape or dtype than in the graph: a format of the device, or another run"
            )
            problems = [Problem("graphs", message, count=n_mistyped)]
        if self.n_misread_views:
            message = (
                "a view of a part of a tensor is dumped as the start of its memory, and not used"
            )
            problems = [*problems, Problem("graphs", message, count=self.n_misread_views)]
        return problems

    def build_op_table(self) -> pd.DataFrame:
        """Return the op table, described by ``OP_COLUMNS``."""
        columns = _transpose(self.ops, OpRow._fields)
        return build_op_table(
            _append_columns(columns, self.unlinked_rows.ops, OpRow._field_defaults)
        )

    def build_tensor_table(self) -> pd.DataFrame:
        """Return the tensor table, described by ``TENSOR_COLUMNS``."""
        listed_columns = _transpose(self.tensors, TensorRow._fields)
        constants = listed_columns.pop("values")
        columns = _append_columns(
            listed_columns, self.unlinked_rows.tensors, TensorRow._field_defaults
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


def _list_updated_parameters(flow: Dataflow) -> set[str]:
    """Return the parameters that some op of the graph overwrites."""
    names: set[str] = set()
    for op in flow.ops:
        names.update((op.inputs[index] or Slot()).parameter for index in find_updates(op))
    return names - {""}


def may_be_weight(parameter: Parameter | None) -> bool:
    """Return whether a parameter of a graph is not known to be an input of it."""
    return parameter is None or parameter.is_weight is not False


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
