"""Norms of gradients in the CSV files of msprobe's monitors (``TrainerMon``, ``TrainerMonitorV2``).

Reduced gradients are those that the optimizer gets. The monitors count steps from 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...model.errors import DumpError
from ...model.input_files import iterate_folders
from ...model.trace import Problem
from ...readers.monitor import Row, find_rank, find_scope_v1, list_columns, read_rows
from ...readers.monitor.rows import REDUCED, UNREDUCED
from ..norms import Norms, build_norms

_SCOPES = (REDUCED, UNREDUCED)
#: Steps that are listed in a message, at most.
_MAX_LISTED_STEPS = 12


def find_monitor_files(path: Path) -> list[Path]:
    """Return the files that may hold gradients at or below a path, recognized by their columns."""
    candidates = [path]
    if not path.is_file():
        candidates = [
            Path(folder) / name
            for folder, _, names in iterate_folders(path)
            for name in names
            if name.endswith(".csv")
        ]
    return [file for file in candidates if _may_hold_gradients(file)]


def read_monitor_norms(path: str, files: Sequence[Path], step: int | None) -> Norms:
    """Read the norms of the lowest rank at one step, after devices have exchanged gradients.

    ``step`` counts from 1. Without reduced gradients, those before the exchange are read. Raises
    DumpError if there is no such step, or no norm.
    """
    ranks = [find_rank(file) or 0 for file in files]
    rank, n_ranks = min(ranks), len(set(ranks))
    rows, problems = _read_gradients([file for file, own in zip(files, ranks, strict=True)
                                      if own == rank])  # fmt: skip
    steps = sorted({row.step for row in rows})
    if not steps:
        reason = f"; {problems[0]}" if problems else ""
        raise DumpError(f"{path}: the CSV of msprobe's monitor holds no norm of a gradient{reason}")
    chosen_step = steps[0] if step is None else step - 1
    if chosen_step not in steps:
        listed = ", ".join(str(number + 1) for number in steps[:_MAX_LISTED_STEPS])
        raise DumpError(f"{path}: has no step {step}; it has {listed}")
    scopes = {row.scope for row in rows if row.step == chosen_step}
    scope = REDUCED if REDUCED in scopes else UNREDUCED
    chosen_rows = {  # the last micro-batch of each parameter
        row.name: row for row in rows if (row.step, row.scope) == (chosen_step, scope)
    }
    shapes = [row.shape for row in chosen_rows.values()]
    norms = build_norms(
        path,
        f"msprobe's monitor, {scope} gradients",
        tuple(chosen_rows),
        np.array([row.norm for row in chosen_rows.values()]),
        raw_rounding=np.array([row.rounding for row in chosen_rows.values()]),
        sizes=np.array([-1 if shape is None else math.prod(shape) for shape in shapes]),
        vector_flags=np.array([-1 if shape is None else len(shape) <= 1 for shape in shapes]),
        squared=False,
        squared_reason="msprobe writes roots",
    )
    notes = [f"only rank {rank} of {n_ranks} ranks was read"] if n_ranks > 1 else []
    return replace(norms, step=chosen_step + 1, notes=tuple(notes), problems=tuple(problems))


def _may_hold_gradients(file: Path) -> bool:
    columns = list_columns(file)
    has_scope = "scope" in columns or find_scope_v1(file) in _SCOPES
    return "norm" in columns and has_scope


def _read_gradients(files: Sequence[Path]) -> tuple[list[Row], list[Problem]]:
    rows: list[Row] = []
    problems: list[Problem] = []
    for file in files:
        file_rows, file_problems = read_rows(file)
        rows += [row for row in file_rows if row.scope in _SCOPES]
        problems += file_problems
    return rows, problems
