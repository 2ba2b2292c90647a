"""Which format a path is, by what it holds."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..model.errors import DumpError
from ..model.trace import Problem
from ..readers.files import head
from ..readers.npy import MAGIC
from . import (
    megatron,
    mindspore_ckpt,
    mindspore_ranks,
    numpy_files,
    safetensors,
    torch_dist,
    torch_zip,
)
from .checkpoint import Checkpoint, Entry

_LARGEST_CONFIG = 1 << 24  #: bytes
_RANK = re.compile(r"rank_(\d+)")
_EXPECTED = "a checkpoint (safetensors, MindSpore .ckpt, torch .pt or .bin, npy, a Megatron or Hugging Face folder)"
#: Of the torch and safetensors files of a folder these are the model, where there are any; the rest is its optimizer.
_MODEL_FILE = re.compile(r"(pytorch_)?model\b.*|model[-_.].*|consolidated.*")


def open_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint at ``path``: a file or a folder. Raises DumpError if it holds none that can be read."""
    given = Path(path)
    if not given.exists():
        raise DumpError(f"{given}: no such file or folder")
    opened = _file(given) if given.is_file() else _folder(given, given)
    if not opened.entries:
        raise DumpError(f"{given}: holds no tensors")
    return opened


def _file(given: Path) -> Checkpoint:
    if given.name.endswith(".index.json"):
        return _one_model(
            given, given.parent, [given.parent / name for name in safetensors.indexed_files(given)]
        )
    if given.name == torch_dist.METADATA:
        return _folder(given, given.parent)
    return _one_model(given, given.parent, [given])


def _folder(given: Path, folder: Path) -> Checkpoint:
    folder = megatron.latest(folder)
    if megatron.rank_folders(folder):
        entries, settings = megatron.read(folder)
        return Checkpoint(given, folder, megatron.FORMAT, entries, settings)
    if (folder / torch_dist.METADATA).is_file():
        entries, settings, problems = torch_dist.read(folder)
        return Checkpoint(given, folder, torch_dist.FORMAT, entries, settings, tuple(problems))
    files = sorted(
        file for file in folder.iterdir() if file.is_file() and not file.name.startswith(".")
    )
    indexes = [file for file in files if file.name.endswith(".index.json")]
    if indexes:  # of two (safetensors and bin of one model) the safetensors
        index = next((file for file in indexes if "safetensors" in file.name), indexes[0])
        return _one_model(
            given, folder, [folder / name for name in safetensors.indexed_files(index)]
        )
    ranks = {
        int(matched[1]): place
        for place in folder.iterdir()
        if (matched := _RANK.fullmatch(place.name))
    }
    if ranks and not any(map(_kind, files)):
        return _ranks(given, folder, ranks)
    return _plain_folder(given, folder, files)


def _plain_folder(given: Path, folder: Path, files: list[Path]) -> Checkpoint:
    """Files that nothing but their content tells apart."""
    kinds = {kind: [file for file in files if _kind(file) == kind] for kind in _ENTRIES}
    for (
        kind,
        found,
    ) in kinds.items():  # in the order of the table: one folder often has a model in two formats
        if found:
            if kind == mindspore_ckpt.FORMAT:
                return _one_model(given, folder, [max(found, key=_natural)], len(found))
            # An .npy file is called after its parameter, and many a parameter's name begins with 'model.'
            models = [
                file
                for file in found
                if kind != numpy_files.FORMAT and _MODEL_FILE.fullmatch(file.name)
            ]
            return _one_model(given, folder, models or found)
    raise DumpError(f"{given}: expected {_EXPECTED}, found none")


def _natural(file: Path) -> list[tuple[int, str]]:
    """Names in the order in which people count: step 10 after step 9."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part)
        for part in re.split(r"(\d+)", file.name)
    ]


def _kind(file: Path) -> str:
    """The format of a single file, '' if unknown."""
    start = head(file, 6)
    if safetensors.is_safetensors(file):
        return safetensors.FORMAT
    if start.startswith(b"PK\x03\x04"):
        return (
            torch_zip.FORMAT
            if torch_zip.is_torch(file)
            else numpy_files.FORMAT
            if file.suffix == ".npz"
            else ""
        )
    if start == MAGIC:
        return numpy_files.FORMAT
    return mindspore_ckpt.FORMAT if start[:1] == b"\n" and mindspore_ckpt.is_mindspore(file) else ""


def _safetensors(file: Path, name: str) -> tuple[list[Entry], list[Problem]]:
    return safetensors.entries(file, name)


def _torch(file: Path, name: str) -> tuple[list[Entry], list[Problem]]:
    return torch_zip.entries(file, name), []


def _numpy(file: Path, name: str) -> tuple[list[Entry], list[Problem]]:
    return (
        numpy_files.archive(file, name)
        if file.suffix == ".npz"
        else [numpy_files.entry(file, name)]
    ), []


_ENTRIES = {
    safetensors.FORMAT: _safetensors,
    torch_zip.FORMAT: _torch,
    mindspore_ckpt.FORMAT: mindspore_ckpt.entries,
    numpy_files.FORMAT: _numpy,
}


def _one_model(given: Path, root: Path, files: Iterable[Path], choice: int = 1) -> Checkpoint:
    """Files of one format that together are one model; ``choice`` is of how many checkpoints this is the last."""
    found: list[Entry] = []
    problems: list[Problem] = []
    kinds: dict[str, None] = {}
    base = _base(root)
    for file in files:
        kind = _kind(file)
        if not kind:
            raise DumpError(f"{file}: expected {_EXPECTED}, found something else")
        kinds[kind] = None
        name = file.absolute().relative_to(base.absolute()).as_posix()
        entries, met = _ENTRIES[kind](file, name)
        found += entries
        problems += met
        if choice > 1:
            problems.append(
                Problem(name, f"the last of {choice} checkpoints of this folder was taken")
            )
    twice = [name for name, count in Counter(entry.name for entry in found).items() if count > 1]
    if twice:
        raise DumpError(f"{given}: holds {twice[0]} more than once; name the file that is meant")
    return Checkpoint(
        given, base, next(iter(kinds), ""), tuple(found), _config(root), tuple(problems)
    )


def _base(folder: Path) -> Path:
    """The folder that files must lie in: of a snapshot in Hugging Face's cache, which links to blobs, that of both."""
    model = folder.absolute().parent.parent
    return (
        model
        if folder.absolute().parent.name == "snapshots" and (model / "blobs").is_dir()
        else folder
    )


def _ranks(given: Path, folder: Path, places: Mapping[int, Path]) -> Checkpoint:
    """``rank_N`` folders of MindSpore: of each the last file."""
    found: dict[int, list[Entry]] = {}
    problems: list[Problem] = []
    kind = ""
    for number, place in sorted(places.items()):
        files = [file for file in place.iterdir() if file.is_file() and _kind(file)]
        if not files:
            raise DumpError(
                f"{place}: expected a checkpoint of this rank, found none; copy the folder again"
            )
        last = max(files, key=_natural)
        kind = _kind(last)
        found[number], met = _ENTRIES[kind](last, last.relative_to(folder).as_posix())
        problems += met
    missing = set(range(max(places) + 1)) - set(places)
    if missing:
        raise DumpError(f"{folder}: rank_{min(missing)} is missing; copy the folder again")
    known = mindspore_ranks.layouts(mindspore_ranks.strategy_files(folder))
    entries, met = mindspore_ranks.placed(found, known, str(given))
    return Checkpoint(given, folder, kind, entries, _config(folder), (*problems, *met))


def _config(folder: Path) -> Mapping[str, Any]:
    """What ``config.json`` beside the weights says; empty if there is none."""
    file = folder / "config.json"
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST_CONFIG:
            return {}
        said = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DumpError(f"{file}: cannot be read as JSON ({error})") from error
    return said if isinstance(said, dict) else {}
