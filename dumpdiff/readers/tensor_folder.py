"""Read a folder of tensors without any index: each tensor is an op whose name is its path.

Files are .npy, .npz, .safetensors and what ``torch.save`` wrote (nothing is unpickled). There is no
dataflow, so tensors are aligned by their values and by equal names. Any folder may hold such files,
so this format is considered last, and only where a person named the folder as a dump.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache, partial
from pathlib import Path

from .. import checkpoints
from ..checkpoints import Checkpoint
from ..model.arrays import AnyArray
from ..model.errors import DumpError
from ..model.input_files import iterate_folders
from ..model.trace import Problem, Source, Trace, build_op_table, build_tensor_table
from ..tensor_files.npy import resolve_inside
from .files import Listing, find_folder_number, load_tensor
from .parts import Part

FORMAT = "tensors"

_SUFFIXES = (".npy", ".npz", ".safetensors", ".pt", ".pth", ".bin")
_PART_FOLDER = re.compile(r"(step|rank)_?\d+")
#: Files of several tensors that stay open; a dump of one file per step and rank has one.
_MAX_OPEN_FILES = 64


def find_parts(listing: Listing) -> list[Part]:
    """List the folders of tensors: each folder stepN or rankN, else the path that was searched."""
    path = listing.path
    if path.is_file():
        return [Part(FORMAT, path, has_whole_tensors=True)] if _is_tensor_file(path) else []
    folders: dict[Path, None] = {}
    for folder, _, names in listing.folders:
        for name in names:
            if _is_tensor_file(folder / name):
                folders[_find_part_folder(folder, path)] = None
    return [
        Part(
            FORMAT,
            folder,
            find_folder_number(folder / "file", "step"),
            find_folder_number(folder / "file", "rank"),
            has_whole_tensors=True,
        )
        for folder in folders
    ]


def read_part(part: Part) -> Trace:
    """Return the trace of a folder of tensors. Raises DumpError if it has none that can be read."""
    root = part.path.parent if part.path.is_file() else part.path
    names, files, dtypes, shapes = [], [], [], []
    problems: list[Problem] = []
    for path in _list_tensor_files(part.path):
        file = path.relative_to(root).as_posix()
        try:
            checkpoint = checkpoints.open(path)
        except DumpError as error:
            problems.append(Problem(file, str(error), weakens=True))
            continue
        stem = file.rpartition(".")[0].replace("/", ".")
        for entry in checkpoint.entries:
            is_single = len(checkpoint.entries) == 1 and path.suffix == ".npy"
            names.append(stem if is_single else f"{stem}.{entry.name}")
            files.append(file if is_single else f"{file}#{entry.name}")
            dtypes.append(entry.dtype)
            shapes.append(entry.shape)
        problems += checkpoint.problems
    if not names:
        reason = f"; {problems[0]}" if problems else ""
        raise DumpError(f"{part.path}: holds no tensor that can be read{reason}")
    ops = build_op_table({"name": names, "kind": [""] * len(names), "scope": names})
    tensors = build_tensor_table({
        "op": list(range(len(names))),
        "slot": ["output.0"] * len(names),
        "slot_kind": ["output"] * len(names),
        "dtype": dtypes,
        "shape": shapes,
        "size": [math.prod(shape) for shape in shapes],
        "file": files,
    })  # fmt: skip
    source = Source(str(root), FORMAT, "tensors by name", "", part.step, part.rank)
    loader = partial(load_folder_tensor, root)
    return Trace(source, ops, tensors, tuple(problems), loader)


def load_folder_tensor(folder: Path, name: str) -> AnyArray:
    """Return a whole tensor: 'file', or 'file#name' of one in a file of several.

    Raises DumpError if it is outside the folder, missing or damaged.
    """
    file, separator, key = name.partition("#")
    if not separator or (folder / name).is_file():
        return load_tensor(folder, name)
    checkpoint = _open_file(resolve_inside(folder, file))
    try:
        return checkpoint.read_array(key)
    except KeyError:
        raise DumpError(f"{folder / file}: holds no tensor {key}") from None


@lru_cache(maxsize=_MAX_OPEN_FILES)
def _open_file(path: Path) -> Checkpoint:
    return checkpoints.open(path)


def _list_tensor_files(path: Path) -> list[Path]:
    """Return the files of one part, sorted by name with numbers by value."""
    if path.is_file():
        return [path]
    files = []
    for folder, _, names in iterate_folders(path):
        if _find_part_folder(folder, path) == path:
            files += [folder / name for name in names if _is_tensor_file(folder / name)]
    return sorted(files, key=_get_natural_key)


def _find_part_folder(folder: Path, root: Path) -> Path:
    """Return the innermost folder stepN or rankN from ``folder`` up to ``root``, else ``root``."""
    for candidate in (folder, *folder.parents):
        if candidate == root or _PART_FOLDER.fullmatch(candidate.name):
            return candidate
    return root


def _is_tensor_file(path: Path) -> bool:
    return path.suffix in _SUFFIXES and not path.name.startswith(".")


def _get_natural_key(path: Path) -> list[tuple[int, str]]:
    pieces = re.split(r"(\d+)", path.as_posix())
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces]
