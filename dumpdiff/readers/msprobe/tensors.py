"""Build the tensor table from the entries of msprobe's dump.json (1.0 to 26.2)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...model.arrays import Ints, Objects
from ...model.input_files import is_plain_name
from ...model.int_lists import IntLists
from ...model.trace import BACKWARD, FORWARD, Problem, build_tensor_table
from .. import call_records
from .entries import Entries
from .names import PARAMETER_GRADIENTS, Call

FOLDER = "dump_tensor_data"  #: folder of the whole tensors, next to dump.json

_MAX_SHOWN_NAME = 80  #: characters of a file name in a message


@dataclass(frozen=True)
class _Rows:
    """The rows of the tensor table."""

    ops: Ints
    leaves: Ints  #: of each row, in the leaves of all forms
    #: of each row, in what was measured of the calls, followed by the contents of the leaves
    contents: Ints


def build_call_tensors(
    entries: Entries, ops: pd.DataFrame, folder: Path, framework: str
) -> tuple[pd.DataFrame, list[Problem]]:
    """Return the tensor table, and problems with the tensor files in ``folder``."""
    leaves = entries.leaves
    rows = _list_rows(entries)
    slots, slot_kinds, dtypes, shapes = (
        _to_objects(values)[rows.leaves]
        for values in (leaves.slots, leaves.slot_kinds, leaves.dtypes, leaves.shapes)
    )
    sizes = np.array(leaves.sizes, dtype=np.int64)[rows.leaves]
    parameters, gradients = _name_parameters(entries.calls, rows.ops, slots, slot_kinds)
    both_contents = entries.measurements, leaves.contents
    statistics = call_records.RecordedStatistics.concatenate(
        [contents.get_statistics() for contents in both_contents]
    ).take(rows.contents)
    checksums = _to_objects([text for contents in both_contents for text in contents.checksums])
    recorded_files = [name for contents in both_contents for name in contents.files]
    files, problems = _find_files(recorded_files, rows.contents, folder)
    names = ops["name"].to_numpy()
    problems += call_records.find_undefined_sums(statistics, rows.ops, names, "dump.json")
    columns: dict[str, Any] = {
        "op": rows.ops,
        "slot": slots,
        "slot_kind": slot_kinds,
        "dtype": dtypes,
        "shape": shapes,
        "size": sizes,
        "hash": checksums[rows.contents],
        "constant": np.array(leaves.constants, dtype=bool)[rows.leaves],
        "parameter": parameters,
        "gradient_of": gradients,
        "file": files,
        **call_records.build_statistic_columns(statistics, dtypes, sizes),
    }
    table = build_tensor_table(columns)
    if entries.may_be_swapped:
        table = _correct_swapped_gradients(table, columns, ops)
    table["parameter"] = _complete_parameters(table, ops)
    is_trusted = call_records.find_trusted_rows(
        ops, table, inputs_before=True, gradients_complete=framework == "mindspore", modules=True
    )
    table["trusted"] = is_trusted | (table["gradient_of"].to_numpy() != "")
    return table, problems


def _list_rows(entries: Entries) -> _Rows:
    """Return the tensors and numbers of all calls: the leaves of the form of each."""
    starts = np.array(entries.leaves.starts, dtype=np.int64)
    n_leaves = int(starts[-1])
    leaves_of_calls = IntLists(starts, np.arange(n_leaves)).take(
        np.array(entries.forms, dtype=np.int64)
    )
    ops, leaves = leaves_of_calls.rows, leaves_of_calls.values
    measurement = np.array(entries.leaves.measurements, dtype=np.int64)[leaves]
    first_measurement = np.array(entries.first_measurements, dtype=np.int64)[ops]
    contents = np.where(
        measurement >= 0, first_measurement + measurement, len(entries.measurements) + leaves
    )
    return _Rows(ops, leaves, contents)


def _to_objects(values: Sequence[Any]) -> Objects:
    """Return an array of Python objects, also of tuples."""
    return np.fromiter(values, dtype=object, count=len(values))


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


def _name_parameters(
    calls: Sequence[Call], ops: Ints, slots: Objects, slot_kinds: Objects
) -> tuple[Objects, Objects]:
    """Return, for each slot, the parameter that it holds and the parameter whose gradient it holds.

    Both are full names, '' for other tensors.
    """
    parameters, gradients = (np.full(len(slots), "", dtype=object) for _ in range(2))
    holds_gradients = np.array([call.entry_type == PARAMETER_GRADIENTS for call in calls])
    is_parameter = slot_kinds == "parameter"
    full_names: dict[str, str] = {}  # a parameter and its gradient have one string
    for names, rows in ((parameters, is_parameter), (gradients, holds_gradients[ops])):
        for row in np.flatnonzero(rows).tolist():
            scope = calls[ops[row]].scope
            name = slots[row].partition(".")[2]
            full_name = f"{scope}.{name}" if scope else name
            names[row] = full_names.setdefault(full_name, full_name)
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


def _find_files(names: Sequence[Any], rows: Ints, folder: Path) -> tuple[Objects, list[Problem]]:
    """Return the file of every tensor, relative to ``folder``, and the problems with the files.

    ``names`` are the recorded ones, ``rows`` the name of each tensor. The file is '' if the name is
    absent or unsafe, or the file is missing.
    """
    files = np.full(len(rows), "", dtype=object)
    is_named = np.array([type(name) is str and name not in ("", "-1") for name in names])
    named_rows = np.flatnonzero(is_named[rows]).tolist()
    tensor_folder = folder / FOLDER
    existing_files: set[str] = set()
    if named_rows and tensor_folder.is_dir():
        existing_files.update(os.listdir(tensor_folder))
    missing_names: list[str] = []
    unsafe_names: list[str] = []
    for row in named_rows:
        name = names[rows[row]]
        if name in existing_files:
            files[row] = f"{FOLDER}/{name}"
        elif is_plain_name(name):
            missing_names.append(name)
        else:
            unsafe_names.append(name)
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
