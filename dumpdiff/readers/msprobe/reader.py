"""Read msprobe dumps (mindstudio-probe 1.0 to 26.2, PyTorch and MindSpore).

dump.json holds statistics by call in order of completion, construct.json the module of each call,
stack.json the user's source lines, and dump_tensor_data/ the whole tensors (.pt or .npy). Absolute
paths in these files are those of the recording machine and are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...model.arrays import Flags, Ints, Objects
from ...model.errors import DumpError
from ...model.input_files import read_head
from ...model.trace import FORWARD, OPTIMIZER, Problem, Source, Trace, build_op_table
from .. import call_records
from ..files import Listing, find_folder_number, load_tensor
from ..parts import Part
from ..stack_frames import NOWHERE, Site, parse_site
from .communications import read_communications
from .dump_json import HEAD_SIZE, holds_saved_values, read_entries, read_side_file
from .entries import Entries, collect_entries
from .names import PARAMETER_GRADIENTS, Call, name_entry, parse_name
from .tensors import FOLDER, build_call_tensors

FORMAT = "msprobe"

_MAX_NESTING = 1000  #: modules around a call; stops a construct.json that runs in a circle
_MAX_SHOWN_NAME = 80  #: characters of an unknown name in a message
_OPTIMIZER_NAMES = ("optimizer", "clip_grad")  #: for which construct.json has no entry

#: Kinds of calls that only MindSpore has.
_MINDSPORE_FAMILIES = ("Cell.", "Primitive.", "Mint", "mint.")


def find_parts(listing: Listing) -> list[Part]:
    """List every dump.json, and every debug.json in a folder without one.

    Step and rank (or process id) are the numbers of the folders stepN, rankR and procP.
    """
    calls: list[Path] = []
    saved_values: list[Path] = []
    for file in listing.index_files[FORMAT]:
        head = read_head(file, HEAD_SIZE)
        (saved_values if holds_saved_values(head) else calls).append(file)
    folders = {file.parent for file in calls}
    files = [*calls, *(file for file in saved_values if file.parent not in folders)]
    parts = []
    for file in files:
        step = find_folder_number(file, "step")
        rank = find_folder_number(file, "rank")
        process = find_folder_number(file, "proc") if rank is None else None
        has_whole_tensors = _has_files(file.parent / FOLDER)
        parts.append(Part(FORMAT, file, step, rank, process, has_whole_tensors=has_whole_tensors))
    return parts


def read_part(part: Part) -> Trace:
    """Return the trace of one dump.json. Raises DumpError if it cannot be read at all."""
    folder = part.path.parent
    header, entries, problems = read_entries(part.path, collect_entries)
    construct, construct_problems = read_side_file(folder / "construct.json")
    stacks, stack_problems = read_side_file(folder / "stack.json")
    problems += construct_problems + stack_problems
    problems += _report_unknown_names(entries.unknown_names, part.path.name)
    entries = _order_calls(entries)
    if not entries.calls:
        raise DumpError(f"{part.path}: holds no entry with tensors; was anything recorded?")
    sites = _parse_sites(stacks)
    ops = _build_op_table(entries, construct, sites)
    problems += _cut_circles(ops)
    framework = _find_framework(header, entries.calls)
    format_variant = _describe_variant(header, entries, stacks)
    communications = read_communications(ops, entries.communications)
    tensors, tensor_problems = build_call_tensors(entries, ops, folder, framework)
    source = Source(
        path=str(folder),
        format=FORMAT,
        format_variant=format_variant,
        framework=framework,
        step=part.step,
        rank=part.rank,
        process=part.process,
        low_precision_statistics=framework == "pytorch",
        details={key: header[key] for key in ("task", "level") if isinstance(header.get(key), str)},
    )
    listed_names = [*sites, *_list_constructed_calls(construct, entries)]
    missing_calls = call_records.find_missing_calls(entries.ids, part.path.name, listed_names)
    all_problems = (*problems, *tensor_problems, *missing_calls)
    loader = partial(load_tensor, folder)
    return Trace(source, ops, tensors, all_problems, loader, communications)


def _report_unknown_names(names: list[str], file: str) -> list[Problem]:
    """Return a problem if entries are no calls."""
    if not names:
        return []
    message = f"{names[0][:_MAX_SHOWN_NAME]!r} is not the name of a call, skipped"
    return [Problem(file, message, count=len(names))]


def _list_constructed_calls(construct: dict[str, Any], entries: Entries) -> list[str]:
    """Return the calls in construct.json that were not recorded, but whose like was.

    It also lists calls of APIs that the recorder left out of dump.json.
    """
    unrecorded_names = [name for name in construct if name not in entries.ids]
    if not unrecorded_names:
        return []
    recorded_kinds = {(call.kind, call.entry_type) for call in entries.calls}
    names = []
    for name in unrecorded_names:
        call = parse_name(name)
        if call is not None and (call.kind, call.entry_type) in recorded_kinds:
            names.append(name)
    return names


def _order_calls(entries: Entries) -> Entries:
    """Return the calls in execution order.

    Up to 8.3, parameter gradients are written where their place was reserved, after the forward
    entry. They are moved behind the backward entry of their module.
    """
    early_gradients: dict[str, str] = {}  # gradient entry -> backward entry
    for name, call in zip(entries.ids, entries.calls, strict=True):
        if call.entry_type == "backward":
            break
        if call.entry_type == PARAMETER_GRADIENTS:
            early_gradients[name] = name_entry(name, call, "backward")
    if not early_gradients:
        return entries
    order = {name: float(index) for name, index in entries.ids.items()}
    for name, backward in early_gradients.items():
        order[name] = order.get(backward, len(order)) + 0.5
    return entries.reorder_calls(sorted(order, key=order.__getitem__))


def _build_op_table(
    entries: Entries, construct: dict[str, Any], sites: dict[str, Site]
) -> pd.DataFrame:
    """Build the op table.

    Modules are those of construct.json, source lines those of stack.json. Phases follow from both
    and from the order of calls.
    """
    names, calls = list(entries.ids), entries.calls
    kinds = [call.kind for call in calls]
    forward = _find_forward_calls(entries)
    is_backward = np.array([call.entry_type != "forward" for call in calls])
    call_sites = [sites.get(name, NOWHERE) for name in names]
    phases, recomputed = call_records.assign_phases(kinds, is_backward, forward, call_sites)
    outer_scopes, parents, in_optimizer = _find_modules(entries, construct)
    site_in_optimizer = np.array([site.in_optimizer for site in call_sites])
    # a module that is called after the backward pass
    is_late_module = (parents >= 0) & (phases == OPTIMIZER) & ~site_in_optimizer
    phases[is_late_module] = FORWARD
    phases[in_optimizer] = OPTIMIZER
    recomputed[in_optimizer] = False
    for name, recorded_flag in entries.recompute_flags.items():
        recomputed[entries.ids[name]] = recorded_flag
    scopes = [
        call.scope or (outer_scope if call.level == "op" else "")
        for call, outer_scope in zip(calls, outer_scopes, strict=True)
    ]
    return build_op_table(
        {
            "name": names,
            "kind": kinds,
            "phase": phases,
            "level": [call.level for call in calls],
            "scope": scopes,
            "parent": parents,
            "forward": forward,
            "recomputed": recomputed,
            "source": [site.source for site in call_sites],
            "stack": [site.stack for site in call_sites],
        }
    )


def _find_forward_calls(entries: Entries) -> Ints:
    """Return (calls,) the id of the forward call that a gradient belongs to, -1 if none."""
    forward = [-1] * len(entries.calls)
    for index, (name, call) in enumerate(zip(entries.ids, entries.calls, strict=True)):
        if call.entry_type != "forward":
            forward[index] = entries.ids.get(name_entry(name, call, "forward"), -1)
    return np.array(forward, dtype=np.int64)


def _find_modules(entries: Entries, construct: dict[str, Any]) -> tuple[Objects, Ints, Flags]:
    """Return what is around each call: scope, id, and whether it is an optimizer.

    The id is that of a recorded module call, -1 if there is none.
    """
    outer_names = [construct.get(name) for name in entries.ids]
    # many calls ran in one module call
    codes, different_names = pd.factorize(
        np.array([name if type(name) is str else "" for name in outer_names], dtype=object)
    )
    enclosures = [_find_module(name, construct, entries) for name in different_names]
    scopes, parents, in_optimizer = zip(*enclosures, strict=True)
    return (
        np.array(scopes, dtype=object)[codes],
        np.array(parents, dtype=np.int64)[codes],
        np.array(in_optimizer, dtype=bool)[codes],
    )


def _find_module(
    outer_name: str, construct: dict[str, Any], entries: Entries
) -> tuple[str, int, bool]:
    """Return what is around the calls for which construct.json names ``outer_name``.

    That is its scope, the id of the first recorded module call (-1 if there is none), and whether
    the optimizer runs there.
    """
    outer_call = entries.ids.get(outer_name, -1)
    if outer_call >= 0:
        return entries.calls[outer_call].scope, outer_call, False
    module = parse_name(outer_name) if outer_name not in _OPTIMIZER_NAMES else None
    scope = module.scope if module is not None else ""
    for _ in range(_MAX_NESTING):
        if not isinstance(outer_name, str) or not outer_name:
            break
        if outer_name in _OPTIMIZER_NAMES:
            return scope, -1, True
        if outer_name in entries.ids:
            return scope, entries.ids[outer_name], False
        outer_name = construct.get(outer_name, "")
    return scope, -1, False


def _cut_circles(ops: pd.DataFrame) -> list[Problem]:
    """Forget the parents of calls that would be inside themselves, and report them."""
    parent_column = ops["parent"].to_numpy()
    follows = parent_column > np.arange(len(ops))
    if (follows | (parent_column < 0)).all():  # a module call is recorded after the calls in it
        return []
    parents = parent_column.tolist()
    starts = [-1] * len(parents)  # from which call a call was reached first
    circles = []
    for start in range(len(parents)):
        call = start
        while call >= 0 and starts[call] < 0:
            starts[call] = start
            call = parents[call]
        if call >= 0 and starts[call] == start:
            circles.append(call)
            parents[call] = -1
    if not circles:
        return []
    ops["parent"] = parents
    first_name = ops["name"].iat[circles[0]]
    message = f"a module call is inside itself, which was not used: {first_name}"
    return [Problem("construct.json", message, count=len(circles), op=first_name)]


def _parse_sites(stacks: dict[str, Any]) -> dict[str, Site]:
    """Return the call site of every entry.

    Stacks are shared by number (8.1 and later) or given for each name (up to 1.3).
    """
    sites: dict[str, Site] = {}
    for key, value in stacks.items():
        match value:
            case [list(names), list(frames)] if key.isdecimal():
                shared_site = parse_site(frames)
                sites.update((name, shared_site) for name in names if isinstance(name, str))
            case list(frames):
                sites[key] = parse_site(frames)
    return sites


def _has_files(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _find_framework(header: dict[str, Any], calls: Sequence[Call]) -> str:
    """Return the framework in the header.

    Versions before 1.3 do not write it, then judge by the calls.
    """
    framework = header.get("framework")
    if framework in ("pytorch", "mindspore"):
        return str(framework)
    if framework == "mindtorch":
        return "mindspore"
    is_mindspore = any(call.kind.startswith(_MINDSPORE_FAMILIES) for call in calls)
    return "mindspore" if is_mindspore else "pytorch"


def _describe_variant(header: dict[str, Any], entries: Entries, stacks: dict[str, Any]) -> str:
    """Return in words which versions of msprobe write such a dump, with its task and level."""
    has_recompute_flag = entries.has_recompute_flag
    if "framework" not in header:
        version = "before 1.3"
    elif any(".parameters_grad." in name for name in entries.ids):
        version = "26.0" if has_recompute_flag else "26.2 or later"
    elif "0" in stacks:
        version = "8.1 to 8.3" if has_recompute_flag else "8.1 or later"
    else:
        version = "1.3" if stacks else "1.3 or later"
    task, level = header.get("task", "task unknown"), header.get("level", "unknown")
    return f"{version} ({task}, level {level})"
