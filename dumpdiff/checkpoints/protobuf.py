"""Fields of protobuf messages in a mapped file: their numbers and the positions of their bytes.

Nothing is copied. Encoding: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import NamedTuple

VARINT, BYTES = 0, 2  #: wire types
_FIXED_WIDTHS = {1: 8, 5: 4}  #: wire type -> bytes


class Field(NamedTuple):
    """One field of a message: a number (wire type 0), or a run of bytes."""

    number: int
    wire: int
    value: int  #: of a number
    begin: int
    end: int


def iterate_fields(data: bytes | mmap.mmap, begin: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message in ``data[begin:end]``.

    Raises ValueError if it is no message, or is cut short.
    """
    position = begin
    while position < end:
        key, position = _read_varint(data, position, end)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, position = _read_varint(data, position, end)
            yield Field(number, wire, value, position, position)
            continue
        if wire == BYTES:
            length, position = _read_varint(data, position, end)
        elif wire in _FIXED_WIDTHS:
            length = _FIXED_WIDTHS[wire]
        else:
            raise ValueError(f"wire type {wire} at byte {position}")
        if position + length > end:
            raise ValueError(f"cut short at byte {position}")
        yield Field(number, wire, 0, position, position + length)
        position += length


def read_integers(data: bytes | mmap.mmap, message: Field, number: int) -> list[int]:
    """Return a repeated integer field of a message, packed or not, with signs."""
    integers: list[int] = []
    for field in iterate_fields(data, message.begin, message.end):
        if field.number != number:
            continue
        if field.wire == VARINT:
            integers.append(to_signed(field.value))
        else:
            position = field.begin
            while position < field.end:
                value, position = _read_varint(data, position, field.end)
                integers.append(to_signed(value))
    return integers


def read_text(data: bytes | mmap.mmap, field: Field) -> str:
    """Return a string field."""
    return data[field.begin : field.end].decode("utf-8")


def _read_varint(data: bytes | mmap.mmap, position: int, end: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it."""
    value = shift = 0
    while position < end and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise ValueError(f"cut short at byte {position}")


def to_signed(value: int) -> int:
    """Return a 64-bit number as a signed one (two's complement)."""
    return value - (1 << 64) if value >= 1 << 63 else value
