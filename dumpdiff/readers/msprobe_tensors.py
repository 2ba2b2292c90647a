"""The tensors and numbers inside msprobe's entries, as a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from ..dtypes import normalise
from ..trace import BACKWARD, FORWARD, Problem, tensor_table
from . import calls
from .files import is_plain_name
from .msprobe_names import Call

FOLDER = "dump_tensor_data"  #: of whole tensors, beside dump.json

#: Keys of an entry, and the role of what lies below; grad_* are those of 1.0.
_ROLES = {
    "input_args": "input", "input_kwargs": "input", "output": "output", "input": "input",
    "grad_input": "input", "grad_output": "output", "parameters": "parameter",
}  # fmt: skip
_DEEPEST = 16  #: levels of nested lists and dicts in an argument

_dtype = lru_cache(maxsize=1 << 10)(normalise)

#: A tensor or number as recorded: op, slot, role, the JSON object.
_Leaf = tuple[int, str, str, dict[str, Any]]


def tensors(
    entries: Sequence[dict[str, Any]], called: Sequence[Call], ops: pd.DataFrame, folder: Path, framework: str
) -> tuple[pd.DataFrame, list[Problem]]:
    """The tensor table of the entries (one an op, with the parts of its name), and what is wrong with its files."""
    leaves: list[_Leaf] = []
    for op, (entry, call) in enumerate(zip(entries, called, strict=True)):
        if call.what == "parameters_grad":
            for name, value in entry.items():
                first = value[0] if isinstance(value, list) and value else value
                _collect(first, f"output.{name}", op, "output", leaves)
        else:
            for key, role in _ROLES.items():
                if value := entry.get(key):
                    _collect(value, role, op, role, leaves)
    op_ids, slots, roles, content = zip(*leaves, strict=True) if leaves else ((), (), (), ())
    owned = [_owned_name(called[op], slot) for op, slot in zip(op_ids, slots, strict=True)]
    dtypes = [leaf["dtype"] if "constant" in leaf else _dtype(str(leaf["dtype"])) for leaf in content]
    shapes = [calls.shape_of(leaf.get("shape")) for leaf in content]
    sizes = [calls.size_of(shape) for shape in shapes]
    recorded = ([leaf.get(key) for leaf in content] for key in ("Max", "Min", "Mean", "Norm"))
    files, problems = _files(content, folder)
    columns: dict[str, Any] = {
        "op": op_ids,
        "slot": slots,
        "role": roles,
        "dtype": dtypes,
        "shape": shapes,
        "size": sizes,
        "hash": [str(leaf["md5"]) if leaf.get("md5") else "" for leaf in content],
        "constant": ["constant" in leaf for leaf in content],
        "parameter": [name if role == "parameter" else "" for name, role in zip(owned, roles, strict=True)],
        "gradient_of": [name if role == "output" else "" for name, role in zip(owned, roles, strict=True)],
        "file": files,
        **calls.statistics(recorded, dtypes, sizes),
    }
    if any("grad_input" in entry for entry in entries) and calls.swapped(ops, table := tensor_table(columns)):
        where = (ops["phase"].to_numpy() == BACKWARD)[table["op"].to_numpy()] & (table["gradient_of"] == "").to_numpy()
        columns["slot"], columns["role"] = calls.exchange(columns["slot"], columns["role"], where)
    table = tensor_table(columns)
    table["parameter"] = _read_parameters(table, ops)
    table["trusted"] = calls.trusted(
        ops, table, inputs_before=True, gradients_complete=framework == "mindspore", modules=True
    ) | (table["gradient_of"] != "")
    return table, problems


def _collect(value: Any, slot: str, op: int, role: str, leaves: list[_Leaf], depth: int = 0) -> None:
    """Every tensor and number below ``value``, with slots that say where; text, slices and null are passed over."""
    if type(value) is list:
        for index, item in enumerate(value):
            if type(item) is dict and "dtype" in item:
                leaves.append((op, f"{slot}.{index}", role, item))
            elif item is not None and depth < _DEEPEST:
                _collect(item, f"{slot}.{index}", op, role, leaves, depth + 1)
    elif type(value) is dict:
        if "dtype" in value:
            leaves.append((op, slot, role, value))
        elif "type" not in value:
            for key, item in value.items() if depth < _DEEPEST else ():
                _collect(item, f"{slot}.{key}", op, role, leaves, depth + 1)
        elif isinstance(number := value.get("value"), int | float):
            leaves.append((op, slot, role, _as_tensor(number)))
        elif type(inner := value.get("tensor")) is dict:  # P2POp
            _collect(inner, slot, op, role, leaves, depth + 1)


def _as_tensor(number: float) -> dict[str, Any]:
    """A Python scalar as the record of a tensor of no dimension."""
    return {"dtype": type(number).__name__, "shape": [], "constant": True, "Max": number, "Min": number}


def _owned_name(call: Call, slot: str) -> str:
    """The full name of the parameter that a slot of a module holds, or whose gradient it holds; '' for other slots."""
    if call.what == "parameters_grad" or slot.startswith("parameter."):
        name = slot.partition(".")[2]
        return f"{call.scope}.{name}" if call.scope else name
    return ""


def _read_parameters(table: pd.DataFrame, ops: pd.DataFrame) -> list[str]:
    """The parameter column, completed: a call right inside a module that reads what equals one parameter of it."""
    names: list[str] = table["parameter"].tolist()
    keys = list(zip(*(table[name].tolist() for name in ("shape", "hash", "max", "min", "mean", "norm")), strict=True))
    op_of, roles = table["op"].tolist(), table["role"].tolist()
    held: dict[tuple[int, Any], str] = {}
    for row, name in enumerate(names):
        if name:
            key = (op_of[row], keys[row])
            held[key] = "" if key in held else name  # two equal parameters: not told apart
    parents = ops["parent"].where((ops["phase"] == FORWARD) & (ops["level"] == "op"), -1).tolist()
    for row, role in enumerate(roles):
        if role == "input" and (parent := parents[op_of[row]]) >= 0:
            names[row] = held.get((parent, keys[row]), "")
    return names


def _files(content: Sequence[dict[str, Any]], folder: Path) -> tuple[list[str], list[Problem]]:
    """The file of every tensor, relative to ``folder``; '' and a problem where it is missing or its name unsafe."""
    there = set(os.listdir(folder / FOLDER)) if (folder / FOLDER).is_dir() else set()
    files: list[str] = []
    missing: list[str] = []
    unsafe: list[str] = []
    for leaf in content:
        name = leaf.get("data_name")
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
