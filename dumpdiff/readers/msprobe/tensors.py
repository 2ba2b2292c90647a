"""The tensors and numbers inside msprobe's entries, as a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...model.arrays import Ints, Objects
from ...model.dtypes import normalise
from ...model.trace import BACKWARD, FORWARD, Problem, tensor_table
from .. import call_records
from ..files import is_plain_name
from .names import Call

FOLDER = "dump_tensor_data"  #: of whole tensors, beside dump.json

#: Keys of an entry, and the role of what lies below; grad_* are those of 1.0.
_ROLES = {
    "input_args": "input", "input_kwargs": "input", "output": "output", "input": "input",
    "grad_input": "input", "grad_output": "output", "parameters": "parameter",
}  # fmt: skip
#: Keys of the record of a tensor; "constant" is ours, of Python scalars.
_FIELDS = ("dtype", "shape", "Max", "Min", "Mean", "Norm", "md5", "data_name", "constant")
_DEEPEST = 16  #: levels of nested lists and dicts in an argument

_dtype = lru_cache(maxsize=1 << 10)(normalise)

#: A tensor or number as recorded: op, slot, role, and what its JSON object says of _FIELDS.
_Leaf = tuple[Any, ...]


def tensors(
    entries: Sequence[dict[str, Any]],
    called: Sequence[Call],
    ops: pd.DataFrame,
    folder: Path,
    framework: str,
) -> tuple[pd.DataFrame, list[Problem]]:
    """The tensor table of the entries (one an op, with the parts of its name), and what is wrong with its files."""
    leaves: list[_Leaf] = []
    for op, (entry, call) in enumerate(zip(entries, called, strict=True)):
        if call.what == "parameters_grad":
            for name, value in entry.items():
                first = value[0] if isinstance(value, list) and value else value
                _collect(first, f"output.{name}", op, "output", leaves)
        else:
            for key, role in _roles(tuple(entry)):
                _collect(entry[key], role, op, role, leaves)
    columns_of = zip(*leaves, strict=True) if leaves else ((),) * (3 + len(_FIELDS))
    op_ids, slots, roles, spelled, shaped, *recorded, sums, file_names, constant = columns_of
    dtypes = [
        _dtype(str(name)) if not given else name
        for name, given in zip(spelled, constant, strict=True)
    ]
    shapes, sizes = (
        zip(*map(call_records.shape_and_size, shaped), strict=True) if shaped else ((), ())
    )
    parameters, gradients = _owned(called, op_ids, slots, roles)
    files, problems = _files(file_names, folder)
    columns: dict[str, Any] = {
        "op": op_ids,
        "slot": slots,
        "role": roles,
        "dtype": dtypes,
        "shape": shapes,
        "size": sizes,
        "hash": [str(checksum) if checksum else "" for checksum in sums],
        "constant": [given is not None for given in constant],
        "parameter": parameters,
        "gradient_of": gradients,
        "file": files,
        **call_records.statistics(recorded, dtypes, sizes),
    }
    if any("grad_input" in entry for entry in entries) and call_records.swapped(
        ops, table := tensor_table(columns)
    ):
        where = (ops["phase"].to_numpy() == BACKWARD)[table["op"].to_numpy()] & (
            table["gradient_of"] == ""
        ).to_numpy()
        columns["slot"], columns["role"] = call_records.exchange(
            columns["slot"], columns["role"], where
        )
    table = tensor_table(columns)
    table["parameter"] = _read_parameters(table, ops)
    table["trusted"] = call_records.trusted(
        ops, table, inputs_before=True, gradients_complete=framework == "mindspore", modules=True
    ) | (table["gradient_of"] != "")
    return table, problems


@lru_cache(maxsize=1 << 10)
def _roles(keys: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Those of an entry's keys that hold tensors and what role these have, inputs first."""
    return tuple((key, role) for key, role in _ROLES.items() if key in keys)


def _collect(
    value: Any, slot: str, op: int, role: str, leaves: list[_Leaf], depth: int = 0
) -> None:
    """Every tensor and number below ``value``, with slots that say where; text, slices and null are passed over."""
    if type(value) is list:
        for index, item in enumerate(value):
            if type(item) is dict and "dtype" in item:
                leaves.append((op, f"{slot}.{index}", role, *map(item.get, _FIELDS)))
            elif item is not None and depth < _DEEPEST:
                _collect(item, f"{slot}.{index}", op, role, leaves, depth + 1)
    elif type(value) is dict:
        if "dtype" in value:
            leaves.append((op, slot, role, *map(value.get, _FIELDS)))
        elif "type" not in value:
            for key, item in value.items() if depth < _DEEPEST else ():
                _collect(item, f"{slot}.{key}", op, role, leaves, depth + 1)
        elif isinstance(number := value.get("value"), int | float):
            leaves.append((op, slot, role, *map(_as_tensor(number).get, _FIELDS)))
        elif type(inner := value.get("tensor")) is dict:  # P2POp
            _collect(inner, slot, op, role, leaves, depth + 1)


def _as_tensor(number: float) -> dict[str, Any]:
    """A Python scalar as the record of a tensor of no dimension."""
    return {
        "dtype": type(number).__name__,
        "shape": [],
        "constant": True,
        "Max": number,
        "Min": number,
    }


def _owned(
    called: Sequence[Call], op_ids: Sequence[int], slots: Sequence[str], roles: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Per slot the full name of the parameter that it holds, and of the one whose gradient it holds; '' for others."""
    parameters, gradients = [""] * len(slots), [""] * len(slots)
    for row, role in enumerate(roles):
        call = called[op_ids[row]]
        if role == "parameter" or call.what == "parameters_grad":
            name = slots[row].partition(".")[2]
            names = parameters if role == "parameter" else gradients
            names[row] = f"{call.scope}.{name}" if call.scope else name
    return parameters, gradients


def _read_parameters(table: pd.DataFrame, ops: pd.DataFrame) -> Objects:
    """The parameter column, completed: a call right inside a module that reads what equals one parameter of it."""
    names = table["parameter"].to_numpy().copy()
    op = table["op"].to_numpy()

    def keys(owners: Ints, rows: Ints) -> list[tuple[Any, ...]]:
        content = (
            table[name].to_numpy()[rows].tolist()
            for name in ("shape", "hash", "max", "min", "mean", "norm")
        )
        return list(zip(owners[rows].tolist(), *content, strict=True))

    held: dict[tuple[Any, ...], str] = {}
    named = np.flatnonzero(names != "")
    for key, name in zip(keys(op, named), names[named], strict=True):
        held[key] = "" if key in held else name  # two equal parameters: not told apart
    parents = (
        ops["parent"].where((ops["phase"] == FORWARD) & (ops["level"] == "op"), -1).to_numpy()[op]
    )
    reading = np.flatnonzero((table["role"].to_numpy() == "input") & np.isin(parents, op[named]))
    for row, key in zip(reading.tolist(), keys(parents, reading), strict=True):
        names[row] = held.get(key, "")
    return names


def _files(names: Sequence[Any], folder: Path) -> tuple[list[str], list[Problem]]:
    """The file of every tensor, relative to ``folder``; '' and a problem where it is missing or its name unsafe."""
    there = set(os.listdir(folder / FOLDER)) if (folder / FOLDER).is_dir() else set()
    files: list[str] = []
    missing: list[str] = []
    unsafe: list[str] = []
    for name in names:
        file = ""
        if type(name) is not str or name in ("", "-1"):
            pass
        elif name in there:
            file = f"{FOLDER}/{name}"
        else:
            (missing if is_plain_name(name) else unsafe).append(name)
        files.append(file)
    problems = []
    if unsafe:
        text = f"the tensor file {unsafe[0][:80]!r} would lie outside {FOLDER}, not read"
        problems.append(Problem("dump.json", text, count=len(unsafe)))
    if missing:
        text = f"the tensor file {missing[0][:80]!r} is missing, its statistics were used"
        problems.append(Problem(FOLDER, text, count=len(missing)))
    return files, problems
