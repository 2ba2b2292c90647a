"""msprobe dumps (mindstudio-probe 1.1 to 26.2, PyTorch and MindSpore): dump.json and the files beside it.

dump.json holds statistics by call in order of completion; construct.json which module a call ran in; stack.json the
user's lines; dump_tensor_data/ whole tensors. Absolute paths inside are those of the recording machine and ignored.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from ..dtypes import normalise
from ..errors import DumpError
from ..trace import OPTIMIZER, Problem, Source, Trace, op_table, tensor_table
from . import calls
from .files import head, is_plain_name, load_tensor, number_in, text_files
from .frames import NOWHERE, Site, from_text
from .msprobe_json import is_dump, read_dump, read_side
from .parts import Part

FORMAT = "msprobe"

_TENSORS = "dump_tensor_data"
_MODULE = re.compile(
    r"(?P<type>Module|Cell)\.(?:(?P<scope>.+)\.)?(?P<cls>[^.]+)\.(?P<what>forward|backward|parameters_grad)(?:\.(?P<n>\d+))?"
)
_API = re.compile(r"(?P<family>[A-Za-z]\w*)\.(?P<api>.+)\.(?P<n>\d+)\.(?P<what>forward|backward)")
#: Keys of an entry and the role and slot prefix of what lies below; grad_* are those of 1.0.
_CONTENT = {
    "input_args": "input",
    "input_kwargs": "input",
    "output": "output",
    "input": "input",
    "grad_input": "input",
    "grad_output": "output",
    "parameters": "parameter",
}

_normalise = lru_cache(maxsize=None)(normalise)


class Call(NamedTuple):
    """The parts of an entry's name."""

    kind: str  #: Functional.linear, Primitive.MatMul, Module.Linear, parameters_grad
    level: str
    scope: str  #: of modules
    what: str  #: forward, backward or parameters_grad
    forward: str  #: name of the forward entry that a gradient belongs to


def find(path: Path) -> list[Part]:
    """Every dump.json at or below ``path``; step and rank (or process id) from folders stepN, rankR and procP."""
    parts = []
    for file in text_files(path):
        if is_dump(head(file, 4096)):
            rank = number_in(file, "rank")
            rank = number_in(file, "proc") if rank is None else rank
            whole = _holds_files(file.parent / _TENSORS)
            parts.append(Part(FORMAT, file, number_in(file, "step"), rank, whole=whole))
    return parts


def read(part: Part) -> Trace:
    """The trace of one dump.json. Raises DumpError if it cannot be read at all."""
    folder = part.path.parent
    header, data, problems = read_dump(part.path)
    construct, broken = read_side(folder / "construct.json")
    stacks, broken_too = read_side(folder / "stack.json")
    problems += broken + broken_too
    names, named = _entries(data, part.path.name, problems)
    if not names:
        raise DumpError(f"{part.path}: holds no entry with tensors; was anything recorded?")
    ops = _ops(names, named, data, construct, _sites(stacks))
    framework = _framework(header, named)
    tensors = _tensors(names, named, data, ops, folder, framework, problems)
    source = Source(
        path=str(folder),
        format=FORMAT,
        era=_era(part, header, data, stacks, names),
        framework=framework,
        step=part.step,
        rank=part.rank,
        low_precision_statistics=framework == "pytorch",
        details={key: header[key] for key in ("task", "level") if isinstance(header.get(key), str)},
    )
    return Trace(source, ops, tensors, tuple(problems), partial(load_tensor, folder))


def parse_name(name: str) -> Call | None:
    """The parts of an entry's name, None if it has no such form."""
    if match := _MODULE.fullmatch(name):
        what, scope = match["what"], match["scope"] or ""
        stem = name[: match.start("what")]
        if what == "parameters_grad":
            return Call(what, "op", scope, what, f"{stem}forward.{match['n'] or 0}")
        return Call(f"{match['type']}.{match['cls']}", "module", scope, what, f"{stem}forward.{match['n'] or 0}")
    if match := _API.fullmatch(name):
        family, api, what = match["family"], match["api"], match["what"]
        if family == "Primitive":  # Primitive.matmul.MatMul: the cell's attribute, then the operator
            api = api.rpartition(".")[2]
        return Call(f"{family}.{api}", "op", "", what, f"{name[: match.start('what')]}forward")
    return None


def _entries(data: dict[str, Any], file: str, problems: list[Problem]) -> tuple[list[str], list[Call]]:
    """The names of entries in execution order, and their parts.

    Up to 8.3 parameter gradients stand where they were reserved, after the forward entry; they move behind the
    backward entry of their module.
    """
    named: dict[str, Call] = {}
    strange: list[str] = []
    for name, entry in data.items():
        call = parse_name(name)
        if call is None or not isinstance(entry, dict):
            strange.append(name)
        else:
            named[name] = call
    if strange:
        problems.append(Problem(file, f"no call is named by {strange[0][:80]!r}, skipped", count=len(strange)))
    order = {name: float(index) for index, name in enumerate(named)}
    start = next((order[name] for name, call in named.items() if call.what == "backward"), len(order))
    for name, call in named.items():
        if call.what == "parameters_grad" and order[name] < start:
            stem, _, count = call.forward.rpartition("forward.")
            order[name] = order.get(f"{stem}backward.{count}", len(order)) + 0.5
    names = sorted(named, key=order.__getitem__)
    return names, [named[name] for name in names]


def _ops(
    names: list[str], named: list[Call], data: dict[str, Any], construct: dict[str, Any], sites: dict[str, Site]
) -> pd.DataFrame:
    """The op table: modules from construct.json, lines from stack.json, phases from both and from the order."""
    ids = {name: index for index, name in enumerate(names)}
    backward = [call.what != "forward" for call in named]
    forward = [ids.get(call.forward, -1) if later else -1 for call, later in zip(named, backward, strict=True)]
    kinds = [call.kind for call in named]
    found = [sites.get(name, NOWHERE) for name in names]
    phases, recomputed = calls.passes(kinds, backward, forward, found)
    scopes, parents = [], []
    for index, (name, call) in enumerate(zip(names, named, strict=True)):
        scope, parent = call.scope, -1
        seen = 0
        above = construct.get(name)
        while isinstance(above, str) and above and seen < 1000:
            seen += 1
            if above in ("optimizer", "clip_grad"):
                phases[index] = OPTIMIZER
                recomputed[index] = False
                break
            module = _module(above)
            if call.level == "op" and seen == 1 and module is not None and not scope:
                scope = module.scope
            if above in ids:
                parent = ids[above]
                break
            above = construct.get(above)
        scopes.append(scope)
        parents.append(parent)
        if isinstance(again := data[name].get("is_recompute"), bool):
            recomputed[index] = again
    return op_table(
        {
            "name": names,
            "kind": kinds,
            "phase": phases,
            "level": [call.level for call in named],
            "scope": scopes,
            "parent": parents,
            "forward": forward,
            "recomputed": recomputed,
            "source": [site.source for site in found],
            "stack": [site.stack for site in found],
        }
    )


@lru_cache(maxsize=1 << 16)
def _module(name: str) -> Call | None:
    return parse_name(name)


def _sites(stacks: dict[str, Any]) -> dict[str, Site]:
    """The call site of every entry: stacks shared by number (8.1 and later) or one for each name (up to 1.3)."""
    sites: dict[str, Site] = {}
    for key, value in stacks.items():
        match value:
            case [list(names), list(frames)] if key.isdecimal():
                shared = from_text(frames)
                sites.update((name, shared) for name in names if isinstance(name, str))
            case list(frames):
                sites[key] = from_text(frames)
    return sites


def _tensors(
    names: list[str],
    named: list[Call],
    data: dict[str, Any],
    ops: pd.DataFrame,
    folder: Path,
    framework: str,
    problems: list[Problem],
) -> pd.DataFrame:
    """The tensor table."""
    op_ids: list[int] = []
    slots: list[str] = []
    roles: list[str] = []
    parameters: list[str] = []
    gradients: list[str] = []
    leaves: list[dict[str, Any]] = []

    def take(value: Any, slot: str, op: int, role: str, depth: int = 0) -> None:
        """Every tensor and number below ``value``, with slots that say where."""
        if isinstance(value, dict):
            if "dtype" in value or isinstance(value.get("value"), int | float):
                op_ids.append(op)
                slots.append(slot)
                roles.append(role)
                leaves.append(value)
            elif "type" not in value and depth < 16:
                for key, item in value.items():
                    take(item, f"{slot}.{key}", op, role, depth + 1)
            elif isinstance(inner := value.get("tensor"), dict):  # P2POp
                take(inner, slot, op, role, depth + 1)
        elif isinstance(value, list) and depth < 16:
            for index, item in enumerate(value):
                take(item, f"{slot}.{index}", op, role, depth + 1)

    for op, (name, call) in enumerate(zip(names, named, strict=True)):
        entry = data[name]
        if call.what == "parameters_grad":
            for parameter, value in entry.items():
                take(value[0] if isinstance(value, list) and value else value, f"output.{parameter}", op, "output")
                full = _join(call.scope, parameter)
                gradients.extend([full] * (len(slots) - len(gradients)))
        else:
            for key, role in _CONTENT.items():
                if key in entry:
                    take(entry[key], role, op, role)
            gradients.extend([""] * (len(slots) - len(gradients)))
    parameters = [
        _join(named[op].scope, slot.removeprefix("parameter.")) if role == "parameter" else ""
        for op, slot, role in zip(op_ids, slots, roles, strict=True)
    ]
    scalar = ["dtype" not in leaf for leaf in leaves]
    dtypes = [_normalise(str(leaf["dtype"])) if "dtype" in leaf else type(leaf["value"]).__name__ for leaf in leaves]
    shapes = [
        () if constant else calls.shape_of(leaf.get("shape")) for leaf, constant in zip(leaves, scalar, strict=True)
    ]
    columns: dict[str, Any] = {
        "op": op_ids,
        "slot": slots,
        "role": roles,
        "dtype": dtypes,
        "shape": shapes,
        "size": [calls.size_of(shape) for shape in shapes],
        "hash": [str(leaf.get("md5") or "") for leaf in leaves],
        "constant": scalar,
        "parameter": parameters,
        "gradient_of": gradients,
        "file": _files(leaves, folder, problems),
        **calls.statistics([_statistics(leaf) for leaf in leaves], dtypes),
    }
    if any("grad_input" in data[name] for name in names) and calls.swapped(ops, table := tensor_table(columns)):
        where = (ops["forward"].to_numpy() >= 0)[table["op"].to_numpy()]
        columns["slot"], columns["role"] = calls.exchange(slots, roles, where)
    table = tensor_table(columns)
    table["trusted"] = calls.trusted(
        ops, table, inputs_before=True, gradients_complete=framework == "mindspore", modules=True
    )
    table.loc[table["gradient_of"] != "", "trusted"] = True
    return table


def _statistics(leaf: dict[str, Any]) -> list[Any]:
    if "dtype" in leaf:
        return [leaf.get("Max"), leaf.get("Min"), leaf.get("Mean"), leaf.get("Norm")]
    value = leaf["value"]
    return [value, value, value, abs(value)]


def _files(leaves: list[dict[str, Any]], folder: Path, problems: list[Problem]) -> list[str]:
    """The file of every leaf, relative to ``folder``; '' and a problem where it is missing or unsafe."""
    there = set(os.listdir(folder / _TENSORS)) if (folder / _TENSORS).is_dir() else set()
    files: list[str] = []
    missing: list[str] = []
    unsafe: list[str] = []
    for leaf in leaves:
        name = leaf.get("data_name")
        if not isinstance(name, str) or not name or name == "-1":
            files.append("")
        elif not is_plain_name(name):
            unsafe.append(name)
            files.append("")
        elif name not in there:
            missing.append(name)
            files.append("")
        else:
            files.append(f"{_TENSORS}/{name}")
    if unsafe:
        text = f"the tensor file {unsafe[0][:80]!r} would lie outside {_TENSORS}, not read"
        problems.append(Problem("dump.json", text, count=len(unsafe)))
    if missing:
        text = f"the tensor file {missing[0]!r} is missing, its statistics were used"
        problems.append(Problem(_TENSORS, text, count=len(missing)))
    return files


def _holds_files(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _join(scope: str, parameter: str) -> str:
    return f"{scope}.{parameter}" if scope else parameter


def _framework(header: dict[str, Any], named: list[Call]) -> str:
    """As the header says; versions before 1.3 do not say it."""
    said = header.get("framework")
    if said in ("pytorch", "mindspore"):
        return str(said)
    if said == "mindtorch":
        return "mindspore"
    families = ("Cell.", "Primitive.", "Mint", "mint.")
    return "mindspore" if any(call.kind.startswith(families) for call in named) else "pytorch"


def _era(part: Part, header: dict[str, Any], data: dict[str, Any], stacks: dict[str, Any], names: list[str]) -> str:
    """What tells the version apart, in words."""
    again = any("is_recompute" in entry for entry in data.values() if isinstance(entry, dict))
    numbered = any(re.search(r"\.parameters_grad\.\d+$", name) for name in names)
    if "framework" not in header:
        version = "before 1.3"
    elif numbered:
        version = "26.0" if again else "26.2 or later"
    elif "0" in stacks:
        version = "8.1 to 8.3" if again else "8.1 or later"
    else:
        version = "1.3" if stacks else "1.3 or later"
    task, level = header.get("task", "task unknown"), header.get("level", "unknown")
    return f"{version} ({task}, level {level})"
