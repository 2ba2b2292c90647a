"""Encoding of fields of protobuf messages: https://protobuf.dev/programming-guides/encoding/."""

from __future__ import annotations

from ..checkpoints.protobuf import BYTES, VARINT


def encode_bytes(number: int, content: bytes) -> bytes:
    """Return a field that is a text, bytes or a message."""
    return encode_key(number, BYTES) + encode_number(len(content)) + content


def encode_integer(number: int, value: int) -> bytes:
    """Return a field that is an integer; a negative one has the bits of its complement of two."""
    return encode_key(number, VARINT) + encode_number(value % (1 << 64))


def encode_key(number: int, wire: int) -> bytes:
    """Return the head of a field: its number, and how its value is encoded."""
    return encode_number(number << 3 | wire)


def encode_number(value: int) -> bytes:
    """Return a varint: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
