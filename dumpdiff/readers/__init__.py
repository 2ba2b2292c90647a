"""Dump folders and files in, traces out: one module per format, and nobody else knows a format.

A format is a module with two functions: ``find(path)`` lists what parts a folder or file holds in that
format, judged by content; ``read(part)`` makes the :class:`~dumpdiff.trace.Trace` of one part.
Adding a format is one new file and one line of ``FORMATS``.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from ..errors import DumpError
from ..trace import Trace
from . import mindspore, msprobe, ptdbg
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
    reader = next(reader for reader in FORMATS if reader.FORMAT == part.format)
    trace: Trace = reader.read(part)
    return trace


def _nothing_found(path: Path) -> str:
    if path.is_file():
        return (
            f"{path}: not a dump; expected a ptdbg_ascend .pkl (JSON Lines), an msprobe dump.json "
            f"or a MindSpore statistic.csv"
        )
    if not any(path.iterdir()):
        return f"{path}: the folder is empty"
    return (
        f"{path}: no dump in this folder; expected rank_*/net/graph/iteration with npy files or statistic.csv "
        f"(MindSpore), dump.json (msprobe) or *.pkl of JSON lines (ptdbg_ascend)"
    )
