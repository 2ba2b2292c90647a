"""Traces of all ranks of a shipped dump."""

from __future__ import annotations

from pathlib import Path

from dumpdiff import readers
from dumpdiff.model.trace import Trace


def read_ranks(folder: Path) -> dict[int, Trace]:
    """Return rank -> trace; a dump without ranks is one of rank 0."""
    parts = readers.find_parts(folder)
    return {part.rank or 0: readers.read_part(part) for part in parts}
