"""One tensor out of a ``torch.save`` file, without torch and without unpickling.

The file is a zip whose entries are stored uncompressed: ``*/data.pkl`` says which storage, offset, size and strides
(https://github.com/pytorch/pytorch/blob/main/torch/serialization.py), ``*/data/0`` holds the bytes. The pickle is
only disassembled (:mod:`.pickles`, nothing is executed); whatever is not the one known shape is left to torch.
"""

from __future__ import annotations

import math
import struct
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..model.arrays import AnyArray
from ..model.errors import DumpError
from .npy import MAPPED, decode_bfloat16
from .pickles import Called, Persistent, UnknownPickle, disassemble

#: Storage classes of torch, and the NumPy dtype of their elements; bfloat16 is read as uint16 and widened.
_STORAGES = {
    "DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2", "BFloat16Storage": "<u2",
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "|i1", "ByteStorage": "|u1",
    "BoolStorage": "|b1", "ComplexFloatStorage": "<c8", "ComplexDoubleStorage": "<c16",
}  # fmt: skip
_LONGEST_PICKLE = 1 << 16  #: bytes; that of one tensor takes some 200


class _Layout(NamedTuple):
    """Where the elements of a tensor lie in its storage; extents, strides and offset in elements."""

    storage: str
    key: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Unknown(Exception):
    """Not the plain tensor that this module can read."""


def load(path: Path) -> AnyArray:
    """The tensor, memory-mapped; bfloat16 as float32 in memory.

    Anything but one plain dense tensor is left to ``torch.load(weights_only=True)``.
    Raises DumpError if the file is damaged, or needs torch and torch is missing or refuses it.
    """
    try:
        return _map(path)
    except _Unknown as reason:
        return _with_torch(path, str(reason))
    except (OSError, ValueError, zipfile.BadZipFile, struct.error, NotImplementedError) as error:
        raise DumpError(f"{path}: damaged torch file ({error}); record it again") from None


def _map(path: Path) -> AnyArray:
    with zipfile.ZipFile(path) as archive:
        entries = {
            name.partition("/")[2]: entry
            for name, entry in ((e.filename, e) for e in archive.infolist())
        }
        if "data.pkl" not in entries:
            raise _Unknown("it has no data.pkl")
        if entries["data.pkl"].file_size > _LONGEST_PICKLE:
            raise _Unknown("it holds more than one tensor")
        if entries.get("byteorder") and archive.read(entries["byteorder"]) != b"little":
            raise _Unknown("it is big-endian")
        layout = _layout(archive.read(entries["data.pkl"]))
    entry = entries.get(f"data/{layout.key}")
    if entry is None:
        raise ValueError("its data are missing")
    if entry.compress_type != zipfile.ZIP_STORED:
        raise _Unknown("it is compressed")
    dtype = np.dtype(_STORAGES[layout.storage])
    if entry.file_size == 0 or math.prod(layout.shape) == 0:
        return np.zeros(layout.shape, np.float32 if layout.storage == "BFloat16Storage" else dtype)
    start, count = entry_start(path, entry), entry.file_size // dtype.itemsize
    if entry.file_size < MAPPED:
        storage = np.fromfile(path, dtype, count, offset=start)
    else:
        storage = np.memmap(path, dtype, "r", start, (count,))
    strides = tuple(stride * dtype.itemsize for stride in layout.strides)
    # NumPy refuses a layout that reaches beyond the buffer
    array: AnyArray = np.ndarray(
        layout.shape, dtype, storage, layout.offset * dtype.itemsize, strides
    )
    if layout.storage == "BFloat16Storage":  # the upper half of a float32
        return decode_bfloat16(array)
    return array


def entry_start(path: Path, entry: zipfile.ZipInfo, header_offset: int | None = None) -> int:
    """Where an entry's bytes begin: its local header has lengths of its own (APPNOTE.TXT 4.3.7).

    ``header_offset`` is where that header stands, if the archive is only a part of the file. Raises ValueError if the
    file is cut short.
    """
    at = entry.header_offset if header_offset is None else header_offset
    with path.open("rb") as file:
        file.seek(at)
        header = file.read(30)
    signature, name, extra = struct.unpack("<4s22xHH", header)
    start = at + 30 + int(name) + int(extra)
    if signature != b"PK\x03\x04" or start + entry.file_size > path.stat().st_size:
        raise ValueError("the file is cut short")
    return start


@lru_cache(maxsize=1024)  # a dump has thousands of tensors and a few dozen shapes
def _layout(pickled: bytes) -> _Layout:
    """What a pickle of ``_rebuild_tensor_v2(storage, offset, size, stride, ...)`` says, read as data."""
    try:
        value = disassemble(pickled)
    except UnknownPickle as reason:
        raise _Unknown(str(reason)) from None
    match value:
        case Called(
            what="torch._utils _rebuild_tensor_v2",
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
            raise _Unknown(f"its elements are {kind}")
    raise _Unknown("it is not one plain tensor")


def _with_torch(path: Path, reason: str) -> AnyArray:
    try:
        import torch
    except ImportError:
        raise DumpError(f"{path}: {reason}, and torch is not installed to read it") from None
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(value, torch.Tensor):
            raise DumpError(f"{path}: expected one tensor, found a {type(value).__name__}")
        value = value.detach().to_dense()
        array: AnyArray = (
            value.float() if value.dtype.itemsize < 4 and value.is_floating_point() else value
        ).numpy()
    except (OSError, RuntimeError, ValueError, TypeError, EOFError) as error:
        raise DumpError(f"{path}: torch refuses it: {str(error).splitlines()[0]}") from None
    except (
        Exception
    ) as error:  # torch raises pickle.UnpicklingError and more for files it does not trust
        if isinstance(error, DumpError):
            raise
        raise DumpError(f"{path}: torch refuses it ({type(error).__name__})") from None
    return array
