"""Copies of real dumps with one damage each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dumpdiff import Trace, read
from dumpdiff.model.arrays import AnyArray
from dumpdiff.tensor_files import npy

Change = Callable[[AnyArray], AnyArray]


def link_dump(source: Path, folder: Path) -> Path:
    """Return a copy of a dump whose files are links; a changed file must replace its link."""
    copy = folder / source.name
    shutil.copytree(source, copy, copy_function=os.link)
    return copy


def find_row(trace: Trace, op: str, slot: str) -> int:
    """Return the tensor in a slot of the op whose name ends like this."""
    names = trace.ops["name"].to_numpy()[trace.tensors["op"].to_numpy()]
    is_op = np.array([name.endswith(op) for name in names])
    return int(np.flatnonzero(is_op & (trace.tensors["slot"] == slot).to_numpy())[0])


def find_file(dump: Path, op: str, slot: str) -> Path:
    """Return the file of the tensor in a slot of the op whose name ends like this."""
    trace = read(dump)
    return Path(trace.source.path) / trace.tensors["file"].iat[find_row(trace, op, slot)]


def replace_bytes(file: Path, content: bytes) -> None:
    """Write a file anew, so that other links to it keep their content."""
    file.unlink()
    file.write_bytes(content)


def change_npy(file: Path, change: Change) -> None:
    """Replace the array of an npy file by another one of the same shape and dtype."""
    header = npy.read_header(file)
    array = np.array(npy.open_array(file))
    changed = np.asarray(change(array), dtype=array.dtype).reshape(array.shape)
    replace_bytes(file, file.read_bytes()[: header.offset] + changed.tobytes())
