"""Values that one process leaves in shared memory for another one.

Arrays of numbers are not copied: the receiver works with those in the shared memory. Arrays of
Python objects, such as a column of names, are sent as their different objects and a number for each
element, because to pickle millions of references takes most of the time.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
from collections.abc import Callable, Sequence
from io import BytesIO
from itertools import accumulate
from typing import Any

import numpy as np
import pandas as pd

from .arrays import AnyArray, Ints, Objects

_ALIGNMENT = 64  #: bytes; NumPy is faster with aligned arrays
_MIN_ENCODED = 64  #: elements of an array of objects from which on it is encoded

_EncodedRow = tuple[AnyArray, list[Any]]  #: a number for each element, and the different objects


def create_shared_memory() -> int:
    """Return the descriptor of an empty file in memory, which a copy of this process has as well.

    Only on Linux.
    """
    return os.memfd_create("dumpdiff")


def write_value(descriptor: int, value: Any) -> None:
    """Write a value that :func:`read_value` returns."""
    buffers: list[pickle.PickleBuffer] = []
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        data = _dump(value, buffers.append)
        blocks = [*(buffer.raw() for buffer in buffers), memoryview(data)]
        header = np.array([len(blocks), *(block.nbytes for block in blocks)], dtype=np.int64)
        file.write(header.tobytes())
        for block, start in zip(blocks, _list_starts(header), strict=True):
            file.seek(start)
            file.write(block)


def read_value(descriptor: int) -> Any:
    """Return the value that :func:`write_value` wrote, once. Its arrays may be changed."""
    memory = memoryview(mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE))
    n_blocks = int(np.frombuffer(memory, np.int64, 1)[0])
    header = np.frombuffer(memory, np.int64, 1 + n_blocks)
    starts = _list_starts(header)
    blocks = [
        memory[start : start + size]
        for start, size in zip(starts, header[1:].tolist(), strict=True)
    ]
    value = pickle.loads(blocks.pop(), buffers=blocks)
    os.ftruncate(descriptor, starts[-1])  # the rest is not needed as long as the arrays are
    return value


def _list_starts(header: Ints) -> list[int]:
    """Return where each block begins: after the header and the blocks before it."""
    sizes = [header.nbytes, *header[1:-1].tolist()]
    return list(accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes))


def _dump(value: Any, add_buffer: Callable[[pickle.PickleBuffer], None]) -> bytes:
    """Pickle a value; arrays of numbers are handed to ``add_buffer`` instead."""
    stream = BytesIO()
    _Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=add_buffer).dump(value)
    return stream.getvalue()


class _Pickler(pickle.Pickler):
    """Encodes arrays of objects, and arrays that repeat a single element."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is memoryview:
            return memoryview, (np.asarray(value),)
        if type(value) is np.ndarray and value.size > 1 and not any(value.strides):
            return np.broadcast_to, (value[(slice(1),) * value.ndim], value.shape)
        is_encoded = (
            type(value) is np.ndarray
            and value.dtype == object
            and value.ndim in (1, 2)
            and value.size >= _MIN_ENCODED
        )
        if not is_encoded:
            return NotImplemented
        rows = np.ascontiguousarray(value).reshape(-1, value.shape[-1])
        return _decode_objects, (value.shape, [_encode_row(row) for row in rows])


def _encode_row(row: Objects) -> _EncodedRow:
    """Return the different objects of a row, and for each element which of them it is."""
    codes, addresses = pd.factorize(_list_addresses(row))
    first_positions = np.empty(len(addresses), dtype=np.int64)
    first_positions[codes] = np.arange(len(row))  # of equal ones any does
    dtype = np.min_scalar_type(len(addresses))
    return codes.astype(dtype), row[first_positions].tolist()


def _list_addresses(objects: Objects) -> Ints:
    """Return where the objects of a contiguous array are in memory, which tells them apart."""
    pointers = (ctypes.c_ssize_t * objects.size).from_address(objects.ctypes.data)
    addresses: Ints = np.ctypeslib.as_array(pointers)
    return addresses


def _decode_objects(shape: tuple[int, ...], rows: Sequence[_EncodedRow]) -> Objects:
    decoded = np.empty((len(rows), shape[-1]), dtype=object)
    for number, (codes, different_objects) in enumerate(rows):
        objects = np.fromiter(different_objects, dtype=object, count=len(different_objects))
        np.take(objects, codes, out=decoded[number])
    return decoded.reshape(shape)
