"""Read ptdbg_ascend dumps (0.1 to 6.0): PyTorch API and module calls in a ``.pkl`` file.

Every version, from the prototypes of 2022 to 6.0, is recognized by the form of its lines; names of
version folders are not used. Lines of 8 items (troubleshooter's API dump) are read too. The whole
tensors are .npy files in a folder next to the ``.pkl``.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from ...model.dtypes import normalize_dtype
from ...model.errors import DumpError
from ...model.input_files import is_plain_name
from ...model.trace import Problem, Source, Trace, build_op_table, build_tensor_table
from .. import call_records
from ..files import Listing, find_folder_number, is_pickle, load_tensor
from ..parts import Part
from .call_groups import CallGroups, group_lines
from .lines import Damage, Record, parse_name, read_lines

FORMAT = "ptdbg"

_API = re.compile(r"(Tensor|Torch|Functional|VF|NPU|Distributed|Aten|NN|Mint|Ops)[._](.+)")
_MODULE = re.compile(r"(?:(?P<scope>.+)[._])?(?P<type>[A-Za-z]\w*)")

#: From this number on, the N of a folder rankN is the id of a process (or its id + 100000).
_MIN_PROCESS = 1000

#: Number of items in a line -> the version, if the number is unique to it.
_VARIANTS = {
    8: "troubleshooter's API dump: 8 items a line with MD5 and norm",
    5: "overflow dump: 5 items a line, no statistics",
    4: "prototype of 2022: 4 items a line, whole tensors in the line",
}

_normalize_dtype = lru_cache(maxsize=None)(normalize_dtype)


def find_parts(listing: Listing) -> list[Part]:
    """List every ptdbg_ascend file.

    Step and rank are the numbers of the folders ``stepN`` and ``rankR``.
    """
    parts = []
    for file in listing.index_files[FORMAT]:
        step = find_folder_number(file, "step")
        rank, process = _find_rank(file)
        has_whole_tensors = bool(_find_tensor_folders(file))
        parts.append(Part(FORMAT, file, step, rank, process, has_whole_tensors=has_whole_tensors))
    return parts


def _find_rank(file: Path) -> tuple[int | None, int | None]:
    """Return (rank, process).

    A process without a rank has a folder rankN with the id of the process.
    """
    number = find_folder_number(file, "rank")
    if number is None or number < _MIN_PROCESS:
        return number, None
    return None, number


def read_part(part: Part) -> Trace:
    """Return the trace of one file.

    Raises DumpError if it is a pickle or holds no readable record.
    """
    path = part.path
    if is_pickle(path):
        raise DumpError(
            f"{path}: real pickle; not read "
            "(a ptdbg_ascend .pkl is text: JSON lines that start with '[')"
        )
    damage = Damage(path.name)
    try:
        groups = group_lines(read_lines(path, damage), damage)
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from None
    if not groups.records:
        raise DumpError(f"{path}: no record of a tensor in it; expected JSON lines of ptdbg_ascend")
    ops = _build_op_table(groups)
    files, file_problems = _find_files(path, groups)
    statistics = _parse_statistics(groups)
    tensors, was_swapped = _build_tensor_table(groups, statistics, ops, files)
    is_pytorch = any(record.dtype.startswith("torch.") for record in groups.records)
    source = Source(
        path=str(path.parent),
        format=FORMAT,
        format_variant=_describe_variant(groups, was_swapped),
        framework="pytorch" if is_pytorch else "mindspore",
        step=part.step,
        rank=part.rank,
        process=part.process,
        low_precision_statistics=True,
        details={"file": path.name, "task": _name_task(groups.records, files)},
    )
    problems = (
        *damage.list_problems(),
        *file_problems,
        *call_records.find_missing_calls(groups.names, path.name),
        *call_records.find_undefined_sums(statistics, groups.ops, groups.names, path.name),
    )
    return Trace(source, ops, tensors, problems, partial(load_tensor, path.parent))


def _build_op_table(groups: CallGroups) -> pd.DataFrame:
    kinds, levels, scopes = zip(*(_classify_call(call.api) for call in groups.calls), strict=True)
    is_backward = [call.is_backward for call in groups.calls]
    phases, recomputed = call_records.assign_phases(
        kinds, is_backward, groups.forward, groups.sites
    )
    return build_op_table(
        {
            "name": groups.names,
            "kind": kinds,
            "phase": phases,
            "level": levels,
            "scope": scopes,
            "forward": groups.forward,
            "recomputed": recomputed,
            "source": [site.source for site in groups.sites],
            "stack": [site.stack for site in groups.sites],
        }
    )


def _build_tensor_table(
    groups: CallGroups,
    statistics: call_records.RecordedStatistics,
    ops: pd.DataFrame,
    files: list[str],
) -> tuple[pd.DataFrame, bool]:
    """Return the tensor table, and whether backward inputs and outputs had to be swapped."""
    dtypes = [_normalize_dtype(record.dtype) for record in groups.records]
    shapes, sizes = [], []
    for record in groups.records:
        shape, size = call_records.parse_shape_and_size(record.shape)
        shapes.append(shape)
        sizes.append(size)
    columns: dict[str, Any] = {
        "op": groups.ops,
        "slot": groups.slots,
        "slot_kind": groups.slot_kinds,
        "dtype": dtypes,
        "shape": shapes,
        "size": sizes,
        "hash": [record.hash for record in groups.records],
        "constant": [_is_scalar(record) for record in groups.records],
        "file": files,
        **call_records.build_statistic_columns(statistics, dtypes, sizes),
    }
    table = build_tensor_table(columns)
    was_swapped = call_records.has_swapped_gradients(ops, table)
    if was_swapped:
        is_gradient = ops["forward"].to_numpy()[table["op"].to_numpy()] >= 0
        columns["slot"], columns["slot_kind"] = call_records.swap_inputs_and_outputs(
            groups.slots, groups.slot_kinds, is_gradient
        )
        table = build_tensor_table(columns)
    table["trusted"] = call_records.find_trusted_rows(
        ops, table, inputs_before=False, gradients_complete=False, modules=False
    )
    return table, was_swapped


def _is_scalar(record: Record) -> bool:
    """Whether the record is a Python scalar, whose dtype is a class: ``<class 'float'>``."""
    return record.dtype.startswith("<class")


def _find_files(path: Path, groups: CallGroups) -> tuple[list[str], list[Problem]]:
    """Return the file of every record ('' if none) and problems.

    If two processes wrote one dump, no file is used.
    """
    folders = _find_tensor_folders(path)
    n_records = len(groups.records)
    if groups.ambiguous and all(call.is_indexed for call in groups.calls):
        message = "names with different records: several processes wrote this dump"
        if folders:
            message += ", its tensor files were not used"
        problem = Problem(path.name, message, count=len(groups.ambiguous), weakens=True)
        return [""] * n_records, [problem]
    if not folders:
        return [""] * n_records, []
    folder_of = {name: folder for folder, names in folders.items() for name in names}
    files, n_missing = [], 0
    for record in groups.records:
        # prototypes overwrite the file of an earlier call of the same name
        is_unique = record.name not in groups.ambiguous
        folder = None
        if is_unique and is_plain_name(record.name):
            folder = folder_of.get(f"{record.name}.npy")
        if is_unique and not folder and not _is_scalar(record):
            n_missing += 1
        files.append(f"{folder}/{record.name}.npy" if folder else "")
    if not n_missing:
        return files, []
    message = "the record's tensor file is missing, its statistics were used"
    return files, [Problem(path.name, message, None, n_missing)]


def _find_tensor_folders(path: Path) -> Mapping[str, set[str]]:
    """Return the folders next to the file that hold its tensors, with the names of the npy files.

    This is the folder with the name of the file, or else every folder with npy files named after
    calls.
    """
    tensor_folders = {}
    for folder in _list_candidate_folders(path):
        names = {name for name in os.listdir(folder) if name.endswith(".npy")}
        if names and parse_name(next(iter(names)).removesuffix(".npy")):
            tensor_folders[folder.name] = names
    return tensor_folders


def _list_candidate_folders(path: Path) -> list[Path]:
    """Return the folder with the name of the file, or else all folders next to the file."""
    same_name_folder = path.parent / path.stem
    if same_name_folder.is_dir():
        return [same_name_folder]
    return sorted(entry for entry in path.parent.iterdir() if entry.is_dir())


def _parse_statistics(groups: CallGroups) -> call_records.RecordedStatistics:
    """Parse the statistics of all records: [max, min, mean, norm], [max, min, mean] or []."""
    rows = ((*record.statistics, None, None, None, None)[:4] for record in groups.records)
    return call_records.parse_statistics([list(column) for column in zip(*rows, strict=True)])


def _classify_call(api: str) -> tuple[str, str, str]:
    """Return kind, level and scope of a call's name without its index.

    Examples of such names: ``Functional_linear``, ``layers.0.wq.Linear``, ``MyBlock``.
    """
    api = re.sub(r"^\d+_", "", api)
    api_match = _API.fullmatch(api)
    if api_match is not None:
        return f"{api_match[1]}.{api_match[2]}", "op", ""
    module_match = _MODULE.fullmatch(api.removeprefix("Module_").removeprefix("Module."))
    if module_match is None:
        return "Module", "module", api
    return f"Module.{module_match['type']}", "module", module_match["scope"] or ""


def _describe_variant(groups: CallGroups, was_swapped: bool) -> str:
    """Return in words which versions write such a dump."""
    item_counts = Counter(record.n_items for record in groups.records)
    n_items = item_counts.most_common(1)[0][0]
    if n_items != 6:
        variant = _VARIANTS[n_items]
    elif any(call.name[:1].isdecimal() for call in groups.calls):
        variant = "prototype of early 2023: calls are numbered through"
    else:
        variant = _describe_release(groups)
    return f"{variant}; backward input and output were exchanged" if was_swapped else variant


def _describe_release(groups: CallGroups) -> str:
    """Return the releases that write such lines of 6 items: by separators, norms and checksums."""
    has_norms = any(len(record.statistics) == 4 for record in groups.records)
    has_checksums = any(record.hash for record in groups.records)
    has_dots = any(call.name.endswith((".forward", ".backward")) for call in groups.calls)
    if has_dots:
        release = "6.0"
    elif has_norms or has_checksums:
        release = "4.0.T2 to 5.0"
    else:
        release = "1.0 to 4.0.T1"
    if has_checksums:
        content = "CRC-32"
    elif has_norms:
        content = "max, min, mean, norm"
    else:
        content = "max, min, mean"
    separator = "." if has_dots else "_"
    return f"{release} ('{separator}' in names; {content})"


def _name_task(records: list[Record], files: list[str]) -> str:
    """Return the task in msprobe's words: tensor, md5 or statistics."""
    if any(files):
        return "tensor"
    for record in records:
        if record.hash and not record.statistics:
            return "md5"
    return "statistics"
