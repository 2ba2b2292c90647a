"""MindSpore's ``.ckpt``: protobuf with one ``Value`` per parameter, or several above 512 MB.

Message ``Checkpoint`` of checkpoint.proto: repeated Value value = 1 {tag = 1, TensorProto tensor
= 2 {dims = 1, tensor_type = 2, tensor_content = 3}}; the same from MindSpore 1.0 to 2.10. With
``crc_check`` the file ends in ``crc_num`` and ten bytes. Only keys and lengths are read here, not
the elements.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..model.dtypes import normalize_dtype
from ..model.errors import DumpError
from ..model.input_files import open_input_file
from ..model.trace import Problem
from ..tensor_files.npy import validate_shape
from .checkpoint import Entry, Extent
from .elements import RAW_DTYPES, get_item_size
from .protobuf import BYTES, Field, iterate_fields, read_text

FORMAT = "mindspore"

#: Field numbers of the messages above.
VALUE, TAG, TENSOR, DIMS, TYPE, CONTENT = 1, 1, 2, 1, 2, 3
_CHECKSUM = b"crc_num"
_LONGEST_CHECKSUM = len(_CHECKSUM) + 10


class _Piece(NamedTuple):
    """One ``Value``: a parameter, or a slice of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    extent: Extent


def is_mindspore(path: Path) -> bool:
    """Return whether a file begins with a parameter: a value with a tag and a typed tensor."""
    try:
        with _map_file(path) as data:
            first = next(iterate_fields(data, 0, len(data)))
            return _parse_piece(data, first, "") is not None
    except (OSError, ValueError, StopIteration, UnicodeDecodeError):
        return False


def read_entries(path: Path, file: str) -> tuple[list[Entry], list[Problem]]:
    """Return the parameters of one file; entries refer to it as ``file``.

    Raises DumpError if the file cannot be used.
    """
    pieces_by_name: dict[str, list[_Piece]] = {}
    problems: list[Problem] = []
    try:
        with _map_file(path) as data:
            for piece in _iterate_pieces(data, file):
                if piece.dtype in RAW_DTYPES:
                    pieces_by_name.setdefault(piece.name, []).append(piece)
                elif piece.dtype != "str":
                    message = f"{piece.name}: elements of type {piece.dtype} are not read"
                    problems.append(Problem(file, message))
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise DumpError(
            f"{path}: not a MindSpore checkpoint, or cut short ({error}); copy it again"
        ) from error
    entries = [_join_pieces(path, pieces) for pieces in pieces_by_name.values()]
    return entries, problems


@contextmanager
def _map_file(path: Path) -> Iterator[mmap.mmap]:
    with (
        open_input_file(path) as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        yield data


def _iterate_pieces(data: mmap.mmap, file: str) -> Iterator[_Piece]:
    for value in iterate_fields(data, 0, _find_end(data)):
        piece = _parse_piece(data, value, file)
        if piece is not None:
            yield piece


def _find_end(data: mmap.mmap) -> int:
    """Return where the values end: before the checksum, if there is one."""
    tail = max(0, len(data) - _LONGEST_CHECKSUM)
    checksum = data.find(_CHECKSUM, tail)
    return len(data) if checksum < 0 else checksum


def _parse_piece(data: mmap.mmap, value: Field, file: str) -> _Piece | None:
    """Return a value as a piece; None if the field is no value, or holds no tensor."""
    if value.number != VALUE or value.wire != BYTES:
        return None
    name, tensor = "", None
    for field in iterate_fields(data, value.begin, value.end):
        if field.number == TAG and field.wire == BYTES:
            name = read_text(data, field)
        elif field.number == TENSOR and field.wire == BYTES:
            tensor = field
    if tensor is None:
        return None
    dims: list[int] = []
    dtype, extent = "", Extent(file, 0, 0)
    for field in iterate_fields(data, tensor.begin, tensor.end):
        if field.number == DIMS:
            dims.append(field.value)
        elif field.number == TYPE:
            dtype = normalize_dtype(read_text(data, field))
        elif field.number == CONTENT:
            extent = Extent(file, field.begin, field.end - field.begin)
    shape = validate_shape(dims)
    if not dtype or shape is None:
        return None
    return _Piece(name, dtype, shape, extent)


def _join_pieces(path: Path, pieces: list[_Piece]) -> Entry:
    """Return the entry of a parameter. Raises DumpError if its bytes do not fit its shape."""
    first = pieces[0]
    length = sum(piece.extent.length for piece in pieces)
    # 'append_dict' and scalars are written with dims () or (0,), and hold one element.
    shape = first.shape if first.shape != (0,) or length == 0 else ()
    entry = Entry(first.name, first.dtype, shape, tuple(piece.extent for piece in pieces))
    expected_length = entry.size * get_item_size(entry.dtype)
    if expected_length != length:
        raise DumpError(
            f"{path}: {entry.name} has {length:,} bytes, but its shape {entry.shape} needs "
            f"{expected_length:,}"
        )
    return entry
