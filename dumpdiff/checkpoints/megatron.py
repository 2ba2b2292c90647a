"""Checkpoints of Megatron-LM: ``iter_*/mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt``, one state dict for each rank.

TT is the tensor-parallel rank, PPP the pipeline-parallel one if there is more than one stage, EEE the
expert-parallel one if experts are split (megatron/training/checkpointing.py, get_checkpoint_name). A state dict holds
``model``, or ``model0``, ``model1``, ... for virtual pipeline stages, and ``args``. Layers are numbered within a stage.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..model.errors import DumpError
from ..readers.pickles import Called, Global, mapping_of
from . import torch_zip
from .checkpoint import Entry, Rank

FORMAT = "megatron"

TRACKER = "latest_checkpointed_iteration.txt"
_RANK = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?")
_FILES = ("model_optim_rng.pt", "model_rng.pt", "model_states.pt")
_PLAIN = (bool, int, float, str, type(None))  #: a Global, which is a str as well, says nothing here
_MODEL = re.compile(r"model(\d*)")


def latest(folder: Path) -> Path:
    """The iteration that a folder's tracker names, else its last ``iter_*``, else the folder itself."""
    tracker = folder / TRACKER
    if tracker.is_file():
        said = tracker.read_text(encoding="utf-8", errors="replace")[:40].strip()
        name = f"iter_{int(said):07d}" if said.isdecimal() else said
        if name in (f"iter_{said.zfill(7)}", "release") and (folder / name).is_dir():
            return folder / name
        raise DumpError(f"{tracker}: names {said!r}, and {folder} has no such iteration")
    iterations = sorted(place for place in folder.glob("iter_*") if place.is_dir())
    return iterations[-1] if iterations else folder


def rank_folders(folder: Path) -> list[Path]:
    """The ``mp_rank_*`` folders, in order."""
    return sorted(
        place
        for place in folder.glob("mp_rank_*")
        if place.is_dir() and _RANK.fullmatch(place.name)
    )


def read(folder: Path) -> tuple[tuple[Entry, ...], Mapping[str, Any]]:
    """The entries of all ranks of one iteration, and the arguments of the run.

    Raises DumpError if a rank is missing or cannot be read.
    """
    found: list[Entry] = []
    settings: dict[str, Any] = {}
    seen: set[Rank] = set()
    for place in rank_folders(folder):
        file = next((place / name for name in _FILES if (place / name).is_file()), None)
        if file is None:
            raise DumpError(f"{place}: expected {_FILES[0]}, found none; copy the folder again")
        archive = torch_zip.archive(file, file.relative_to(folder).as_posix())
        saved = mapping_of(archive.value)
        if saved is None:
            raise DumpError(f"{file}: expected a state dict with 'model', found something else")
        settings = settings or arguments(saved.get("args"))
        rank = _rank(place.name, settings)
        seen.add(rank)
        for key, model in saved.items():
            if (named := _MODEL.fullmatch(str(key))) is None:
                continue
            for name, value in torch_zip.leaves(model):
                if (entry := archive.tensor(name, value)) is not None:
                    found.append(replace(entry, rank=rank._replace(chunk=int(named[1] or 0))))
    _check_complete(folder, seen)
    return tuple(found), settings


def _rank(name: str, settings: Mapping[str, Any]) -> Rank:
    matched = _RANK.fullmatch(name)
    assert matched is not None
    tensor, second, third = (int(number) if number else 0 for number in matched.groups())
    stages = settings.get("pipeline_model_parallel_size")
    if (
        matched[2] and not matched[3] and stages == 1
    ):  # one stage: the second number is the experts'
        return Rank(tensor, 0, second)
    return Rank(tensor, second, third)


def _check_complete(folder: Path, seen: set[Rank]) -> None:
    """Ranks form a grid: raise DumpError if one is missing."""
    for axis, name in enumerate(("tensor", "pipeline", "expert")):
        present = {rank[axis] for rank in seen}
        missing = set(range(max(present, default=0) + 1)) - present
        if missing:
            raise DumpError(
                f"{folder}: {name}-parallel rank {min(missing)} is missing; copy the folder again"
            )


def arguments(value: Any) -> dict[str, Any]:
    """The plain values of an ``argparse.Namespace``; empty for anything else."""
    if isinstance(value, Called) and value.what == Global("argparse Namespace"):
        value = value.state
    items = mapping_of(value)
    if items is None:
        return {}
    return {str(name): item for name, item in items.items() if type(item) in _PLAIN}
