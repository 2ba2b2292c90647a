"""Files ``rank_N/local_norm__NAME_float32_ID.npy`` of MindSpore's ``dump_local_norm_path``."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...model.errors import DumpError
from ...tensor_files.npy import open_array
from ..norms import Norms, build_norms

_FILE = re.compile(r"local_norm__(.+)_(float\d+|bfloat16)_(\d+)\.npy")
_GLOB = "local_norm__*.npy"
_RANK = re.compile(r"rank_(\d+)")


def find_rank_folders(folder: Path) -> dict[int, Path]:
    """Map ranks to the folders of their norms; empty if there are none.

    A folder that is not named after a rank counts as rank 0.
    """
    subfolders = [subfolder for subfolder in sorted(folder.glob("rank_*")) if subfolder.is_dir()]
    rank_folders: dict[int, Path] = {}
    for candidate in (folder, *subfolders):
        if not _list_files(candidate):
            continue
        match = _RANK.fullmatch(candidate.name)
        rank = int(match[1]) if match else 0
        rank_folders.setdefault(rank, candidate)
    return rank_folders


def read_norm_files(path: str, rank_folders: dict[int, Path], step: int | None) -> Norms:
    """Read the norms of the lowest rank at one step.

    Raises DumpError if there is no such step, or if a file is damaged.
    """
    rank = min(rank_folders)
    files_by_name = _list_files(rank_folders[rank])
    n_steps = max(map(len, files_by_name.values()))
    step_index = (step or 1) - 1
    step_files = []
    for name, numbered_files in files_by_name.items():
        if len(numbered_files) > step_index:
            number, file = sorted(numbered_files)[step_index]
            step_files.append((number, file, name))
    if not step_files:
        plural = "s" if n_steps > 1 else ""
        raise DumpError(f"{path}: has no step {step}; its files contain {n_steps} step{plural}")
    step_files.sort()
    values = [_read_value(file, name) for _, file, name in step_files]
    norms = build_norms(
        path,
        "MindSpore, files of dump_local_norm_path",
        tuple(name for _, _, name in step_files),
        np.array(values),
        squared=False,
        squared_reason="MindSpore writes roots",
    )
    notes = []
    if len(rank_folders) > 1:
        notes.append(f"only rank {rank} of {len(rank_folders)} ranks was read")
    n_missing = len(files_by_name) - len(step_files)
    if n_missing:
        notes.append(f"{n_missing} parameters have no file of step {step_index + 1}")
    return replace(norms, step=step_index + 1, notes=tuple(notes))


def _list_files(folder: Path) -> dict[str, list[tuple[int, Path]]]:
    """Map parameter names to (number, file) pairs: one for each step."""
    files_by_name: dict[str, list[tuple[int, Path]]] = {}
    for file in sorted(folder.glob(_GLOB)):
        match = _FILE.fullmatch(file.name)
        if match is not None:
            files_by_name.setdefault(match[1], []).append((int(match[3]), file))
    return files_by_name


def _read_value(file: Path, name: str) -> float:
    array = open_array(file)
    if array.size != 1:
        raise DumpError(f"{file}: holds {array.size} elements; expected the norm of {name}")
    return float(np.asarray(array, dtype=np.float64).reshape(-1)[0])
