"""``torch.save`` of a state dict (.pt, .pth, .bin): a zip with one pickle, which is only disassembled, and the bytes.

See :mod:`dumpdiff.readers.torch_pt` for the file format; there for one tensor, here for any number in dicts and lists.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..model.errors import DumpError
from ..readers.files import head
from ..readers.pickles import Called, Global, Persistent, UnknownPickle, disassemble, mapping_of
from ..readers.torch_pt import entry_start
from .checkpoint import Entry, Extent

FORMAT = "torch"

#: Class of torch -> dtype of its elements.
STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128", "Float8_e4m3fnStorage": "float8_e4m3fn", "Float8_e5m2Storage": "float8_e5m2",
}  # fmt: skip
_UNTYPED = {
    "torch float8_e4m3fn": "float8_e4m3fn", "torch float8_e5m2": "float8_e5m2", "torch uint16": "uint16",
    "torch uint32": "uint32", "torch uint64": "uint64",
}  # fmt: skip
_LONGEST_PICKLE = 1 << 28  #: bytes; one of a million tensors takes some 200 million
_DEEPEST = 12  #: dicts in dicts
#: Keys under which training scripts put the model; what lies under them keeps its own name.
CONTAINERS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "params")


@dataclass(frozen=True)
class Archive:
    """What a file says: ``value`` is its pickle as data, see :mod:`dumpdiff.readers.pickles`."""

    path: Path
    file: str
    value: Any
    storages: Mapping[str, Extent]

    def tensor(self, name: str, value: Any) -> Entry | None:
        """The entry of a tensor of the pickle; None if the value is none that is understood.

        Raises DumpError if its bytes are missing.
        """
        while isinstance(value, Called) and value.what in _WRAPPED:
            inner = _WRAPPED[value.what]
            value = inner(value.arguments)
        match value:
            case Called(
                what="torch._utils _rebuild_tensor_v2" | "torch._utils _rebuild_tensor_v3",
                arguments=(
                    Persistent(("storage", str(storage), str(key), str(), int())),
                    int(start),
                    tuple(shape),
                    tuple(strides),
                    *rest,
                ),
            ) if len(shape) == len(strides) and all(
                type(n) is int and n >= 0 for n in (*shape, *strides)
            ):
                kind = storage.rpartition(" ")[2]
                dtype = (
                    _UNTYPED.get(str(rest[2]))
                    if kind == "UntypedStorage" and len(rest) > 2
                    else STORAGES.get(kind)
                )
                if dtype is None:
                    return None
                extent = self.storages.get(key)
                if extent is None and math.prod(shape) > 0:
                    raise DumpError(f"{self.path}: the data of {name} are missing; copy it again")
                plain = None if tuple(strides) == _c_order(shape) else tuple(strides)
                return Entry(
                    name, dtype, tuple(shape), () if extent is None else (extent,), plain, start
                )
        return None


def _rebuilt(arguments: tuple[Any, ...]) -> Any:
    """``_rebuild_from_type_v2(function, type, arguments, state)``: a tensor of a subclass, or with attributes."""
    function, _, given, *_ = arguments
    return Called(function, given)


_WRAPPED = {
    Global("torch._utils _rebuild_parameter"): lambda arguments: arguments[0],
    Global("torch._utils _rebuild_parameter_with_state"): lambda arguments: arguments[0],
    Global("torch._tensor _rebuild_from_type_v2"): _rebuilt,
}


def _c_order(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def is_torch(path: Path) -> bool:
    """Whether a file is a zip with a pickle that torch wrote."""
    if head(path, 4) != b"PK\x03\x04":
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.partition("/")[2] == "data.pkl" for name in archive.namelist())
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False


def archive(path: Path, file: str, begin: int = 0, length: int | None = None) -> Archive:
    """Read a file of ``torch.save``, or one that is ``length`` bytes of another file from ``begin`` on.

    ``file`` is what entries call it. Raises DumpError if it cannot be used.
    """
    try:
        with path.open("rb") as stream, _zip(stream, begin, length) as opened:
            members = {entry.filename.partition("/")[2]: entry for entry in opened.infolist()}
            if members["data.pkl"].file_size > _LONGEST_PICKLE:
                raise DumpError(
                    f"{path}: its pickle has {members['data.pkl'].file_size:,} bytes; save the weights alone"
                )
            if "byteorder" in members and opened.read(members["byteorder"]) != b"little":
                raise DumpError(f"{path}: it is big-endian; save it on a little-endian machine")
            value = disassemble(opened.read(members["data.pkl"]))
        storages = {}
        for name, member in members.items():
            if name.startswith("data/"):
                if member.compress_type != zipfile.ZIP_STORED:
                    raise DumpError(f"{path}: it is compressed; save it with torch.save again")
                at = begin + member.header_offset
                storages[name.removeprefix("data/")] = Extent(
                    file, entry_start(path, member, at), member.file_size
                )
    except UnknownPickle as reason:
        raise DumpError(f"{path}: {reason}; save the state dict alone") from None
    except (
        OSError,
        ValueError,
        KeyError,
        zipfile.BadZipFile,
        struct.error,
        NotImplementedError,
    ) as error:
        raise DumpError(f"{path}: damaged torch file ({error}); copy it again") from None
    return Archive(path, file, value, storages)


def _zip(stream: BinaryIO, begin: int, length: int | None) -> zipfile.ZipFile:
    return zipfile.ZipFile(stream if length is None else _Part(stream, begin, length))


class _Part(io.RawIOBase):
    """Some bytes of a file, as a file of its own."""

    def __init__(self, stream: BinaryIO, begin: int, length: int) -> None:
        self._stream, self._begin, self._length, self._at = stream, begin, length, 0

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As of any file."""
        self._at = (
            offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        )
        if self._at < 0:
            raise ValueError("seek before the beginning")
        return self._at

    def tell(self) -> int:
        """As of any file."""
        return self._at

    def read(self, size: int = -1) -> bytes:
        """As of any file."""
        left = max(0, self._length - self._at)
        self._stream.seek(self._begin + self._at)
        data = self._stream.read(left if size < 0 else min(size, left))
        self._at += len(data)
        return data


def entries(path: Path, file: str) -> list[Entry]:
    """All tensors of a file, however deep in dicts and lists, under dotted names. Raises DumpError."""
    opened = archive(path, file)
    return [
        entry
        for name, value in leaves(opened.value)
        if (entry := opened.tensor(name, value)) is not None
    ]


def leaves(value: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything below; a key of :data:`CONTAINERS` at the top adds nothing to the name."""
    items = mapping_of(value)
    if items is None and isinstance(value, (list, tuple)) and not isinstance(value, Persistent):
        items = dict(enumerate(value))
    if items is None or depth > _DEEPEST:
        yield prefix, value
        return
    for key, inner in items.items():
        container = not prefix and key in CONTAINERS and mapping_of(inner) is not None
        name = "" if container else f"{prefix}.{key}" if prefix else str(key)
        yield from leaves(inner, name, depth + 1)
