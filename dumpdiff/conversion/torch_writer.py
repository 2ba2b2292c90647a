"""Writer of files like those of ``torch.save``: a zip of one pickle and each tensor's bytes.

torch is not needed. ``torch.load`` reads them: torch/serialization.py, and
caffe2/serialize/inline_container.cc for the alignment of members.
"""

from __future__ import annotations

import math
import os
import zipfile
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ..checkpoints.torch_zip import STORAGES
from .pickle_writer import Call, PersistentId, PythonName, encode_pickle
from .rows import OutputTensor

_STORAGE_CLASSES = {dtype: name for name, dtype in STORAGES.items()}
_ALIGNMENT = 64  #: bytes
_DATE = (2011, 1, 1, 0, 0, 0)
_LOCAL_HEADER = 30  #: bytes of a member's header before its name
_ZIP64_FIELD = 20  #: bytes of a member's field of long sizes
_EXTRA_HEADER = 4  #: bytes before the content of an extra field


def write_file(
    path: Path,
    chunks: Sequence[Sequence[OutputTensor]],
    state: Mapping[str, Any],
    arguments: Mapping[str, Any],
    report_bytes: Callable[[int], None],
) -> None:
    """Write ``{"args": Namespace(**arguments), **state, "model": {name: tensor}}``.

    Of several ``chunks`` (virtual stages) the models are ``model0``, ``model1``, ...
    ``report_bytes`` is called with the size of every piece.
    """
    namespace = Call(PythonName("argparse", Namespace.__name__), (), dict(arguments))
    content = {"args": namespace, **state}
    tensors: list[OutputTensor] = []
    for number, chunk in enumerate(chunks):
        model = {}
        for tensor in chunk:
            model[tensor.name] = describe_tensor(len(tensors), tensor, tensor.shape)
            tensors.append(tensor)
        content["model" if len(chunks) == 1 else f"model{number}"] = model
    with path.open("wb") as stream:
        write_archive(stream, content, tensors, report_bytes)


def write_archive(
    stream: BinaryIO,
    content: Any,
    tensors: Sequence[OutputTensor],
    report_bytes: Callable[[int], None],
) -> None:
    """Write a file of ``torch.save`` from the stream's position on; storage N is tensor N."""
    file = _StreamPart(stream)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        _write_member(archive, "data.pkl", encode_pickle(content))
        _write_member(archive, "byteorder", b"little")
        for number, tensor in enumerate(tensors):
            info = _build_member_info(archive, f"data/{number}")
            with archive.open(info, "w", force_zip64=True) as member:
                for piece in tensor.read_chunks():
                    member.write(piece.data)
                    report_bytes(piece.nbytes)
        _write_member(archive, "version", b"3\n")


class _StreamPart:
    """A stream whose first byte is that at the position of another, so that offsets are its own."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._start = stream.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, by default counted from the first byte of this part."""
        if whence == os.SEEK_SET:
            offset += self._start
        return self._stream.seek(offset, whence) - self._start

    def tell(self) -> int:
        """Return the position in this part."""
        return self._stream.tell() - self._start

    def write(self, data: Any) -> int:
        """Write bytes at the position."""
        return self._stream.write(data)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()

    def close(self) -> None:
        """Leave the stream open, for what follows this part."""


def describe_tensor(number: int, tensor: OutputTensor, shape: Sequence[int]) -> Call:
    """Return the call that rebuilds a tensor from storage ``number``, in a shape of its size."""
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    storage_class = PythonName("torch", _STORAGE_CLASSES[tensor.dtype])
    n_elements = math.prod(shape)
    storage = PersistentId(("storage", storage_class, str(number), "cpu", n_elements))
    hooks = Call(PythonName("collections", "OrderedDict"))
    return Call(
        PythonName("torch._utils", "_rebuild_tensor_v2"),
        (storage, 0, tuple(shape), strides, False, hooks),
    )


def _write_member(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    with archive.open(_build_member_info(archive, name), "w", force_zip64=True) as stream:
        stream.write(data)


def _build_member_info(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """Return a member whose bytes are aligned, with an extra field of the header as padding."""
    info = zipfile.ZipInfo(f"archive/{name}", _DATE)
    header_size = _LOCAL_HEADER + len(info.filename) + _ZIP64_FIELD + _EXTRA_HEADER
    gap = -(archive.start_dir + header_size) % _ALIGNMENT
    info.extra = b"FB" + gap.to_bytes(2, "little") + bytes(gap)
    return info
