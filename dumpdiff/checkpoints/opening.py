"""Which format a path is, by what it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import DumpError
from ..trace import Problem
from . import safetensors, torch_zip
from .checkpoint import Checkpoint, Entry

_LARGEST_CONFIG = 1 << 24  #: bytes


def open_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint at ``path``: a file or a folder. Raises DumpError if it holds none that can be read."""
    given = Path(path)
    if not given.exists():
        raise DumpError(f"{given}: no such file or folder")
    if given.is_file():
        return _files(given, given.parent, [given])
    files = sorted(file for file in given.iterdir() if file.is_file() and not file.name.startswith("."))
    indexes = [file for file in files if file.name.endswith(".index.json")]
    if indexes:  # of several (safetensors and bin of one model) the safetensors
        index = next((file for file in indexes if "safetensors" in file.name), indexes[0])
        return _files(given, given, [given / name for name in safetensors.indexed_files(index)])
    known = [file for file in files if safetensors.is_safetensors(file)] or [f for f in files if torch_zip.is_torch(f)]
    if not known:
        raise DumpError(
            f"{given}: expected a checkpoint (safetensors, .ckpt, .pt/.bin, a Megatron or Hugging Face folder)"
        )
    return _files(given, given, known)


def _files(given: Path, root: Path, files: list[Path]) -> Checkpoint:
    """Files of one format that together are one model."""
    found: list[Entry] = []
    problems: list[Problem] = []
    kind = ""
    for file in files:
        name = file.relative_to(root).as_posix()
        if safetensors.is_safetensors(file):
            kind = safetensors.FORMAT
            entries, met = safetensors.entries(file, name)
            found += entries
            problems += met
        elif torch_zip.is_torch(file):
            kind = torch_zip.FORMAT
            found += torch_zip.entries(file, name)
        else:
            raise DumpError(
                f"{file}: expected a checkpoint (safetensors, .ckpt or torch .pt/.bin), found something else"
            )
    if not found:
        raise DumpError(f"{given}: holds no tensors")
    return Checkpoint(given, root, kind, tuple(found), _config(root), tuple(problems))


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
