"""``torch.save`` of a state dict (.pt, .pth, .bin): a zip of one pickle, and the bytes.

The pickle is only disassembled. :mod:`dumpdiff.tensor_files.torch_pt` describes the file format. It
reads one tensor; here there can be any number, in dicts and lists.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..model.errors import DumpError
from ..model.input_files import open_input_file, read_head
from ..model.trace import Problem
from ..tensor_files.pickles import (
    Global,
    Persistent,
    PickledCall,
    UnknownPickle,
    disassemble,
    get_mapping_items,
)
from ..tensor_files.torch_pt import ARCHIVE_ERRORS, find_entry_start
from .checkpoint import Entry, Extent

FORMAT = "torch"

#: Class of torch -> dtype of its elements.
STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32",
    "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128",
    "Float8_e4m3fnStorage": "float8_e4m3fn", "Float8_e5m2Storage": "float8_e5m2",
}  # fmt: skip
#: dtype object of torch -> dtype, for tensors in an UntypedStorage.
_UNTYPED = {
    "torch float8_e4m3fn": "float8_e4m3fn", "torch float8_e5m2": "float8_e5m2",
    "torch uint16": "uint16", "torch uint32": "uint32", "torch uint64": "uint64",
}  # fmt: skip
_LONGEST_PICKLE = 1 << 28  #: bytes; a pickle of a million tensors has some 200 million
_DEEPEST = 12  #: levels of nested dicts and lists; deeper values are ignored
#: Keys under which training scripts save the model; they are not part of a tensor's name.
CONTAINERS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "params")


@dataclass(frozen=True)
class Archive:
    """The content of a file. ``value`` is its pickle, as data: see ``tensor_files.pickles``."""

    path: Path
    file: str
    value: Any
    storages: Mapping[str, Extent]

    def build_entry(self, name: str, value: Any) -> Entry | None:
        """Return the entry of a tensor of the pickle; None if the value is no known kind of tensor.

        Raises DumpError if its bytes are missing.
        """
        while isinstance(value, PickledCall) and value.function in _WRAPPERS:
            unwrap = _WRAPPERS[value.function]
            value = unwrap(value.arguments)
        match value:
            case PickledCall(
                function="torch._utils _rebuild_tensor_v2" | "torch._utils _rebuild_tensor_v3",
                arguments=(
                    Persistent(("storage", str(storage), str(key), str(), int())),
                    int(start),
                    tuple(shape),
                    tuple(strides),
                    *other_arguments,
                ),
            ) if len(shape) == len(strides) and _are_lengths((*shape, *strides)):
                dtype = _get_dtype(storage, other_arguments)
                if dtype is None:
                    return None
                extent = self.storages.get(key)
                if extent is None and math.prod(shape) > 0:
                    raise DumpError(f"{self.path}: the data of {name} are missing; copy it again")
                return Entry(
                    name,
                    dtype,
                    tuple(shape),
                    () if extent is None else (extent,),
                    None if tuple(strides) == _compute_c_strides(shape) else tuple(strides),
                    start,
                )
        return None


def _are_lengths(values: Sequence[Any]) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


def _get_dtype(storage: str, other_arguments: Sequence[Any]) -> str | None:
    """Return the dtype by the storage's class, or by the argument that an UntypedStorage needs."""
    storage_class = storage.rpartition(" ")[2]
    if storage_class == "UntypedStorage" and len(other_arguments) > 2:
        return _UNTYPED.get(str(other_arguments[2]))
    return STORAGES.get(storage_class)


def _unwrap_subclass(arguments: tuple[Any, ...]) -> Any:
    """Unwrap ``_rebuild_from_type_v2(function, type, arguments, state)``.

    torch writes this for a tensor of a subclass, or a tensor with attributes.
    """
    function, _, inner_arguments, *_ = arguments
    return PickledCall(function, inner_arguments)


#: Functions around a tensor -> function that returns the inner value from their arguments.
_WRAPPERS = {
    Global("torch._utils _rebuild_parameter"): lambda arguments: arguments[0],
    Global("torch._utils _rebuild_parameter_with_state"): lambda arguments: arguments[0],
    Global("torch._tensor _rebuild_from_type_v2"): _unwrap_subclass,
}


def _compute_c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def is_torch(path: Path) -> bool:
    """Return whether a file is a zip with a pickle that torch wrote."""
    if read_head(path, 4) != b"PK\x03\x04":
        return False
    try:
        with open_input_file(path) as stream, zipfile.ZipFile(stream) as archive:
            return any(name.partition("/")[2] == "data.pkl" for name in archive.namelist())
    except ARCHIVE_ERRORS:
        return False


def read_archive(path: Path, file: str, begin: int = 0, length: int | None = None) -> Archive:
    """Read a file of ``torch.save``, or a byte range of a file that is one.

    The range has ``length`` bytes from ``begin`` on. Entries refer to the file as ``file``.
    Raises DumpError if it cannot be used.
    """
    try:
        with open_input_file(path) as stream, _open_zip(stream, begin, length) as archive:
            members = {info.filename.partition("/")[2]: info for info in archive.infolist()}
            pickle_size = members["data.pkl"].file_size
            if pickle_size > _LONGEST_PICKLE:
                raise DumpError(
                    f"{path}: its pickle has {pickle_size:,} bytes; save only the weights"
                )
            if "byteorder" in members and archive.read(members["byteorder"]) != b"little":
                raise DumpError(f"{path}: it is big-endian; save it on a little-endian machine")
            value = disassemble(archive.read(members["data.pkl"]))
        storages = {}
        for name, member in members.items():
            if not name.startswith("data/"):
                continue
            if member.compress_type != zipfile.ZIP_STORED:
                raise DumpError(f"{path}: it is compressed; save it with torch.save again")
            offset = find_entry_start(path, member, begin + member.header_offset)
            storages[name.removeprefix("data/")] = Extent(file, offset, member.file_size)
    except UnknownPickle as reason:
        raise DumpError(f"{path}: {reason}; save only the state dict") from None
    except (*ARCHIVE_ERRORS, KeyError) as error:
        raise DumpError(f"{path}: damaged torch file ({error}); copy it again") from None
    return Archive(path, file, value, storages)


def _open_zip(stream: BinaryIO, begin: int, length: int | None) -> zipfile.ZipFile:
    return zipfile.ZipFile(stream if length is None else _ByteRange(stream, begin, length))


class _ByteRange(io.RawIOBase):
    """A byte range of a file, as a seekable file."""

    def __init__(self, stream: BinaryIO, begin: int, length: int) -> None:
        self._stream = stream
        self._begin = begin
        self._length = length
        self._position = 0

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position within the range."""
        origins = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}
        self._position = offset + origins[whence]
        if self._position < 0:
            raise ValueError("seek before the beginning")
        return self._position

    def tell(self) -> int:
        """Return the position within the range."""
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Read up to the end of the range."""
        n_available = max(0, self._length - self._position)
        self._stream.seek(self._begin + self._position)
        data = self._stream.read(n_available if size < 0 else min(size, n_available))
        self._position += len(data)
        return data


def read_entries(path: Path, file: str) -> tuple[list[Entry], list[Problem]]:
    """Return all tensors of a file, at any depth of dicts and lists, with dotted names.

    Raises DumpError if the file cannot be used.
    """
    archive = read_archive(path, file)
    entries = []
    for name, value in walk_leaves(archive.value):
        entry = archive.build_entry(name, value)
        if entry is not None:
            entries.append(entry)
    return entries, []


def walk_leaves(value: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of all nested values.

    A key of :data:`CONTAINERS` at the top is not part of the name.
    """
    items = _get_items(value)
    if items is None or depth > _DEEPEST:
        yield prefix, value
        return
    for key, item in items.items():
        name = f"{prefix}.{key}" if prefix else _name_top_level(key, item)
        yield from walk_leaves(item, name, depth + 1)


def _get_items(value: Any) -> Mapping[Any, Any] | None:
    """Return key or index -> item of a dict, list or tuple; None for anything else."""
    is_sequence = isinstance(value, (list, tuple)) and not isinstance(value, Persistent)
    return dict(enumerate(value)) if is_sequence else get_mapping_items(value)


def _name_top_level(key: Any, item: Any) -> str:
    is_container = key in CONTAINERS and get_mapping_items(item) is not None
    return "" if is_container else str(key)
