"""Dump folders and files in, traces out: one package per format, and nobody else knows a format.

A format is a module with two functions: ``find(path)`` lists what parts a folder or file holds in that
format, judged by content; ``read(part)`` makes the :class:`~dumpdiff.trace.Trace` of one part.
Adding a format is one new file and one line of ``FORMATS``.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from ..model.errors import DumpError
from ..model.gc_pause import collector_paused
from ..model.trace import Trace
from . import mindspore, msprobe, ptdbg
from .files import head, is_pickle, text_files
from .parts import Part, choose

FORMATS: tuple[ModuleType, ...] = (mindspore, msprobe, ptdbg)

__all__ = ["FORMATS", "Part", "choose", "find", "read"]


def find(path: str | Path) -> list[Part]:
    """Every step, rank and graph that the dump at ``path`` (a folder or a file) holds.

    Raises DumpError if the path is missing, unreadable or holds no dump, saying what was found instead.
    """
    path = Path(path)
    if not path.exists():
        raise DumpError(f"{path}: no such file or folder")
    parts = [part for reader in FORMATS for part in reader.find(path)]
    if not parts:
        raise DumpError(_nothing_found(path))
    return parts


def read(part: Part) -> Trace:
    """The trace of one part. Raises DumpError if nothing in it can be read."""
    reader = next(reader for reader in FORMATS if part.format == reader.FORMAT)
    with collector_paused():
        trace: Trace = reader.read(part)
    return trace


def _nothing_found(path: Path) -> str:
    if path.is_file():
        return f"{path}: {_what_it_is(path)}; expected {_EXPECTED_FILES}"
    inside = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    if not inside:
        return f"{path}: the folder is empty"
    refused = [
        file
        for file in text_files(path)
        if is_pickle(file) or not (head(file, 1) or file.stat().st_size == 0)
    ]
    if refused:
        return f"{refused[0]}: {_what_it_is(refused[0])}; expected {_EXPECTED_FILES}"
    return (
        f"{path}: no dump in this folder; expected rank_*/net/graph/iteration with npy files or statistic.csv "
        f"(MindSpore), dump.json (msprobe) or *.pkl of JSON lines (ptdbg_ascend)"
    )


_EXPECTED_FILES = (
    "a ptdbg_ascend .pkl (JSON Lines), an msprobe dump.json or a MindSpore statistic.csv"
)


def _what_it_is(path: Path) -> str:
    """What kind of file this is that no format knows, in a few words."""
    start = head(path, 16)
    if is_pickle(path):
        return "real pickle; not read, since loading one runs the code in it"
    if not start:
        return "an empty file" if path.stat().st_size == 0 else "cannot be read"
    if start.startswith(b"\x93NUMPY"):
        return "one NumPy array; give the folder of the dump"
    if start.startswith(b"PK\x03\x04"):
        return "a zip archive or torch file; give the folder of the dump, unpacked"
    return "not a dump"
