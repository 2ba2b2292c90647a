"""NumPy .npy files of untrusted folders: header only, or the whole array memory-mapped; bfloat16 included.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html (versions 1.0 to 3.0).
MindSpore on CPU writes bfloat16 with the descriptor ``<E2``, which NumPy refuses; here it is decoded to float32.
"""

from __future__ import annotations

import ast
import math
import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.errors import DumpError

MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000  #: bytes; what NumPy itself accepts from a file it does not trust
_FIRST_READ = 128  #: bytes; nearly every header ends here, so one read is enough
_BFLOAT16 = "<E2"
_MOST_ELEMENTS = 2**53


class Header(NamedTuple):
    """What an .npy file says of its array."""

    dtype: str  #: float32, bfloat16, bool, ...
    shape: tuple[int, ...]
    fortran_order: bool
    offset: int  #: bytes before the data
    itemsize: int  #: bytes of one element
    stored: str  #: the NumPy dtype to map the bytes with (bfloat16: '<u2')

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def read_header(path: str | Path) -> Header:
    """The header of an .npy file. Raises DumpError if the file is unreadable, no .npy file, or cut short."""
    try:
        with open(path, "rb") as file:
            return header_of(file, os.fstat(file.fileno()).st_size, str(path))
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror}") from error


def header_of(file: BinaryIO, length: int, path: str) -> Header:
    """The header of an open .npy file of ``length`` bytes; ``path`` is only for what errors say."""
    start = file.read(_FIRST_READ)
    if not start:
        raise DumpError(f"{path}: empty file, expected .npy")
    if start[:6] != MAGIC or len(start) < 10:
        raise DumpError(f"{path}: not an .npy file")
    prefix = 10 if start[6] == 1 else 12
    offset = prefix + int.from_bytes(start[8:prefix], "little")
    if offset > _LONGEST_HEADER:
        raise DumpError(f"{path}: the .npy header claims {offset} bytes")
    if offset > len(start):
        start += file.read(offset - len(start))
    try:
        header = _parsed(start[prefix:offset], offset)
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise DumpError(f"{path}: broken .npy header") from error
    expected = offset + header.size * header.itemsize
    if length < expected:
        raise DumpError(f"{path}: cut short, {length} of {expected} bytes")
    return header


def open_array(path: str | Path) -> NDArray[Any]:
    """The array of an .npy file, memory-mapped if it is large, read-only; bfloat16 becomes float32 in memory.

    Raises DumpError if the file is unreadable, no .npy file, or cut short.
    """
    header = read_header(path)
    order = "F" if header.fortran_order else "C"
    if header.size * header.itemsize < MAPPED or not header.shape:
        with open(path, "rb") as file:  # reading a small file is ten times faster than mapping it
            file.seek(header.offset)
            data = file.read(header.size * header.itemsize)
        array = np.frombuffer(data, dtype=header.stored).reshape(header.shape, order=order)  # type: ignore[call-overload]
    else:
        array = np.memmap(path, header.stored, "r", header.offset, header.shape, order)  # type: ignore[call-overload]
    return decode_bfloat16(array) if header.dtype == "bfloat16" else array


def known_shape(sizes: Iterable[int]) -> tuple[int, ...] | None:
    """A recorded shape; None if it is dynamic (negative) or no memory could hold it."""
    shape = tuple(sizes)
    return shape if all(size >= 0 for size in shape) and math.prod(shape) < _MOST_ELEMENTS else None


def decode_bfloat16(bits: NDArray[Any]) -> NDArray[Any]:
    """float32 from the 16-bit patterns of bfloat16 (its upper half): exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def loader(folder: str | Path) -> Callable[[str], NDArray[Any]]:
    """Opens arrays of one dump by their name relative to ``folder``; refuses names that leave it."""
    root = Path(folder).resolve()

    def load(name: str) -> NDArray[Any]:
        return open_array(inside(root, name))

    return load


def inside(folder: Path, name: str) -> Path:
    """``folder / name``, links followed. Raises DumpError if that is outside ``folder``."""
    root = _resolved(folder)
    above, _, last = name.rpartition("/")
    path = _resolved(root / above) / last
    if last in ("", ".", "..") or path.is_symlink():
        path = path.resolve()
    if not path.is_relative_to(root):
        raise DumpError(f"{name}: outside the dump folder {folder}; not opened")
    return path


@lru_cache(maxsize=256)
def _resolved(folder: Path) -> Path:
    """A dump has thousands of files and a handful of folders: links on the way to them are followed once."""
    return folder.resolve()


#: Bytes from which a tensor is memory-mapped; below, it is read.
MAPPED = 1 << 20

_KNOWN: dict[
    bytes, Header
] = {}  #: parsed headers by their text: a dump repeats a few dozen headers thousands of times


def _parsed(text: bytes, offset: int) -> Header:
    known = _KNOWN.get(text)
    if known is not None and known.offset == offset:
        return known
    said = ast.literal_eval(text.decode("latin1").strip())
    descr, shape, fortran = said["descr"], known_shape(said["shape"]), said["fortran_order"]
    if (
        not isinstance(descr, str)
        or shape is None
        or not all(isinstance(size, int) for size in shape)
    ):
        raise ValueError(descr)
    if descr == _BFLOAT16:
        header = Header("bfloat16", shape, bool(fortran), offset, 2, "<u2")
    else:
        stored = np.dtype(descr)
        if stored.hasobject or stored.names is not None or stored.itemsize == 0:
            raise ValueError(descr)
        header = Header(
            stored.newbyteorder("=").name, shape, bool(fortran), offset, stored.itemsize, descr
        )
    if len(_KNOWN) < 10_000:
        _KNOWN[text] = header
    return header
