"""Protobuf messages of a mapped file, walked without copying: field numbers, and where the bytes of each lie.

Encoding: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import NamedTuple

VARINT, BYTES = 0, 2
_WIDTH = {1: 8, 5: 4}


class Field(NamedTuple):
    """One field of a message: a number (wire type 0), or a run of bytes."""

    number: int
    wire: int
    value: int  #: of a number
    begin: int
    end: int


def fields(data: bytes | mmap.mmap, begin: int, end: int) -> Iterator[Field]:
    """The fields of the message in ``data[begin:end]``. Raises ValueError if it is none, or cut short."""
    at = begin
    while at < end:
        key, at = _varint(data, at, end)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = _varint(data, at, end)
            yield Field(number, wire, value, at, at)
            continue
        if wire == BYTES:
            length, at = _varint(data, at, end)
        elif wire in _WIDTH:
            length = _WIDTH[wire]
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if at + length > end:
            raise ValueError(f"cut short at byte {at}")
        yield Field(number, wire, 0, at, at + length)
        at += length


def numbers(data: bytes | mmap.mmap, message: Field, number: int) -> list[int]:
    """A repeated integer field of a message, packed or not; negative numbers as such."""
    found: list[int] = []
    for field in fields(data, message.begin, message.end):
        if field.number != number:
            continue
        if field.wire == VARINT:
            found.append(_signed(field.value))
        else:
            at = field.begin
            while at < field.end:
                value, at = _varint(data, at, field.end)
                found.append(_signed(value))
    return found


def text(data: bytes | mmap.mmap, field: Field) -> str:
    """A string field."""
    return data[field.begin : field.end].decode("utf-8")


def _varint(data: bytes | mmap.mmap, at: int, end: int) -> tuple[int, int]:
    result = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result, at
        shift += 7
    raise ValueError(f"cut short at byte {at}")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
