"""Read NumPy .npy files from untrusted folders: the header, or the array (mapped if large).

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html (versions 1.0 to
3.0). MindSpore on CPU writes bfloat16 with the descriptor ``<E2``, which NumPy refuses; it is
decoded to float32 here.
"""

from __future__ import annotations

import ast
import math
import os
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.errors import DumpError
from ..model.input_files import open_input_file

MAGIC = b"\x93NUMPY"
_MAX_HEADER = 10_000  #: bytes; NumPy itself accepts no more from a file that it does not trust
_FIRST_READ = 128  #: bytes; nearly every header ends here, so that one read is enough
_BFLOAT16 = "<E2"
_MAX_ELEMENTS = 2**53  #: of a valid shape; no memory holds more
#: Of an array without elements, where no byte of the file stands for a row.
_MAX_EMPTY_EXTENT = 2**24
_MAX_DIMENSIONS = 32  #: of an array of NumPy before 2.0

#: Bytes from which a tensor is memory-mapped. Reading a small file is ten times faster than mapping
#: it.
MEMORY_MAP_BYTES = 1 << 20

#: Folders whose resolved path is remembered. A dump has thousands of files in a handful of folders.
_MAX_CACHED_FOLDERS = 256
#: Headers that are remembered. A dump repeats a few dozen headers thousands of times.
_MAX_CACHED_HEADERS = 10_000


class Header(NamedTuple):
    """The header of an .npy file."""

    dtype: str  #: float32, bfloat16, bool, ...
    shape: tuple[int, ...]
    fortran_order: bool
    offset: int  #: bytes before the data
    itemsize: int  #: bytes of one element
    stored: str  #: the NumPy dtype of the bytes in the file (bfloat16: '<u2')

    @property
    def n_elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


_header_cache: dict[bytes, Header] = {}  #: parsed headers by their text


def read_header(path: str | Path) -> Header:
    """Return the header of an .npy file.

    Raises DumpError if the file is unreadable, is not an .npy file, or is cut short.
    """
    try:
        with open_input_file(path) as file:
            return read_open_header(file, os.fstat(file.fileno()).st_size, str(path))
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror}") from error


def read_open_header(file: BinaryIO, length: int, path: str) -> Header:
    """Return the header of an open .npy file of ``length`` bytes.

    ``path`` is its name in errors.
    """
    start = file.read(_FIRST_READ)
    if not start:
        raise DumpError(f"{path}: empty file, expected .npy")
    if start[:6] != MAGIC or len(start) < 10:
        raise DumpError(f"{path}: not an .npy file")
    prefix = 10 if start[6] == 1 else 12
    offset = prefix + int.from_bytes(start[8:prefix], "little")
    if offset > _MAX_HEADER:
        raise DumpError(f"{path}: the .npy header claims {offset} bytes")
    if offset > len(start):
        start += file.read(offset - len(start))
    try:
        header = _parse_header(start[prefix:offset], offset)
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise DumpError(f"{path}: broken .npy header") from error
    expected_length = offset + header.n_elements * header.itemsize
    if length < expected_length:
        raise DumpError(f"{path}: cut short, {length} of {expected_length} bytes")
    return header


def _parse_header(text: bytes, offset: int) -> Header:
    cached_header = _header_cache.get(text)
    if cached_header is not None and cached_header.offset == offset:
        return cached_header
    fields = ast.literal_eval(text.decode("latin1").strip())
    descriptor = fields["descr"]
    shape = validate_shape(fields["shape"])
    fortran_order = bool(fields["fortran_order"])
    if not isinstance(descriptor, str) or shape is None:
        raise ValueError(descriptor)
    if descriptor == _BFLOAT16:
        header = Header("bfloat16", shape, fortran_order, offset, 2, "<u2")
    else:
        stored = np.dtype(descriptor)
        if stored.hasobject or stored.names is not None or stored.itemsize == 0:
            raise ValueError(descriptor)
        dtype = stored.newbyteorder("=").name
        header = Header(dtype, shape, fortran_order, offset, stored.itemsize, descriptor)
    if len(_header_cache) < _MAX_CACHED_HEADERS:
        _header_cache[text] = header
    return header


def open_array(path: str | Path) -> NDArray[Any]:
    """Return the array of an .npy file, read-only, memory-mapped if it is large.

    bfloat16 becomes float32 in memory. Raises DumpError if the file is unreadable, is not an .npy
    file, or is cut short.
    """
    header = read_header(path)
    order: Literal["C", "F"] = "F" if header.fortran_order else "C"
    n_bytes = header.n_elements * header.itemsize
    if n_bytes < MEMORY_MAP_BYTES or not header.shape:
        with open_input_file(path) as file:
            file.seek(header.offset)
            data = file.read(n_bytes)
        elements = np.frombuffer(data, dtype=header.stored)
        array = elements.reshape(header.shape, order=order)
    else:
        array = np.memmap(path, header.stored, "r", header.offset, header.shape, order)
    return decode_bfloat16(array) if header.dtype == "bfloat16" else array


def validate_shape(extents: Iterable[int]) -> tuple[int, ...] | None:
    """Return a shape as a tuple, None if it is dynamic (negative) or no array can have it."""
    shape = tuple(extents)
    if len(shape) > _MAX_DIMENSIONS or any(type(extent) is not int for extent in shape):
        return None
    limit = _MAX_EMPTY_EXTENT if 0 in shape else _MAX_ELEMENTS
    if not all(0 <= extent < limit for extent in shape) or math.prod(shape) >= limit:
        return None
    return shape


def decode_bfloat16(bits: NDArray[Any]) -> NDArray[Any]:
    """Return float32 from the bits of bfloat16 (uint16), the upper half of a float32; exact."""
    wide_bits = np.atleast_1d(bits).astype(np.uint32) << 16
    values: NDArray[Any] = wide_bits.view(np.float32).reshape(bits.shape)
    return values


def make_loader(folder: str | Path) -> Callable[[str], NDArray[Any]]:
    """Return a function that opens arrays of one dump by their name relative to ``folder``.

    The function raises DumpError for names that lead out of the folder.
    """
    # no function in a function: a trace that another process read comes with its loader
    return partial(_open_inside, Path(folder).resolve())


def _open_inside(root: Path, name: str) -> NDArray[Any]:
    return open_array(resolve_inside(root, name))


def resolve_inside(folder: Path, name: str) -> Path:
    """Return ``folder / name`` with links resolved.

    Raises DumpError if it is outside ``folder``.
    """
    root = _resolve_folder(folder)
    subfolder, _, file_name = name.rpartition("/")
    path = _resolve_folder(root / subfolder) / file_name
    if file_name in ("", ".", "..") or path.is_symlink():
        path = path.resolve()
    if not path.is_relative_to(root):
        raise DumpError(f"{name}: outside the dump folder {folder}; not opened")
    return path


def _resolve_folder(folder: Path) -> Path:
    """Return a folder with links resolved; a relative one is that of the present directory."""
    return _resolve_absolute_folder(folder.absolute())


@lru_cache(maxsize=_MAX_CACHED_FOLDERS)
def _resolve_absolute_folder(folder: Path) -> Path:
    return folder.resolve()
