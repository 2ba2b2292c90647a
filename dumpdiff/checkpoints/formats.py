"""Detection of a checkpoint's format, by the content of the file or folder."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..model.errors import DumpError
from ..model.input_files import check_input, read_head, read_input_text
from ..model.trace import Problem
from ..tensor_files.npy import MAGIC
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

_LARGEST_CONFIG = 1 << 24  #: bytes; a larger config.json is ignored
_RANK_FOLDER = re.compile(r"rank_(\d+)")
_EXPECTED = (
    "a checkpoint (safetensors, MindSpore .ckpt, torch .pt or .bin, npy, "
    "a Megatron or Hugging Face folder)"
)
#: Names of model files. If a folder has such torch or safetensors files, its other files of that
#: format are the optimizer's and are not read.
_MODEL_FILE = re.compile(r"(pytorch_)?model\b.*|model[-_.].*|consolidated.*")

#: Format of a single file -> function (path, name for entries) -> entries and problems. The order
#: is that of preference: a folder often holds one model in two formats.
_READERS: Mapping[str, Callable[[Path, str], tuple[list[Entry], list[Problem]]]] = {
    safetensors.FORMAT: safetensors.read_entries,
    torch_zip.FORMAT: torch_zip.read_entries,
    mindspore_ckpt.FORMAT: mindspore_ckpt.read_entries,
    numpy_files.FORMAT: numpy_files.read_entries,
}


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Return the checkpoint at ``path``, a file or a folder.

    Raises DumpError if there is no checkpoint that can be read.
    """
    path = Path(path)
    check_input(path)
    checkpoint = _open_file(path) if path.is_file() else _open_folder(path, path)
    if not checkpoint.entries:
        raise DumpError(f"{path}: holds no tensors")
    return checkpoint


def _open_file(path: Path) -> Checkpoint:
    if path.name.endswith(".index.json"):
        return _open_indexed(path, path.parent, path)
    if path.name == torch_dist.METADATA:
        return _open_folder(path, path.parent)
    return _open_model(path, path.parent, [path])


def _find_index(files: Sequence[Path]) -> Path | None:
    """Return the index of a model in several files, None if there is none.

    A folder with safetensors and bin files of one model has two indexes: that of safetensors is
    returned.
    """
    indexes = [file for file in files if file.name.endswith(".index.json")]
    for index in indexes:
        if "safetensors" in index.name:
            return index
    return indexes[0] if indexes else None


def _open_folder(path: Path, folder: Path) -> Checkpoint:
    folder = megatron.find_iteration(folder)
    if megatron.list_rank_folders(folder):
        entries, settings = megatron.read_entries(folder)
        return Checkpoint(path, folder, megatron.FORMAT, entries, settings)
    if (folder / torch_dist.METADATA).is_file():
        entries, settings = torch_dist.read_entries(folder)
        return Checkpoint(path, folder, torch_dist.FORMAT, entries, settings)
    children = sorted(folder.iterdir())
    files = [child for child in children if child.is_file() and not child.name.startswith(".")]
    index = _find_index(files)
    if index is not None:
        return _open_indexed(path, folder, index)
    rank_folders = _find_rank_folders(children)
    if rank_folders and not any(map(_detect_format, files)):
        return _open_rank_folders(path, folder, rank_folders)
    return _open_files(path, folder, files)


def _find_rank_folders(children: Iterable[Path]) -> dict[int, Path]:
    rank_folders = {}
    for child in children:
        match = _RANK_FOLDER.fullmatch(child.name)
        if match is not None:
            rank_folders[int(match[1])] = child
    return rank_folders


def _open_indexed(path: Path, folder: Path, index: Path) -> Checkpoint:
    files = [index.parent / name for name in safetensors.list_indexed_files(index)]
    return _open_model(path, folder, files)


def _open_files(path: Path, folder: Path, files: Sequence[Path]) -> Checkpoint:
    """Open a folder without an index: the files of the first format in ``_READERS`` that occurs."""
    files_by_format: dict[str, list[Path]] = {name: [] for name in _READERS}
    for file in files:
        file_format = _detect_format(file)
        if file_format:
            files_by_format[file_format].append(file)
    for file_format, candidates in files_by_format.items():
        if not candidates:
            continue
        if file_format == mindspore_ckpt.FORMAT:
            last_file = max(candidates, key=_get_natural_key)
            return _open_model(path, folder, [last_file], len(candidates))
        # An .npy file is named after its parameter, and many parameters' names begin with 'model.'
        if file_format == numpy_files.FORMAT:
            return _open_model(path, folder, candidates)
        model_files = [file for file in candidates if _MODEL_FILE.fullmatch(file.name)]
        return _open_model(path, folder, model_files or candidates)
    raise DumpError(f"{path}: expected {_EXPECTED}, found none")


def _get_natural_key(file: Path) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers by value: step 10 after step 9."""
    pieces = re.split(r"(\d+)", file.name)
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces]


def _detect_format(file: Path) -> str:
    """Return the format of a single file, '' if unknown."""
    head = read_head(file, 6)
    if safetensors.is_safetensors(file):
        return safetensors.FORMAT
    if head.startswith(b"PK\x03\x04"):
        if torch_zip.is_torch(file):
            return torch_zip.FORMAT
        return numpy_files.FORMAT if file.suffix == ".npz" else ""
    if head == MAGIC:
        return numpy_files.FORMAT
    if head[:1] == b"\n" and mindspore_ckpt.is_mindspore(file):
        return mindspore_ckpt.FORMAT
    return ""


def _open_model(
    path: Path, folder: Path, files: Iterable[Path], n_candidates: int = 1
) -> Checkpoint:
    """Open the files that together are one model.

    ``n_candidates`` is the number of checkpoints in the folder, of which the last was chosen.
    """
    entries: list[Entry] = []
    problems: list[Problem] = []
    formats: list[str] = []
    root = _find_root(folder)
    for file in files:
        file_format = _detect_format(file)
        if not file_format:
            raise DumpError(f"{file}: expected {_EXPECTED}, found something else")
        formats.append(file_format)
        name = file.absolute().relative_to(root.absolute()).as_posix()
        file_entries, file_problems = _READERS[file_format](file, name)
        entries += file_entries
        problems += file_problems
        if n_candidates > 1:
            message = f"the last of {n_candidates} checkpoints of this folder was taken"
            problems.append(Problem(name, message))
    counts = Counter(entry.name for entry in entries)
    for name, count in counts.items():
        if count > 1:
            raise DumpError(f"{path}: holds {name} more than once; name the file that is meant")
    file_format = formats[0] if formats else ""
    return Checkpoint(
        path, root, file_format, tuple(entries), _read_config(folder), tuple(problems)
    )


def _find_root(folder: Path) -> Path:
    """Return the folder that must contain all files.

    A snapshot folder in Hugging Face's cache links to blobs, so its root contains snapshots and
    blobs.
    """
    parent = folder.absolute().parent
    if parent.name == "snapshots" and (parent.parent / "blobs").is_dir():
        return parent.parent
    return folder


def _open_rank_folders(path: Path, folder: Path, rank_folders: Mapping[int, Path]) -> Checkpoint:
    """Open ``rank_N`` folders of MindSpore; the last file of each is read."""
    entries_by_rank: dict[int, list[Entry]] = {}
    problems: list[Problem] = []
    file_format = ""
    for rank, rank_folder in sorted(rank_folders.items()):
        children = [child for child in rank_folder.iterdir() if child.is_file()]
        files = [file for file in children if _detect_format(file)]
        if not files:
            raise DumpError(f"{rank_folder}: expected a checkpoint of this rank, found none")
        last_file = max(files, key=_get_natural_key)
        file_format = _detect_format(last_file)
        name = last_file.relative_to(folder).as_posix()
        entries_by_rank[rank], file_problems = _READERS[file_format](last_file, name)
        problems += file_problems
    missing_ranks = set(range(max(rank_folders) + 1)) - set(rank_folders)
    if missing_ranks:
        raise DumpError(f"{folder}: rank_{min(missing_ranks)} is missing; copy the folder again")
    layouts = mindspore_ranks.read_layouts(mindspore_ranks.find_strategy_files(folder))
    entries, strategy_problems = mindspore_ranks.place_slices(entries_by_rank, layouts, str(path))
    problems += strategy_problems
    return Checkpoint(path, folder, file_format, entries, _read_config(folder), tuple(problems))


def _read_config(folder: Path) -> Mapping[str, Any]:
    """Return the content of ``config.json`` next to the weights; empty if there is none."""
    file = folder / "config.json"
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST_CONFIG:
            return {}
        config = json.loads(read_input_text(file))
    except (OSError, ValueError, RecursionError) as error:
        raise DumpError(f"{file}: cannot be read as JSON ({error})") from error
    return config if isinstance(config, dict) else {}
