"""CSV files of gradients that the monitors of msprobe write (``TrainerMon``, ``TrainerMonitorV2``).

Version 1 writes ``grad_reduced_0-0.csv`` and ``grad_unreduced_0-0.csv`` into a folder of each rank,
with six decimals; version 2 writes ``rank_0/weight_grad_step0-0.csv`` with a column ``scope``.
Reduced gradients are those that the optimizer gets. Their steps count from 0.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...model.errors import DumpError
from ...model.input_files import iterate_folders, open_input_text, read_head
from ...model.trace import Problem
from ..norms import Norms, build_norms

_HEAD_SIZE = 1024
_FIRST_COLUMN = b"vpp_stage,"
_REDUCED = "reduced"
#: Columns of version 1 and of version 2.
_NAME_COLUMNS = ("name", "module_name")
_FILE_V1 = re.compile(r"grad_(reduced|unreduced)_\d+-\d+\.csv")
_RANK = re.compile(r"(?:^|-)rank_?(\d{1,9})(?:-|$)")
_DECIMALS_V1 = 5e-7  #: half of the last decimal of version 1
_MAX_STEP_DIGITS = 15
#: Steps that are listed in a message, at most.
_MAX_LISTED_STEPS = 12


@dataclass(frozen=True)
class MonitorFile:
    """One file of gradients."""

    path: Path
    is_v1: bool
    rank: int  #: 0 if its folder is not named after a rank


@dataclass(frozen=True)
class _Row:
    """The gradient of one parameter at one step."""

    name: str
    step: int
    scope: str
    norm: float
    size: int
    is_vector: int


def find_monitor_files(path: Path) -> list[MonitorFile]:
    """Return the files of gradients at or below a path, recognized by their columns."""
    if path.is_file():
        candidates = [path]
    else:
        candidates = [
            Path(folder) / name
            for folder, _, names in iterate_folders(path)
            for name in names
            if name.endswith(".csv")
        ]
    files = []
    for file in candidates:
        head = read_head(file, _HEAD_SIZE)
        if not head.startswith(_FIRST_COLUMN):
            continue
        columns = head.partition(b"\n")[0].decode("utf-8", "replace").strip().split(",")
        is_v1 = _FILE_V1.fullmatch(file.name) is not None
        if "norm" in columns and (is_v1 or {"scope", "module_name"} <= set(columns)):
            match = _RANK.search(file.parent.name)
            files.append(MonitorFile(file, is_v1, int(match[1]) if match else 0))
    return files


def read_monitor_norms(path: str, files: Sequence[MonitorFile], step: int | None) -> Norms:
    """Read the norms of the lowest rank at one step, after devices have exchanged gradients.

    ``step`` counts from 1. Without reduced gradients, those before the exchange are read. Raises
    DumpError if there is no such step, or no norm.
    """
    rank = min(file.rank for file in files)
    rows: list[_Row] = []
    problems: list[Problem] = []
    for file in files:
        if file.rank == rank:
            file_rows, file_problems = _read_rows(file)
            rows += file_rows
            problems += file_problems
    steps = sorted({row.step for row in rows})
    if not steps:
        reason = f"; {problems[0]}" if problems else ""
        raise DumpError(f"{path}: the CSV of msprobe's monitor holds no norm of a gradient{reason}")
    chosen_step = steps[0] if step is None else step - 1
    if chosen_step not in steps:
        listed = ", ".join(str(number + 1) for number in steps[:_MAX_LISTED_STEPS])
        raise DumpError(f"{path}: has no step {step}; it has {listed}")
    scopes = {row.scope for row in rows if row.step == chosen_step}
    scope = _REDUCED if _REDUCED in scopes else min(scopes)
    chosen_rows = {  # the last micro-batch of each parameter
        row.name: row for row in rows if (row.step, row.scope) == (chosen_step, scope)
    }
    is_v1 = any(file.is_v1 for file in files)
    norms = build_norms(
        path,
        f"msprobe's monitor, {scope} gradients",
        tuple(chosen_rows),
        np.array([row.norm for row in chosen_rows.values()]),
        raw_rounding=np.full(len(chosen_rows), _DECIMALS_V1 if is_v1 else 0.0),
        sizes=np.array([row.size for row in chosen_rows.values()], dtype=np.int64),
        vector_flags=np.array([row.is_vector for row in chosen_rows.values()], dtype=np.int64),
        squared=False,
        squared_reason="msprobe writes roots",
    )
    n_ranks = len({file.rank for file in files})
    notes = [f"only rank {rank} of {n_ranks} ranks was read"] if n_ranks > 1 else []
    return replace(norms, step=chosen_step + 1, notes=tuple(notes), problems=tuple(problems))


def _read_rows(file: MonitorFile) -> tuple[list[_Row], list[Problem]]:
    rows, problems = [], []
    match = _FILE_V1.fullmatch(file.path.name)
    try:
        with open_input_text(file.path, newline="") as stream:
            reader = csv.DictReader(stream)
            for record in reader:
                row = _parse_row(record, match[1] if match else str(record.get("scope")))
                if row is None:
                    message = "expected a name, a step and a norm; the row was left out"
                    problems.append(Problem(file.path.name, message, reader.line_num, weakens=True))
                else:
                    rows.append(row)
    except OSError as error:
        raise DumpError(f"{file.path}: cannot be read ({error.strerror})") from None
    except csv.Error as error:
        problems.append(Problem(file.path.name, f"broken CSV ({error}); the rest was left out"))
    return rows, problems


def _parse_row(record: dict[str, str], scope: str) -> _Row | None:
    name = next((record[column] for column in _NAME_COLUMNS if record.get(column)), "")
    step = (record.get("step") or "").strip()
    if not name or not step.isdecimal() or len(step) > _MAX_STEP_DIGITS:
        return None
    try:
        norm = float(record.get("norm") or "")
    except ValueError:
        return None
    size, is_vector = _parse_shape(record.get("shape") or "")
    return _Row(name, int(step), scope, norm, size, is_vector)


def _parse_shape(text: str) -> tuple[int, int]:
    """Return (elements, whether there is at most one axis) of '[64, 16]'; -1 if unknown."""
    if not re.fullmatch(r"\[(\d{1,9}(, \d{1,9})*)?\]", text, re.ASCII):
        return -1, -1
    extents = [int(word) for word in text[1:-1].split(", ") if word]
    return math.prod(extents), int(len(extents) <= 1)
