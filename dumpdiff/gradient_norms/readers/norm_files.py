"""``rank_N/local_norm__NAME_float32_ID.npy``, as MindSpore's ``dump_local_norm_path`` writes them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...model.errors import DumpError
from ...readers.npy import open_array
from ..side import Norms, norms_of

_FILE = re.compile(r"local_norm__(.+)_(float\d+|bfloat16)_(\d+)\.npy")
_RANK = re.compile(r"rank_(\d+)")


def found(folder: Path) -> dict[int, Path]:
    """Rank -> the folder that holds its norms; empty if there are none."""
    places = [
        (folder, folder.name),
        *((place, place.name) for place in sorted(folder.glob("rank_*")) if place.is_dir()),
    ]
    ranks: dict[int, Path] = {}
    for place, name in places:
        if any(_FILE.fullmatch(file.name) for file in place.glob("local_norm__*.npy")):
            match = _RANK.fullmatch(name)
            ranks.setdefault(int(match[1]) if match else 0, place)
    return ranks


def read(path: str, ranks: dict[int, Path], step: int | None) -> Norms:
    """The norms of the lowest rank at one step. Raises DumpError if there is no such step, or a file is damaged."""
    rank = min(ranks)
    by_name: dict[str, list[tuple[int, Path]]] = {}
    for file in sorted(ranks[rank].glob("local_norm__*.npy")):
        if match := _FILE.fullmatch(file.name):
            by_name.setdefault(match[1], []).append((int(match[3]), file))
    steps = max(map(len, by_name.values()))
    turn = (step or 1) - 1
    order = sorted(
        (sorted(files)[turn], name) for name, files in by_name.items() if len(files) > turn
    )
    if not order:
        raise DumpError(
            f"{path}: has no step {step}; its files are of {steps} step{'s' if steps > 1 else ''}"
        )
    values = []
    for (_, file), name in order:
        array = open_array(file)
        if array.size != 1:
            raise DumpError(f"{file}: holds {array.size} elements; expected the norm of {name}")
        values.append(float(np.asarray(array, dtype=np.float64).reshape(-1)[0]))
    notes = [f"rank {rank} of {len(ranks)} was read"] if len(ranks) > 1 else []
    short = len(by_name) - len(order)
    norms = norms_of(
        path,
        "MindSpore, files of dump_local_norm_path",
        tuple(name for _, name in order),
        np.array(values),
        squared=False,
        because="MindSpore writes roots",
    )
    return replace(
        norms,
        step=turn + 1,
        notes=(*notes, *([f"{short} parameters have no file of step {turn + 1}"] if short else [])),
    )
