"""Encoding of pickles: plain values, references to Python objects by name, and calls of them.

No class is imported to write its name, so a file for torch is written without torch. Opcodes:
CPython's pickletools.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PythonName:
    """An attribute of a module: a class or a function."""

    module: str
    attribute: str


@dataclass(frozen=True, eq=False)
class Call:
    """The value of ``function(*arguments)``; every call is another value, which may be a key.

    With a ``state``, it is ``function.__new__(function)`` with these attributes.
    """

    function: PythonName
    arguments: tuple[Any, ...] = ()
    state: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PersistentId:
    """A reference that the reader of the file resolves."""

    key: tuple[Any, ...]


def encode_pickle(value: Any) -> bytes:
    """Return a pickle of protocol 2. Raises KeyError for a type that has no encoder here."""
    return b"\x80\x02" + _encode(value) + b"."


def _encode(value: Any) -> bytes:
    return _ENCODERS[type(value)](value)


def _encode_all(values: tuple[Any, ...] | list[Any]) -> bytes:
    return b"".join(map(_encode, values))


def _encode_integer(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def _encode_text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _encode_dict(value: Mapping[Any, Any]) -> bytes:
    items = b"".join(_encode(key) + _encode(item) for key, item in value.items())
    return b"}(" + items + b"u"


def _encode_call(value: Call) -> bytes:
    call = _encode(value.function) + _encode(value.arguments)
    if value.state is None:
        return call + b"R"
    return call + b"\x81" + _encode(dict(value.state)) + b"b"


_ENCODERS: Mapping[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"N",
    bool: lambda value: b"\x88" if value else b"\x89",
    int: _encode_integer,
    float: lambda value: b"G" + struct.pack(">d", value),
    str: _encode_text,
    tuple: lambda value: b"(" + _encode_all(value) + b"t",
    list: lambda value: b"](" + _encode_all(value) + b"e",
    dict: _encode_dict,
    PythonName: lambda value: b"c" + f"{value.module}\n{value.attribute}\n".encode(),
    PersistentId: lambda value: _encode(value.key) + b"Q",
    Call: _encode_call,
}
