"""MindSpore's ``.ckpt``: protobuf, one ``Value`` for each parameter, or several for one that is larger than 512 MB.

Message ``Checkpoint`` of checkpoint.proto: repeated Value value = 1 {tag = 1, TensorProto tensor = 2 {dims = 1,
tensor_type = 2, tensor_content = 3}}; the same from MindSpore 1.0 to 2.10. With ``crc_check`` the file ends in
``crc_num`` and ten bytes. Only keys and lengths are read here; the elements stay where they are.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import NamedTuple

from ..model.dtypes import normalise
from ..model.errors import DumpError
from ..model.trace import Problem
from ..readers.npy import known_shape
from .checkpoint import Entry, Extent
from .elements import STORED, item_size
from .protobuf import BYTES, Field, fields, text

FORMAT = "mindspore"

_VALUE, _TAG, _TENSOR, _DIMS, _TYPE, _CONTENT = 1, 1, 2, 1, 2, 3
_CHECKSUM = b"crc_num"
_LONGEST_CHECKSUM = len(_CHECKSUM) + 10


class _Piece(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    extent: Extent


def is_mindspore(path: Path) -> bool:
    """Whether a file begins with a parameter: a value that holds a tag and a tensor with a type."""
    try:
        with (
            path.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            first = next(fields(data, 0, len(data)))
            return first.number == _VALUE and _piece(data, first, "") is not None
    except (OSError, ValueError, StopIteration, UnicodeDecodeError):
        return False


def entries(path: Path, file: str) -> tuple[list[Entry], list[Problem]]:
    """The parameters of one file; ``file`` is what entries call it. Raises DumpError if it cannot be used."""
    pieces: dict[str, list[_Piece]] = {}
    problems: list[Problem] = []
    try:
        with (
            path.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            for value in fields(data, 0, _end(data)):
                if value.number == _VALUE and value.wire == BYTES:
                    piece = _piece(data, value, file)
                    if piece is not None and piece.dtype in STORED:
                        pieces.setdefault(piece.name, []).append(piece)
                    elif piece is not None and piece.dtype != "str":
                        problems.append(
                            Problem(
                                file, f"{piece.name}: elements of type {piece.dtype} are not read"
                            )
                        )
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise DumpError(
            f"{path}: not a MindSpore checkpoint, or cut short ({error}); copy it again"
        ) from error
    return [_entry(path, found) for found in pieces.values()], problems


def _end(data: mmap.mmap) -> int:
    """Where the values end: before the checksum, if there is one."""
    tail = max(0, len(data) - _LONGEST_CHECKSUM)
    at = data.find(_CHECKSUM, tail)
    return len(data) if at < 0 else at


def _piece(data: mmap.mmap, value: Field, file: str) -> _Piece | None:
    """One value: a parameter, or a slice of its bytes; None if it holds no tensor."""
    name, tensor = "", None
    for field in fields(data, value.begin, value.end):
        if field.number == _TAG and field.wire == BYTES:
            name = text(data, field)
        elif field.number == _TENSOR and field.wire == BYTES:
            tensor = field
    if tensor is None:
        return None
    dims: list[int] = []
    dtype, extent = "", Extent(file, 0, 0)
    for field in fields(data, tensor.begin, tensor.end):
        if field.number == _DIMS:
            dims.append(field.value)
        elif field.number == _TYPE:
            dtype = normalise(text(data, field))
        elif field.number == _CONTENT:
            extent = Extent(file, field.begin, field.end - field.begin)
    shape = known_shape(dims)
    if not dtype or shape is None:
        return None
    return _Piece(name, dtype, shape, extent)


def _entry(path: Path, pieces: list[_Piece]) -> Entry:
    first = pieces[0]
    # 'append_dict' and scalars are written with dims (), or (0,), and hold one element
    length = sum(piece.extent.length for piece in pieces)
    shape = first.shape if first.shape != (0,) or length == 0 else ()
    entry = Entry(first.name, first.dtype, shape, tuple(piece.extent for piece in pieces))
    if entry.size * item_size(entry.dtype) != length:
        raise DumpError(
            f"{path}: {entry.name} has {length:,} bytes, its shape {entry.shape} needs another number"
        )
    return entry
