"""Read one tensor from a ``torch.save`` file (.pt of msprobe), without torch or unpickling.

The file is a zip archive whose entries are stored uncompressed. ``*/data.pkl`` gives storage,
offset, size and strides (https://github.com/pytorch/pytorch/blob/main/torch/serialization.py),
``*/data/0`` holds the bytes. The pickle is only disassembled (:mod:`.pickles`; nothing is
executed). A file of any other content is left to torch.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..model.arrays import AnyArray
from ..model.errors import DumpError
from ..model.input_files import open_input_file
from .npy import MEMORY_MAP_BYTES, decode_bfloat16
from .pickles import Persistent, PickledCall, UnknownPickle, disassemble

#: Storage classes of torch and the NumPy dtype of their elements. bfloat16 is read as uint16, then
#: widened.
_STORAGES = {
    "DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2", "BFloat16Storage": "<u2",
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "|i1",
    "ByteStorage": "|u1", "BoolStorage": "|b1", "ComplexFloatStorage": "<c8",
    "ComplexDoubleStorage": "<c16",
}  # fmt: skip
#: What zipfile and struct raise for a damaged archive: RuntimeError for an encrypted member or an
#: unknown compression.
ARCHIVE_ERRORS = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
_MAX_PICKLE = 1 << 16  #: bytes; the pickle of one tensor has about 200
_LOCAL_HEADER_SIZE = 30  #: bytes, without name and extra field (APPNOTE.TXT 4.3.7)


class _Layout(NamedTuple):
    """The place of a tensor's elements in its storage; shape, strides and offset count elements."""

    storage: str  #: a key of _STORAGES
    key: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _UnsupportedFile(Exception):
    """The file is not the plain tensor that this module can read."""


def load_torch_tensor(path: Path) -> AnyArray:
    """Load the tensor, memory-mapped if it is large; bfloat16 as float32 in memory.

    Anything but one plain dense tensor is left to ``torch.load(weights_only=True)``. Raises
    DumpError if the file is damaged, or if it needs torch and torch is missing or refuses it.
    """
    try:
        return _map_tensor(path)
    except _UnsupportedFile as reason:
        return _load_with_torch(path, str(reason))
    except ARCHIVE_ERRORS as error:
        raise DumpError(f"{path}: damaged torch file ({error}); record it again") from None


def _map_tensor(path: Path) -> AnyArray:
    layout, entry = _read_layout(path)
    dtype = np.dtype(_STORAGES[layout.storage])
    is_bfloat16 = layout.storage == "BFloat16Storage"
    if entry.file_size == 0 or math.prod(layout.shape) == 0:
        return np.zeros(layout.shape, np.float32 if is_bfloat16 else dtype)
    start = find_entry_start(path, entry)
    count = entry.file_size // dtype.itemsize
    if entry.file_size < MEMORY_MAP_BYTES:
        storage = np.fromfile(path, dtype, count, offset=start)
    else:
        storage = np.memmap(path, dtype, "r", start, (count,))
    offset = layout.offset * dtype.itemsize
    strides = tuple(stride * dtype.itemsize for stride in layout.strides)
    # NumPy refuses a layout that reaches beyond the buffer
    array: AnyArray = np.ndarray(layout.shape, dtype, storage, offset, strides)
    return decode_bfloat16(array) if is_bfloat16 else array


def _read_layout(path: Path) -> tuple[_Layout, zipfile.ZipInfo]:
    """Return the layout of the tensor in the archive, and the entry that holds its data."""
    with open_input_file(path) as stream, zipfile.ZipFile(stream) as archive:
        entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
        if "data.pkl" not in entries:
            raise _UnsupportedFile("it has no data.pkl")
        if entries["data.pkl"].file_size > _MAX_PICKLE:
            raise _UnsupportedFile("it holds more than one tensor")
        if entries.get("byteorder") and archive.read(entries["byteorder"]) != b"little":
            raise _UnsupportedFile("it is big-endian")
        layout = _parse_layout(archive.read(entries["data.pkl"]))
    entry = entries.get(f"data/{layout.key}")
    if entry is None:
        raise ValueError("its data are missing")
    if entry.compress_type != zipfile.ZIP_STORED:
        raise _UnsupportedFile("it is compressed")
    return layout, entry


def find_entry_start(path: Path, entry: zipfile.ZipInfo, header_offset: int | None = None) -> int:
    """Return the offset of an entry's bytes in the file, as its local header gives it.

    The lengths in the local header may differ from those in the directory (APPNOTE.TXT 4.3.7).
    ``header_offset`` is the offset of the local header, if the archive is only a part of the file.
    Raises ValueError if the file is cut short.
    """
    offset = entry.header_offset if header_offset is None else header_offset
    with open_input_file(path) as file:
        file.seek(offset)
        header = file.read(_LOCAL_HEADER_SIZE)
    signature, name_length, extra_length = struct.unpack("<4s22xHH", header)
    start = offset + _LOCAL_HEADER_SIZE + int(name_length) + int(extra_length)
    if signature != b"PK\x03\x04" or start + entry.file_size > path.stat().st_size:
        raise ValueError("the file is cut short")
    return start


@lru_cache(maxsize=1024)  # a dump has thousands of tensors and a few dozen shapes
def _parse_layout(pickled: bytes) -> _Layout:
    """Return the layout in a pickle of ``_rebuild_tensor_v2(storage, offset, size, ...)``."""
    try:
        value = disassemble(pickled)
    except UnknownPickle as reason:
        raise _UnsupportedFile(str(reason)) from None
    match value:
        case PickledCall(
            function="torch._utils _rebuild_tensor_v2",
            arguments=(
                Persistent(("storage", str(storage), str(key), str(), int())),
                int(offset),
                tuple(shape),
                tuple(strides),
                *_,
            ),
        ) if len(shape) == len(strides) and all(type(n) is int for n in (*shape, *strides)):
            kind = storage.removeprefix("torch ")
            if kind in _STORAGES:
                return _Layout(kind, key, offset, shape, strides)
            raise _UnsupportedFile(f"its elements are {kind}")
    raise _UnsupportedFile("it is not one plain tensor")


def _load_with_torch(path: Path, reason: str) -> AnyArray:
    try:
        import torch
    except ImportError:
        raise DumpError(f"{path}: {reason}, and torch is not installed to read it") from None
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(value, torch.Tensor):
            raise DumpError(f"{path}: expected one tensor, found a {type(value).__name__}")
        value = value.detach().to_dense()
        if value.is_floating_point() and value.dtype.itemsize < 4:
            value = value.float()
        array: AnyArray = value.numpy()
    except DumpError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, EOFError) as error:
        raise DumpError(f"{path}: torch refuses it: {str(error).splitlines()[0]}") from None
    except Exception as error:
        # torch raises pickle.UnpicklingError and more for files that it does not trust
        raise DumpError(f"{path}: torch refuses it ({type(error).__name__})") from None
    return array
