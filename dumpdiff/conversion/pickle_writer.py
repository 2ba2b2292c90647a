"""Pickles, written by hand: plain values, references to Python objects by name, and calls of them.

No class is imported to write its name, so that a file for torch needs no torch. Opcodes: CPython's pickletools.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PythonName:
    """A module's attribute: a class or a function."""

    module: str
    attribute: str


@dataclass(frozen=True)
class Call:
    """What ``of(*arguments)`` returns; with a ``state``, ``of.__new__(of)`` whose attributes these are."""

    function: PythonName
    arguments: tuple[Any, ...] = ()
    state: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PersistentId:
    """What the reader of the file finds by itself (a persistent id)."""

    key: tuple[Any, ...]


def encode_pickle(value: Any) -> bytes:
    """``value`` as a pickle of protocol 2. Raises KeyError for what is none of the above, nor a plain value."""
    return b"\x80\x02" + _encoded(value) + b"."


def _encoded(value: Any) -> bytes:
    return _ENCODERS[type(value)](value)


def _integer(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def _text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _items(value: Mapping[Any, Any]) -> bytes:
    return b"}(" + b"".join(_encoded(key) + _encoded(item) for key, item in value.items()) + b"u"


def _call(value: Call) -> bytes:
    made = _encoded(value.function) + _encoded(value.arguments)
    return (
        made + b"R" if value.state is None else made + b"\x81" + _encoded(dict(value.state)) + b"b"
    )


_ENCODERS: Mapping[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"N",
    bool: lambda value: b"\x88" if value else b"\x89",
    int: _integer,
    float: lambda value: b"G" + struct.pack(">d", value),
    str: _text,
    tuple: lambda value: b"(" + b"".join(map(_encoded, value)) + b"t",
    list: lambda value: b"](" + b"".join(map(_encoded, value)) + b"e",
    dict: _items,
    PythonName: lambda value: b"c" + f"{value.module}\n{value.attribute}\n".encode(),
    PersistentId: lambda value: _encoded(value.key) + b"Q",
    Call: _call,
}
