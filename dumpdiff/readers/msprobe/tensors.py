"""Build the tensor table from the entries of msprobe's dump.json (1.0 to 26.2)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...model.arrays import Ints, Objects
from ...model.dtypes import normalize_dtype
from ...model.input_files import is_plain_name
from ...model.trace import BACKWARD, FORWARD, Problem, build_tensor_table
from .. import call_records
from ..call_records import RecordedStatistics
from .names import Call

FOLDER = "dump_tensor_data"  #: folder of the whole tensors, next to dump.json

#: Keys of an entry -> kind of slot of the tensors under them, in the order of the table. grad_* are
#: from 1.0.
_SLOT_KINDS = {
    "input_args": "input",
    "input_kwargs": "input",
    "output": "output",
    "input": "input",
    "grad_input": "input",
    "grad_output": "output",
    "parameters": "parameter",
}
_STATISTICS = ("Max", "Min", "Mean", "Norm")
#: Key of the record of a Python scalar; no record of msprobe has it.
_CONSTANT = "constant"
_MAX_DEPTH = 16  #: levels of nested lists and dicts in an argument
_MAX_SHOWN_NAME = 80  #: characters of a file name in a message

_normalize_dtype = lru_cache(maxsize=1 << 10)(normalize_dtype)

#: Tensors and numbers as recorded, all in one list: of each op, slot, kind of slot and record. A
#: tuple for each would take more memory than all that is in them.
_RecordList = list[Any]
_N_VALUES = 4
_PARSED_ROWS = 1 << 14  #: statistics that become arrays at once; few rows take longer each


@dataclass
class Leaves:
    """Columns of all tensors and numbers in the entries of a dump."""

    ops: list[int] = field(default_factory=list)
    slots: list[str] = field(default_factory=list)
    slot_kinds: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    shapes: list[tuple[int, ...] | None] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    #: max, min, mean and norm as recorded, of the rows after those in ``statistics``
    recorded: tuple[list[Any], ...] = field(default_factory=lambda: ([], [], [], []))
    statistics: list[RecordedStatistics] = field(default_factory=list)  #: many rows in each
    checksums: list[str] = field(default_factory=list)
    files: list[Any] = field(default_factory=list)  #: as recorded
    constants: list[bool] = field(default_factory=list)

    def add_entries(self, first_op: int, entries: Sequence[tuple[dict[str, Any], Call]]) -> None:
        """Add the leaves of the entries of consecutive ops."""
        records_of_ops: _RecordList = []
        for op, (entry, call) in enumerate(entries, start=first_op):
            _add_entry(entry, call, op, records_of_ops)
        ops, slots, slot_kinds, records = (
            records_of_ops[position::_N_VALUES] for position in range(_N_VALUES)
        )
        self.ops += ops
        self.slots += slots
        self.slot_kinds += slot_kinds
        self.dtypes += [_get_dtype(record) for record in records]
        for record in records:
            shape, size = call_records.parse_shape_and_size(record.get("shape"))
            self.shapes.append(shape)
            self.sizes.append(size)
        for column, name in zip(self.recorded, _STATISTICS, strict=True):
            column.extend([record.get(name) for record in records])
        if len(self.recorded[0]) >= _PARSED_ROWS:
            self._parse_recorded()
        checksums = [record.get("md5") for record in records]
        self.checksums += [str(checksum) if checksum else "" for checksum in checksums]
        self.files += [record.get("data_name") for record in records]
        self.constants += [_CONSTANT in record for record in records]

    def get_statistics(self) -> RecordedStatistics:
        """Return the statistics of all rows."""
        self._parse_recorded()
        return RecordedStatistics.concatenate(self.statistics)

    def _parse_recorded(self) -> None:
        """Make arrays of what was recorded; the numbers of JSON take four times the memory."""
        self.statistics.append(call_records.parse_statistics(self.recorded))
        for column in self.recorded:
            column.clear()

    def reorder_ops(self, new_ids: Sequence[int]) -> Leaves:
        """Return the leaves in another order of the ops: ``new_ids`` has the new id of each op."""
        ops = np.array(new_ids)[self.ops]
        order = np.argsort(ops, kind="stable")
        statistics = self.get_statistics().take(order)
        columns = {
            name: [column[row] for row in order.tolist()]
            for name, column in vars(self).items()
            if name not in ("recorded", "statistics")
        }
        return Leaves(**{**columns, "ops": ops[order].tolist(), "statistics": [statistics]})


def build_call_tensors(
    leaves: Leaves,
    calls: Sequence[Call],
    ops: pd.DataFrame,
    folder: Path,
    framework: str,
    *,
    may_be_swapped: bool,
) -> tuple[pd.DataFrame, list[Problem]]:
    """Return the tensor table, and problems with the tensor files in ``folder``.

    ``calls`` has the parts of the names of the ops. ``may_be_swapped`` says that inputs and outputs
    of backward calls may be exchanged.
    """
    parameters, gradients = _name_parameters(calls, leaves.ops, leaves.slots, leaves.slot_kinds)
    files, problems = _find_files(leaves.files, folder)
    names = ops["name"].tolist()
    statistics = leaves.get_statistics()
    problems += call_records.find_undefined_sums(statistics, leaves.ops, names, "dump.json")
    columns: dict[str, Any] = {
        "op": leaves.ops,
        "slot": leaves.slots,
        "slot_kind": leaves.slot_kinds,
        "dtype": leaves.dtypes,
        "shape": leaves.shapes,
        "size": leaves.sizes,
        "hash": leaves.checksums,
        "constant": leaves.constants,
        "parameter": parameters,
        "gradient_of": gradients,
        "file": files,
        **call_records.build_statistic_columns(statistics, leaves.dtypes, leaves.sizes),
    }
    table = build_tensor_table(columns)
    if may_be_swapped:
        table = _correct_swapped_gradients(table, columns, ops)
    table["parameter"] = _complete_parameters(table, ops)
    is_trusted = call_records.find_trusted_rows(
        ops, table, inputs_before=True, gradients_complete=framework == "mindspore", modules=True
    )
    table["trusted"] = is_trusted | (table["gradient_of"].to_numpy() != "")
    return table, problems


def _get_dtype(record: dict[str, Any]) -> str:
    """Return the dtype of a record; that of a Python scalar is the name of its type."""
    dtype = str(record["dtype"])
    return dtype if _CONSTANT in record else _normalize_dtype(dtype)


def _correct_swapped_gradients(
    table: pd.DataFrame, columns: dict[str, Any], ops: pd.DataFrame
) -> pd.DataFrame:
    """Return the table with inputs and outputs of backward ops corrected, if they are swapped."""
    if not call_records.has_swapped_gradients(ops, table):
        return table
    is_backward = (ops["phase"].to_numpy() == BACKWARD)[table["op"].to_numpy()]
    is_parameter_gradient = table["gradient_of"].to_numpy() != ""
    columns["slot"], columns["slot_kind"] = call_records.swap_inputs_and_outputs(
        columns["slot"], columns["slot_kind"], is_backward & ~is_parameter_gradient
    )
    return build_tensor_table(columns)


def _add_entry(entry: dict[str, Any], call: Call, op: int, records: _RecordList) -> None:
    """Add every tensor and number of an entry."""
    if call.entry_type == "parameters_grad":
        for name, value in entry.items():
            gradient = value[0] if isinstance(value, list) and value else value
            _add_leaves(gradient, _name_item("output", name), op, "output", records)
        return
    for key, slot_kind in _list_tensor_keys(tuple(entry)):
        _add_leaves(entry[key], slot_kind, op, slot_kind, records)


@lru_cache(maxsize=1 << 10)
def _list_tensor_keys(keys: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the keys of an entry that hold tensors, each with its kind of slot, inputs first."""
    return tuple((key, slot_kind) for key, slot_kind in _SLOT_KINDS.items() if key in keys)


def _add_leaves(
    value: Any, slot: str, op: int, slot_kind: str, records: _RecordList, depth: int = 0
) -> None:
    """Add every tensor and number in ``value`` to ``records``, with its slot.

    Text, slices and null are skipped.
    """
    if type(value) is dict:
        _add_object_leaves(value, slot, op, slot_kind, records, depth)
    if type(value) is not list:
        return
    for index, item in enumerate(value):
        item_slot = _name_item(slot, index)
        if type(item) is dict and "dtype" in item:
            records.extend((op, item_slot, slot_kind, item))
        elif item is not None and depth < _MAX_DEPTH:
            _add_leaves(item, item_slot, op, slot_kind, records, depth + 1)


@lru_cache(maxsize=1 << 12)
def _name_item(slot: str, key: str | int) -> str:
    """Return the slot of an item in another one: one string for all ops that have such a slot."""
    return f"{slot}.{key}"


def _add_object_leaves(
    value: dict[str, Any], slot: str, op: int, slot_kind: str, records: _RecordList, depth: int
) -> None:
    if "dtype" in value:
        records.extend((op, slot, slot_kind, value))
    elif type(value.get("tensor")) is dict and "peer" in value:  # an argument of a P2POp
        _add_leaves(value["tensor"], slot, op, slot_kind, records, depth + 1)
    elif "type" not in value:
        if depth < _MAX_DEPTH:
            for key, item in value.items():
                _add_leaves(item, _name_item(slot, key), op, slot_kind, records, depth + 1)
    elif isinstance(value.get("value"), int | float):
        records.extend((op, slot, slot_kind, _make_scalar_record(value["value"])))


def _make_scalar_record(number: float) -> dict[str, Any]:
    """Return a Python scalar as the record of a 0-dimensional tensor."""
    return {
        "dtype": type(number).__name__,
        "shape": [],
        _CONSTANT: True,
        "Max": number,
        "Min": number,
    }


def _name_parameters(
    calls: Sequence[Call], op_ids: Sequence[int], slots: Sequence[str], slot_kinds: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return, for each slot, the parameter that it holds and the parameter whose gradient it holds.

    Both are full names, '' for other tensors.
    """
    parameters, gradients = [""] * len(slots), [""] * len(slots)
    for row, slot_kind in enumerate(slot_kinds):
        call = calls[op_ids[row]]
        if slot_kind == "parameter" or call.entry_type == "parameters_grad":
            name = slots[row].partition(".")[2]
            names = parameters if slot_kind == "parameter" else gradients
            names[row] = f"{call.scope}.{name}" if call.scope else name
    return parameters, gradients


def _complete_parameters(table: pd.DataFrame, ops: pd.DataFrame) -> Objects:
    """Return the parameter column, completed for the inputs of ops.

    An input of an op directly inside a module that equals exactly one parameter of the module is
    that parameter.
    """
    names = table["parameter"].to_numpy().copy()
    op = table["op"].to_numpy()

    def make_keys(owners: Ints, rows: Ints) -> list[tuple[Any, ...]]:
        content = (
            table[name].to_numpy()[rows].tolist()
            for name in ("shape", "hash", "max", "min", "mean", "norm")
        )
        return list(zip(owners[rows].tolist(), *content, strict=True))

    parameter_of: dict[tuple[Any, ...], str] = {}
    parameter_rows = np.flatnonzero(names != "")
    for key, name in zip(make_keys(op, parameter_rows), names[parameter_rows], strict=True):
        parameter_of[key] = "" if key in parameter_of else name  # equal parameters are ambiguous
    is_forward_op = (ops["phase"] == FORWARD) & (ops["level"] == "op")
    parents = ops["parent"].where(is_forward_op, -1).to_numpy()[op]
    is_input = table["slot_kind"].to_numpy() == "input"
    input_rows = np.flatnonzero(is_input & np.isin(parents, op[parameter_rows]))
    for row, key in zip(input_rows.tolist(), make_keys(parents, input_rows), strict=True):
        names[row] = parameter_of.get(key, "")
    return names


def _find_files(names: Sequence[Any], folder: Path) -> tuple[list[str], list[Problem]]:
    """Return the file of every tensor, relative to ``folder``, and the problems with the files.

    The file is '' if the name is absent or unsafe, or the file is missing.
    """
    tensor_folder = folder / FOLDER
    existing_files = set(os.listdir(tensor_folder)) if tensor_folder.is_dir() else set()
    files: list[str] = []
    missing_names: list[str] = []
    unsafe_names: list[str] = []
    for name in names:
        file = ""
        if type(name) is not str or name in ("", "-1"):
            pass
        elif name in existing_files:
            file = f"{FOLDER}/{name}"
        elif is_plain_name(name):
            missing_names.append(name)
        else:
            unsafe_names.append(name)
        files.append(file)
    problems = []
    if unsafe_names:
        shown_name = unsafe_names[0][:_MAX_SHOWN_NAME]
        message = f"the tensor file {shown_name!r} would be outside {FOLDER}, not read"
        problems.append(Problem("dump.json", message, count=len(unsafe_names), weakens=True))
    if missing_names:
        shown_name = missing_names[0][:_MAX_SHOWN_NAME]
        message = f"the tensor file {shown_name!r} is missing, its statistics were used"
        problems.append(Problem(FOLDER, message, count=len(missing_names)))
    return files, problems
