"""Dumps that are already where the next one will go: dumpers add files to them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..model.errors import DumpError

#: Folders that dumpers make in that of a dump: MindSpore for each rank, msprobe for each step.
_DUMP_FOLDER = re.compile(r"(rank_?|step)\d+")


def find_existing_dumps(folder: str | Path) -> tuple[Path, ...]:
    """Return the folders of ranks or steps that earlier runs left in the folder of a dump."""
    path = Path(folder)
    try:
        entries = sorted(path.iterdir()) if path.is_dir() else []
    except OSError:
        return ()
    return tuple(
        entry
        for entry in entries
        if _DUMP_FOLDER.fullmatch(entry.name) and entry.is_dir() and not entry.is_symlink()
    )


def describe_existing_dumps(folder: str | Path, dumps: Sequence[Path]) -> str:
    """Return a sentence that says what will happen, and what to do; '' without dumps."""
    if not dumps:
        return ""
    return (
        f"{folder}: already holds a dump ({dumps[0].name}); the next run adds its files to those "
        "of the same step, and no reader can tell them apart: give another folder, or --clean to "
        "remove the old dump"
    )


def remove_existing_dumps(folder: str | Path) -> tuple[Path, ...]:
    """Remove what :func:`find_existing_dumps` returns, and return it. Raises DumpError."""
    dumps = find_existing_dumps(folder)
    try:
        for dump in dumps:
            shutil.rmtree(dump)
    except OSError as error:
        raise DumpError(f"{error.filename}: cannot be removed ({error.strerror})") from error
    return dumps
