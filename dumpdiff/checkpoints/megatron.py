"""Checkpoints of Megatron-LM: ``iter_*/mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt``, one per rank.

TT is the tensor-parallel rank, PPP the pipeline-parallel rank if there are several stages, EEE
the expert-parallel rank if experts are split (megatron/training/checkpointing.py,
get_checkpoint_name). A state dict holds ``model``, or ``model0``, ``model1``, ... for virtual
pipeline stages, and ``args``. Layers are numbered within a stage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..model.errors import DumpError
from ..model.input_files import read_head
from ..tensor_files.pickles import Global, PickledCall, get_mapping_items
from . import torch_zip
from .checkpoint import Entry, Rank

FORMAT = "megatron"

TRACKER = "latest_checkpointed_iteration.txt"
_RANK_FOLDER = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?")
_FILES = ("model_optim_rng.pt", "model_rng.pt", "model_states.pt")
_PLAIN_TYPES = (bool, int, float, str, type(None))  #: exact types; Global is a subclass of str
_MODEL_KEY = re.compile(r"model(\d*)")


def find_iteration(folder: Path) -> Path:
    """Return the folder of the iteration to read.

    It is the one that the tracker names, else the last ``iter_*``, else the folder itself.

    Raises DumpError if the tracker names an iteration that does not exist.
    """
    tracker = folder / TRACKER
    if tracker.is_file():
        return _read_tracker(tracker)
    iterations = [child for child in folder.glob("iter_*") if child.is_dir()]
    return max(iterations, default=folder)


def _read_tracker(tracker: Path) -> Path:
    folder = tracker.parent
    content = read_head(tracker, 40).decode("utf-8", errors="replace").strip()
    name = f"iter_{int(content):07d}" if content.isdecimal() else content
    is_expected_name = name in (f"iter_{content.zfill(7)}", "release")
    if is_expected_name and (folder / name).is_dir():
        return folder / name
    raise DumpError(f"{tracker}: names {content!r}, and {folder} has no such iteration")


def list_rank_folders(folder: Path) -> list[Path]:
    """Return the ``mp_rank_*`` folders, sorted."""
    candidates = [child for child in folder.glob("mp_rank_*") if child.is_dir()]
    return sorted(child for child in candidates if _RANK_FOLDER.fullmatch(child.name))


def read_entries(folder: Path) -> tuple[tuple[Entry, ...], Mapping[str, Any]]:
    """Return the entries of all ranks of one iteration, and the arguments of the run.

    Raises DumpError if a rank is missing or cannot be read.
    """
    entries: list[Entry] = []
    settings: dict[str, Any] = {}
    ranks: set[Rank] = set()
    for rank_folder in list_rank_folders(folder):
        candidates = [rank_folder / name for name in _FILES]
        file = next((candidate for candidate in candidates if candidate.is_file()), None)
        if file is None:
            raise DumpError(
                f"{rank_folder}: expected {_FILES[0]}, found none; copy the folder again"
            )
        archive = torch_zip.read_archive(file, file.relative_to(folder).as_posix())
        state = get_mapping_items(archive.value)
        if state is None:
            raise DumpError(f"{file}: expected a state dict with 'model', found something else")
        settings = settings or extract_arguments(state.get("args"))
        rank = _parse_rank(rank_folder.name, settings)
        ranks.add(rank)
        entries += _build_entries(archive, state, rank)
    _check_complete(folder, ranks)
    return tuple(entries), settings


def _build_entries(
    archive: torch_zip.Archive, state: Mapping[Any, Any], rank: Rank
) -> Iterator[Entry]:
    """Yield the tensors of ``model``, or of each ``modelN`` with N as the chunk of its rank."""
    for key, model in state.items():
        match = _MODEL_KEY.fullmatch(str(key))
        if match is None:
            continue
        chunk = int(match[1] or 0)
        for name, value in torch_zip.walk_leaves(model):
            entry = archive.build_entry(name, value)
            if entry is not None:
                yield replace(entry, rank=rank._replace(chunk=chunk))


def _parse_rank(folder_name: str, settings: Mapping[str, Any]) -> Rank:
    match = _RANK_FOLDER.fullmatch(folder_name)
    assert match is not None
    tensor, second, third = map(int, match.groups(default="0"))
    has_one_stage = settings.get("pipeline_model_parallel_size") == 1
    # With one pipeline stage a second number that is the last is the expert-parallel rank.
    if has_one_stage and match[3] is None:
        return Rank(tensor, 0, second)
    return Rank(tensor, second, third)


def _check_complete(folder: Path, ranks: set[Rank]) -> None:
    """Raise DumpError if a rank is missing: ranks form a grid."""
    for axis, name in enumerate(("tensor", "pipeline", "expert")):
        present = {rank[axis] for rank in ranks}
        missing = set(range(max(present, default=0) + 1)) - present
        if missing:
            raise DumpError(
                f"{folder}: {name}-parallel rank {min(missing)} is missing; copy the folder again"
            )


def extract_arguments(value: Any) -> dict[str, Any]:
    """Return the plain values of an ``argparse.Namespace`` in a pickle; empty for anything else.

    Lists and tuples of plain values are lists.
    """
    if isinstance(value, PickledCall) and value.function == Global("argparse Namespace"):
        value = value.state
    items = get_mapping_items(value)
    if items is None:
        return {}
    plain_items = {}
    for name, item in items.items():
        if type(item) in _PLAIN_TYPES:
            plain_items[str(name)] = item
        elif type(item) in (list, tuple) and {type(part) for part in item} <= set(_PLAIN_TYPES):
            plain_items[str(name)] = list(item)
    return plain_items
