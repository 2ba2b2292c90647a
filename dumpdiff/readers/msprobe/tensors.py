"""Build the tensor table from the entries of msprobe's dump.json (1.0 to 26.2)."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
#: Keys of a tensor's record. "constant" is not msprobe's: it marks the Python scalars.
_FIELDS = ("dtype", "shape", "Max", "Min", "Mean", "Norm", "md5", "data_name", "constant")
_MAX_DEPTH = 16  #: levels of nested lists and dicts in an argument
_MAX_SHOWN_NAME = 80  #: characters of a file name in a message

_normalize_dtype = lru_cache(maxsize=1 << 10)(normalize_dtype)

#: Tensors and numbers as recorded, all in one list: of each op, slot, kind of slot and record. A
#: tuple for each would take more memory than all that is in them.
_Leaves = list[Any]
_N_VALUES = 4


def build_call_tensors(
    columns_of_leaves: Sequence[Sequence[Any]],
    calls: Sequence[Call],
    ops: pd.DataFrame,
    folder: Path,
    framework: str,
    *,
    may_be_swapped: bool,
) -> tuple[pd.DataFrame, list[Problem]]:
    """Return the tensor table, and problems with the tensor files in ``folder``.

    The columns are those of :func:`collect_leaf_columns`, ``calls`` the parts of the names of the
    ops. ``may_be_swapped`` says that inputs and outputs of backward calls may be exchanged.
    """
    op_ids, slots, slot_kinds, *record_columns = columns_of_leaves
    dtype_names, raw_shapes, *statistics, checksums, file_names, constants = record_columns
    dtypes = []
    for dtype_name, constant in zip(dtype_names, constants, strict=True):
        dtypes.append(dtype_name if constant else _normalize_dtype(str(dtype_name)))
    extents = list(map(call_records.parse_shape_and_size, raw_shapes))
    shapes, sizes = [shape for shape, _ in extents], [size for _, size in extents]
    parameters, gradients = _name_parameters(calls, op_ids, slots, slot_kinds)
    files, problems = _find_files(file_names, folder)
    names = ops["name"].tolist()
    numbers = call_records.parse_statistics(statistics)
    problems += call_records.find_undefined_sums(statistics, numbers, op_ids, names, "dump.json")
    columns: dict[str, Any] = {
        "op": op_ids,
        "slot": slots,
        "slot_kind": slot_kinds,
        "dtype": dtypes,
        "shape": shapes,
        "size": sizes,
        "hash": [str(checksum) if checksum else "" for checksum in checksums],
        "constant": [constant is not None for constant in constants],
        "parameter": parameters,
        "gradient_of": gradients,
        "file": files,
        **call_records.build_statistic_columns(statistics, numbers, dtypes, sizes),
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


def collect_leaf_columns(
    entries: Sequence[dict[str, Any]], calls: Sequence[Call]
) -> tuple[Sequence[Any], ...]:
    """Return columns of all tensors and numbers in the entries, one entry for each op.

    They are op, slot, kind of slot, and the fields of the record. The entries, which take several
    times their memory, are not needed afterwards.
    """
    leaves: _Leaves = []
    for op, (entry, call) in enumerate(zip(entries, calls, strict=True)):
        if call.entry_type == "parameters_grad":
            for name, value in entry.items():
                gradient = value[0] if isinstance(value, list) and value else value
                _add_leaves(gradient, f"output.{name}", op, "output", leaves)
        else:
            for key, slot_kind in _list_tensor_keys(tuple(entry)):
                _add_leaves(entry[key], slot_kind, op, slot_kind, leaves)
    *places, records = (leaves[position::_N_VALUES] for position in range(_N_VALUES))
    return (*places, *([record.get(field) for record in records] for field in _FIELDS))


@lru_cache(maxsize=1 << 10)
def _list_tensor_keys(keys: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the keys of an entry that hold tensors, each with its kind of slot, inputs first."""
    return tuple((key, slot_kind) for key, slot_kind in _SLOT_KINDS.items() if key in keys)


def _add_leaves(
    value: Any, slot: str, op: int, slot_kind: str, leaves: _Leaves, depth: int = 0
) -> None:
    """Add every tensor and number in ``value`` to ``leaves``, with its slot.

    Text, slices and null are skipped.
    """
    if type(value) is dict:
        _add_object_leaves(value, slot, op, slot_kind, leaves, depth)
    if type(value) is not list:
        return
    for index, item in enumerate(value):
        item_slot = _name_item(slot, index)
        if type(item) is dict and "dtype" in item:
            leaves.extend((op, item_slot, slot_kind, item))
        elif item is not None and depth < _MAX_DEPTH:
            _add_leaves(item, item_slot, op, slot_kind, leaves, depth + 1)


@lru_cache(maxsize=1 << 12)
def _name_item(slot: str, index: int) -> str:
    """Return the slot of an item in a list: one string for all ops that have such a slot."""
    return f"{slot}.{index}"


def _add_object_leaves(
    value: dict[str, Any], slot: str, op: int, slot_kind: str, leaves: _Leaves, depth: int
) -> None:
    if "dtype" in value:
        leaves.extend((op, slot, slot_kind, value))
    elif type(value.get("tensor")) is dict and "peer" in value:  # an argument of a P2POp
        _add_leaves(value["tensor"], slot, op, slot_kind, leaves, depth + 1)
    elif "type" not in value:
        if depth < _MAX_DEPTH:
            for key, item in value.items():
                _add_leaves(item, f"{slot}.{key}", op, slot_kind, leaves, depth + 1)
    elif isinstance(value.get("value"), int | float):
        leaves.extend((op, slot, slot_kind, _make_scalar_record(value["value"])))


def _make_scalar_record(number: float) -> dict[str, Any]:
    """Return a Python scalar as the record of a 0-dimensional tensor."""
    return {
        "dtype": type(number).__name__,
        "shape": [],
        "constant": True,
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
