"""Files of a dump: what lies in a folder, and whole tensors by name, never from outside the folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..model.arrays import AnyArray
from ..model.errors import DumpError
from . import torch_pt
from .npy import inside, open_array

#: Whole tensors: many, and never the index of a dump.
_TENSOR_SUFFIXES = (".npy", ".pt", ".bin", ".pth", ".ckpt", ".safetensors")


def text_files(path: Path) -> Iterator[Path]:
    """The file itself, or every file below the folder that may be an index of a dump, in sorted order."""
    if path.is_file():
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            if not name.endswith(_TENSOR_SUFFIXES):
                yield Path(folder, name)


def head(path: Path, size: int = 65536) -> bytes:
    """The first bytes of a file; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def is_pickle(path: Path) -> bool:
    """Whether a file is a binary pickle (protocol 2 to 5), by its first two bytes; nothing is loaded."""
    start = head(path, 2)
    return len(start) == 2 and start[0] == 0x80 and 2 <= start[1] <= 5


def number_in(path: Path, prefix: str) -> int | None:
    """The number N of the nearest folder called ``{prefix}N`` above the file: ``step`` and ``rank`` folders."""
    for folder in path.absolute().parts[-2:-6:-1]:
        digits = folder.removeprefix(prefix)
        if digits != folder and digits.isdecimal():
            return int(digits)
    return None


def is_plain_name(name: str) -> bool:
    """Whether a name taken from a dump is one file name and nothing else: no folder, no way up, no NUL."""
    return (
        bool(name)
        and name not in (".", "..")
        and not any(mark in name for mark in ("/", "\\", "\0"))
    )


def load_tensor(root: Path, name: str) -> AnyArray:
    """The whole tensor in ``root / name``, memory-mapped where possible, bfloat16 as float32.

    Raises DumpError if the file lies outside ``root``, is missing, or is neither a NumPy nor a torch file.
    """
    path = inside(root, name)
    if not path.is_file():
        raise DumpError(f"{path}: no such tensor file; was the folder copied completely?")
    return torch_pt.load(path) if head(path, 4) == b"PK\x03\x04" else open_array(path)
