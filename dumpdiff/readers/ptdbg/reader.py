"""ptdbg_ascend dumps: PyTorch API and module calls, one JSON list a line in a file called ``.pkl``.

Every era from the prototypes of 2022 to 6.0 is read by what its lines look like; version folders are not believed.
The tools that wrote 8 items a line (troubleshooter's API dump) are read too.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from ...model.dtypes import normalise
from ...model.errors import DumpError
from ...model.trace import Problem, Source, Trace, op_table, tensor_table
from .. import call_records
from ..files import read_head, is_pickle, is_plain_name, load_tensor, find_folder_number, find_text_files
from ..parts import Part
from .call_groups import CallGroups, group_lines
from .lines import Damage, is_dump, parse_name, read_lines

FORMAT = "ptdbg"

_API = re.compile(r"(Tensor|Torch|Functional|VF|NPU|Distributed|Aten|NN|Mint|Ops)[._](.+)")
_MODULE = re.compile(r"(?:(?P<scope>.+)[._])?(?P<type>[A-Za-z]\w*)")
_SMALLEST_PROCESS = 1000  #: a folder rankN of so large a number is called by the id of a process
_ERAS = {
    8: "troubleshooter's API dump: 8 items a line with MD5 and norm",
    5: "overflow dump: 5 items a line, no statistics",
    4: "prototype of 2022: 4 items a line, whole tensors in the line",
}

_normalise = lru_cache(maxsize=None)(normalise)


def find_parts(path: Path) -> list[Part]:
    """Every ptdbg_ascend file at or below ``path``; step and rank come from folders called ``stepN`` and ``rankR``."""
    return [
        Part(FORMAT, file, find_folder_number(file, "step"), *_rank(file), has_tensors=bool(_tensor_folders(file)))
        for file in find_text_files(path)
        if is_dump(read_head(file))
    ]


def _rank(file: Path) -> tuple[int | None, int | None]:
    """(rank, process): the folder of a process without a rank is called by its id, or its id + 100000."""
    number = find_folder_number(file, "rank")
    return (number, None) if number is None or number < _SMALLEST_PROCESS else (None, number)


def read_part(part: Part) -> Trace:
    """The trace of one file. Raises DumpError if it is a real pickle or holds no readable record."""
    path = part.path
    if is_pickle(path):
        raise DumpError(
            f"{path}: real pickle; not read (a ptdbg_ascend .pkl is text: JSON lines that start with '[')"
        )
    damage = Damage(path.name)
    try:
        grouped = group_lines(read_lines(path, damage), damage)
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from None
    if not grouped.records:
        raise DumpError(f"{path}: no record of a tensor in it; expected JSON lines of ptdbg_ascend")
    ops = _ops(grouped)
    files, missing = _files(path, grouped)
    tensors, exchanged = _tensors(grouped, ops, files)
    source = Source(
        path=str(path.parent),
        format=FORMAT,
        era=_era(grouped, exchanged),
        framework="pytorch"
        if any(record.dtype.startswith("torch.") for record in grouped.records)
        else "mindspore",
        step=part.step,
        rank=part.rank,
        process=part.process,
        low_precision_statistics=True,
        details={"file": path.name, "task": _task(grouped, files)},
    )
    return Trace(
        source, ops, tensors, (*damage.list_problems(), *missing), partial(load_tensor, path.parent)
    )


def _ops(grouped: CallGroups) -> pd.DataFrame:
    """The op table."""
    kinds, levels, scopes = zip(*(_classify(call.api) for call in grouped.calls), strict=True)
    backward = [call.is_backward for call in grouped.calls]
    phases, recomputed = call_records.assign_phases(kinds, backward, grouped.forward, grouped.sites)
    return op_table(
        {
            "name": grouped.names,
            "kind": kinds,
            "phase": phases,
            "level": levels,
            "scope": scopes,
            "forward": grouped.forward,
            "recomputed": recomputed,
            "source": [site.source for site in grouped.sites],
            "stack": [site.stack for site in grouped.sites],
        }
    )


def _tensors(grouped: CallGroups, ops: pd.DataFrame, files: list[str]) -> tuple[pd.DataFrame, bool]:
    """The tensor table, and whether backward inputs and outputs had to be exchanged."""
    dtypes = [_normalise(record.dtype) for record in grouped.records]
    shapes, sizes = zip(
        *(call_records.parse_shape_and_size(record.shape) for record in grouped.records), strict=True
    )
    recorded = _columns([record.statistics for record in grouped.records])
    columns: dict[str, Any] = {
        "op": grouped.ops,
        "slot": grouped.slots,
        "role": grouped.roles,
        "dtype": dtypes,
        "shape": shapes,
        "size": sizes,
        "hash": [record.hash for record in grouped.records],
        "constant": [record.dtype.startswith("<class") for record in grouped.records],
        "file": files,
        **call_records.build_statistic_columns(recorded, dtypes, sizes),
    }
    if exchanged := call_records.has_swapped_gradients(ops, table := tensor_table(columns)):
        where = ops["forward"].to_numpy()[table["op"].to_numpy()] >= 0
        columns["slot"], columns["role"] = call_records.swap_inputs_and_outputs(
            grouped.slots, grouped.roles, where
        )
        table = tensor_table(columns)
    table["trusted"] = call_records.find_trusted_rows(
        ops, table, inputs_before=False, gradients_complete=False, modules=False
    )
    return table, exchanged


def _files(path: Path, grouped: CallGroups) -> tuple[list[str], list[Problem]]:
    """The file of every record ('' if none) and problems; none at all where two processes wrote one dump."""
    folders = _tensor_folders(path)
    ambiguous = grouped.ambiguous
    if not folders:
        return [""] * len(grouped.records), []
    if ambiguous and all(call.is_indexed for call in grouped.calls):
        text = "names with different records: several processes wrote this dump, its tensor files were not used"
        return [""] * len(grouped.records), [Problem(path.name, text, None, len(ambiguous))]
    where = {name: folder for folder, names in folders.items() for name in names}
    files, absent = [], 0
    for record in grouped.records:
        unique = record.name not in ambiguous  # prototypes overwrite the file of an earlier call
        folder = where.get(f"{record.name}.npy") if unique and is_plain_name(record.name) else None
        absent += unique and not folder and not record.dtype.startswith("<class")
        files.append(f"{folder}/{record.name}.npy" if folder else "")
    text = "the record's tensor file is missing, its statistics were used"
    return files, [Problem(path.name, text, None, absent)] if absent else []


def _tensor_folders(path: Path) -> Mapping[str, set[str]]:
    """Folders beside the file that hold its tensors: the one of its own name, else any with npy files of call names."""
    own = path.parent / path.stem
    candidates = (
        [own]
        if own.is_dir()
        else sorted(entry for entry in path.parent.iterdir() if entry.is_dir())
    )
    found = {}
    for folder in candidates:
        names = {name for name in os.listdir(folder) if name.endswith(".npy")}
        if names and parse_name(next(iter(names)).removesuffix(".npy")):
            found[folder.name] = names
    return found


def _columns(rows: list[list[Any]]) -> Iterable[list[Any]]:
    """Four columns of the rows [max, min, mean, norm], [max, min, mean] and []."""
    return (
        list(column)
        for column in zip(*((*row, None, None, None, None)[:4] for row in rows), strict=True)
    )


def _classify(api: str) -> tuple[str, str, str]:
    """Kind, level and scope of a name without index: ``Functional_linear``, ``layers.0.wq.Linear``, ``MyBlock``."""
    api = re.sub(r"^\d+_", "", api)
    if match := _API.fullmatch(api):
        return f"{match[1]}.{match[2]}", "op", ""
    match = _MODULE.fullmatch(api.removeprefix("Module_").removeprefix("Module."))
    if match is None:
        return "Module", "module", api
    return f"Module.{match['type']}", "module", match["scope"] or ""


def _era(grouped: CallGroups, exchanged: bool) -> str:
    """What tells this generation apart, in words."""
    made, recorded = grouped.calls, grouped.records
    items = Counter(record.n_items for record in recorded).most_common(1)[0][0]
    if items != 6:
        said = _ERAS[items]
    elif any(call.name[:1].isdigit() for call in made):
        said = "prototype of early 2023: calls are numbered through"
    else:
        norm = any(len(record.statistics) == 4 for record in recorded)
        checksums = any(record.hash for record in recorded)
        separator = (
            "." if any(call.name.endswith((".forward", ".backward")) for call in made) else "_"
        )
        generation = (
            "6.0" if separator == "." else "4.0.T2 to 5.0" if norm or checksums else "1.0 to 4.0.T1"
        )
        content = "CRC-32" if checksums else "max, min, mean, norm" if norm else "max, min, mean"
        said = f"{generation} ('{separator}' in names; {content})"
    return said + ("; backward input and output were exchanged" if exchanged else "")


def _task(grouped: CallGroups, files: list[str]) -> str:
    if any(files):
        return "tensor"
    return (
        "md5"
        if any(record.hash and not record.statistics for record in grouped.records)
        else "statistics"
    )
