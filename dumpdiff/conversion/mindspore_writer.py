"""Writer of MindSpore's ``.ckpt`` files: one protobuf message, tensor by tensor in chunks.

The message is described in :mod:`dumpdiff.checkpoints.mindspore_ckpt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..checkpoints.mindspore_ckpt import CONTENT, DIMS, TAG, TENSOR, TYPE, VALUE
from ..checkpoints.protobuf import BYTES, VARINT
from .protobuf_encoding import encode_bytes, encode_key, encode_number
from .rows import OutputTensor
from .safetensors_writer import compute_size

SUFFIX = ".ckpt"
#: Bytes of a slice of a parameter, as MindSpore's save_checkpoint cuts them.
_SLICE = 512 << 20
#: All dtypes of a planned tensor: float8 is decoded, and a complex number is two elements.
_TYPES = {
    "float64": "Float64", "float32": "Float32", "float16": "Float16", "bfloat16": "BFloat16",
    "int64": "Int64", "int32": "Int32", "int16": "Int16", "int8": "Int8",
    "uint64": "UInt64", "uint32": "UInt32", "uint16": "UInt16", "uint8": "UInt8", "bool": "Bool",
}  # fmt: skip


def write_file(
    path: Path, tensors: Sequence[OutputTensor], report_bytes: Callable[[int], None]
) -> None:
    """Write one file; ``report_bytes`` is called with the size of every chunk."""
    with path.open("wb") as stream:
        for tensor in tensors:
            _write_tensor(stream, tensor, report_bytes)


def _write_tensor(
    stream: BinaryIO, tensor: OutputTensor, report_bytes: Callable[[int], None]
) -> None:
    left_in_slice, left = 0, compute_size(tensor)
    for chunk in tensor.read_chunks():
        data = chunk.reshape(-1).view(np.uint8)
        report_bytes(data.size)
        while data.size:
            if not left_in_slice:
                left_in_slice = min(left, _SLICE)
                left -= left_in_slice
                stream.write(_encode_head(tensor, left_in_slice))
            stream.write(data[:left_in_slice].data)
            written = min(data.size, left_in_slice)
            left_in_slice -= written
            data = data[written:]


def _encode_head(tensor: OutputTensor, n_bytes: int) -> bytes:
    """Return the message of a slice up to its content of ``n_bytes``."""
    described = b"".join(_encode_tensor(tensor)) + encode_key(CONTENT, BYTES)
    described += encode_number(n_bytes)
    tagged = encode_bytes(TAG, tensor.name.encode()) + encode_key(TENSOR, BYTES)
    tagged += encode_number(len(described) + n_bytes)
    size = len(tagged) + len(described) + n_bytes
    return encode_key(VALUE, BYTES) + encode_number(size) + tagged + described


def _encode_tensor(tensor: OutputTensor) -> Iterator[bytes]:
    for length in tensor.shape:
        yield encode_key(DIMS, VARINT) + encode_number(length)
    yield encode_bytes(TYPE, _TYPES[tensor.dtype].encode())
