"""Read dump folders and files into traces.

Each format has its own package; no other code knows a format.

A format is a module with a name, ``FORMAT``, and two functions: ``find_parts(listing)`` lists the
parts (step, rank, graph) that a folder or file holds in that format, recognized by content, and
``read_part(part)`` returns the :class:`~dumpdiff.model.trace.Trace` of one part. A folder is
searched once for all formats. If one file is the index of a dump, ``is_index_file(head)``
recognizes it, and ``listing.index_files`` has these files. To add a format, write one module and
add it to ``INDEXED_FORMATS``, or to ``FORMATS`` if its dumps have no index file.

The formats are ``mindspore`` (MindSpore's own dump), ``msprobe`` (mindstudio-probe, PyTorch and
MindSpore), ``ptdbg`` (ptdbg_ascend, PyTorch), ``manifest`` (``dumpdiff.record``, and any folder of
tensors with a ``manifest.json``), and what other debuggers write, see docs/formats.md. A folder of
tensors without any index is a dump only where a person says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from ..model.errors import DumpError
from ..model.gc_pause import pause_gc
from ..model.input_files import check_input, iterate_folders, open_input_file, read_head
from ..model.trace import Problem, Trace
from . import (
    debug_mode,
    huggingface,
    manifest,
    mindspore,
    monitor,
    msprobe,
    polygraphy,
    ptdbg,
    sglang,
    tensor_folder,
    torchtitan,
)
from .files import TENSOR_SUFFIXES, find_text_files, is_pickle, search
from .parts import Part, choose_parts, describe_unread_parts

INDEXED_FORMATS: tuple[ModuleType, ...] = (
    msprobe,
    ptdbg,
    manifest,
    huggingface,
    debug_mode,
    torchtitan,
    polygraphy,
    monitor,
)
FORMATS: tuple[ModuleType, ...] = (mindspore, *INDEXED_FORMATS, sglang)

__all__ = [
    "FORMATS",
    "Part",
    "choose_parts",
    "describe_unread_parts",
    "find_parts",
    "find_unreadable",
    "list_parts",
    "measure_index",
    "read_part",
]

_EXPECTED_FILES = (
    "a ptdbg_ascend .pkl (JSON Lines), an msprobe dump.json, a MindSpore statistic.csv "
    "or a manifest.json; docs/formats.md lists all formats"
)


def find_parts(path: str | Path, *, accept_tensors: bool = False) -> list[Part]:
    """List every step, rank and graph that the dump at ``path`` (a folder or a file) holds.

    With ``accept_tensors`` a folder of tensors without an index is a dump, too. It may as well be a
    checkpoint.

    Raises DumpError if the path is missing or unreadable, or holds no dump; the message says what
    it holds.
    """
    path = Path(path)
    check_input(path)
    parts = list_parts(path, accept_tensors=accept_tensors)
    if not parts:
        raise DumpError(_explain_no_dump(path))
    return parts


def list_parts(path: Path, *, accept_tensors: bool = False) -> list[Part]:
    """Return the parts of :func:`find_parts`, none if ``path`` holds no dump."""
    listing = search(path, {reader.FORMAT: reader.is_index_file for reader in INDEXED_FORMATS})
    parts = [part for reader in FORMATS for part in reader.find_parts(listing)]
    return parts or (tensor_folder.find_parts(listing) if accept_tensors else [])


def measure_index(part: Part) -> int:
    """Return the bytes of the files that a reader parses as a whole: all but those of tensors."""
    if part.path.is_file():
        return part.path.stat().st_size
    names = next((files for _, _, files in iterate_folders(part.path)), [])
    files = [part.path / name for name in names if not name.endswith(TENSOR_SUFFIXES)]
    return sum(file.stat().st_size for file in files if file.is_file())


def read_part(part: Part) -> Trace:
    """Return the trace of one part. Raises DumpError if nothing in it can be read."""
    reader = next(reader for reader in (*FORMATS, tensor_folder) if part.format == reader.FORMAT)
    with pause_gc():
        trace: Trace = reader.read_part(part)
    return trace


def _explain_no_dump(path: Path) -> str:
    if path.is_file():
        return f"{path}: {_describe_file(path)}; expected {_EXPECTED_FILES}"
    if all(entry.startswith(".") for entry in os.listdir(path)):
        return f"{path}: the folder is empty"
    for file in find_text_files(path):
        if is_pickle(file):
            return f"{file}: {_describe_file(file)}; expected {_EXPECTED_FILES}"
    for obstacle in _find_obstacles(path):
        return f"{obstacle.filename}: {obstacle.strerror}; no dump in the rest of {path}"
    return (
        f"{path}: no dump in this folder; expected rank_*/net/graph/iteration with npy files or "
        "statistic.csv (MindSpore), dump.json (msprobe), *.pkl of JSON lines (ptdbg_ascend), "
        "manifest.json (dumpdiff), or .npy, .npz, .safetensors and .pt files of tensors; "
        "docs/formats.md lists all formats"
    )


def find_unreadable(path: str | Path) -> list[Problem]:
    """Return a problem for each folder, and each file that may be a dump, that cannot be read.

    It may hold a rank or a step, of which nothing is known. There is none in a single file.
    """
    path = Path(path)
    if path.is_file():
        return []
    return [
        Problem(
            os.path.relpath(error.filename, path),
            f"cannot be read ({error.strerror}); it may be a part of the dump",
            weakens=True,
        )
        for error in _find_obstacles(path)
    ]


def _find_obstacles(path: Path) -> Iterator[OSError]:
    """Yield why folders, and files that may be the index file of a dump, cannot be read."""
    errors: list[OSError] = []
    for file in find_text_files(path, errors.append):
        try:
            open_input_file(file).close()
        except OSError as error:
            errors.append(error)
        yield from filter(_may_be_index_file, errors)
        errors.clear()
    yield from filter(_may_be_index_file, errors)


def _may_be_index_file(error: OSError) -> bool:
    return not error.filename.endswith(TENSOR_SUFFIXES)


def _describe_file(path: Path) -> str:
    """Return in a few words what kind of file this is; no format reads it."""
    start = read_head(path, 16)
    if is_pickle(path):
        return "real pickle; not read, because loading a pickle runs the code in it"
    if not start:
        return "an empty file"
    if start.startswith(b"\x93NUMPY"):
        return "one NumPy array; give the folder of the dump"
    if start.startswith(b"PK\x03\x04"):
        return "a zip archive or torch file; give the folder of the dump, unpacked"
    return "not a dump"
