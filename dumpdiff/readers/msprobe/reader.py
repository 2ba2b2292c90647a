"""msprobe dumps (mindstudio-probe 1.1 to 26.2, PyTorch and MindSpore): dump.json and the files beside it.

dump.json holds statistics by call in order of completion; construct.json which module a call ran in; stack.json the
user's lines; dump_tensor_data/ whole tensors. Absolute paths inside are those of the recording machine and ignored.
"""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from ...model.errors import DumpError
from ...model.trace import OPTIMIZER, Problem, Source, Trace, op_table
from .. import call_records
from ..files import head, load_tensor, number_in, text_files
from ..parts import Part
from ..stack_frames import NOWHERE, Site, from_text
from .dump_json import is_dump, read_dump, read_side
from .names import Call, parse_name
from .tensors import FOLDER, tensors

FORMAT = "msprobe"


def find(path: Path) -> list[Part]:
    """Every dump.json at or below ``path``; step and rank (or process id) from folders stepN, rankR and procP."""
    parts = []
    for file in text_files(path):
        if is_dump(head(file, 4096)):
            rank = number_in(file, "rank")
            process = number_in(file, "proc") if rank is None else None
            whole = _holds_files(file.parent / FOLDER)
            parts.append(Part(FORMAT, file, number_in(file, "step"), rank, process, whole=whole))
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
    table, doubts = tensors([data[name] for name in names], named, ops, folder, framework)
    source = Source(
        path=str(folder),
        format=FORMAT,
        era=_era(part, header, data, stacks, names),
        framework=framework,
        step=part.step,
        rank=part.rank,
        process=part.process,
        low_precision_statistics=framework == "pytorch",
        details={key: header[key] for key in ("task", "level") if isinstance(header.get(key), str)},
    )
    return Trace(source, ops, table, (*problems, *doubts), partial(load_tensor, folder))


def _entries(
    data: dict[str, Any], file: str, problems: list[Problem]
) -> tuple[list[str], list[Call]]:
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
        problems.append(
            Problem(file, f"no call is named by {strange[0][:80]!r}, skipped", count=len(strange))
        )
    before = itertools.takewhile(lambda name: named[name].what != "backward", named)
    early = {name: named[name].forward for name in before if named[name].what == "parameters_grad"}
    names = list(named)
    if early:
        order = {name: float(index) for index, name in enumerate(named)}
        for name, forward in early.items():
            stem, _, count = forward.rpartition("forward.")
            order[name] = order.get(f"{stem}backward.{count}", len(order)) + 0.5
        names.sort(key=order.__getitem__)
    return names, [named[name] for name in names]


def _ops(
    names: list[str],
    named: list[Call],
    data: dict[str, Any],
    construct: dict[str, Any],
    sites: dict[str, Site],
) -> pd.DataFrame:
    """The op table: modules from construct.json, lines from stack.json, phases from both and from the order."""
    ids = {name: index for index, name in enumerate(names)}
    backward = [call.what != "forward" for call in named]
    forward = [
        ids.get(call.forward, -1) if later else -1
        for call, later in zip(named, backward, strict=True)
    ]
    kinds = [call.kind for call in named]
    found = [sites.get(name, NOWHERE) for name in names]
    phases, recomputed = call_records.passes(kinds, backward, forward, found)
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
            module = parse_name(above)
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


def _holds_files(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _framework(header: dict[str, Any], named: list[Call]) -> str:
    """As the header says; versions before 1.3 do not say it."""
    said = header.get("framework")
    if said in ("pytorch", "mindspore"):
        return str(said)
    if said == "mindtorch":
        return "mindspore"
    families = ("Cell.", "Primitive.", "Mint", "mint.")
    return "mindspore" if any(call.kind.startswith(families) for call in named) else "pytorch"


def _era(
    part: Part,
    header: dict[str, Any],
    data: dict[str, Any],
    stacks: dict[str, Any],
    names: list[str],
) -> str:
    """What tells the version apart, in words."""
    again = any("is_recompute" in entry for entry in data.values() if isinstance(entry, dict))
    numbered = any(".parameters_grad." in name for name in names)
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
