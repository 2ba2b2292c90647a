"""Writing what ``torch.save`` writes, without torch: a zip with one pickle, and the bytes of each tensor.

Read by ``torch.load``: torch/serialization.py, and caffe2/serialize/inline_container.cc for how members are aligned.
"""

from __future__ import annotations

import math
import zipfile
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..checkpoints.torch_zip import STORAGES
from .pickle_writer import Call, PythonName, PersistentId, encode_pickle
from .rows import OutputTensor

_CLASSES = {dtype: name for name, dtype in STORAGES.items()}
_ALIGNMENT = 64  #: bytes
_DATE = (2011, 1, 1, 0, 0, 0)
_LOCAL_HEADER, _ZIP64_FIELD = (
    30,
    20,
)  #: bytes of a member's header before its name, and of its field of long sizes


def write_file(
    path: Path, tensors: Sequence[OutputTensor], beside: Mapping[str, Any], arguments: Mapping[str, Any],
    done: Callable[[int], None],
) -> None:  # fmt: skip
    """Write ``{"args": Namespace(**arguments), **beside, "model": {name: tensor}}``."""
    model = {tensor.name: _tensor(number, tensor) for number, tensor in enumerate(tensors)}
    namespace = Call(PythonName("argparse", Namespace.__name__), (), dict(arguments))
    saved = {"args": namespace, **beside, "model": model}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        _member(archive, "data.pkl", encode_pickle(saved))
        _member(archive, "byteorder", b"little")
        for number, tensor in enumerate(tensors):
            with archive.open(_info(archive, f"data/{number}"), "w", force_zip64=True) as stream:
                for chunk in tensor.read_chunks():
                    stream.write(chunk.data)
                    done(chunk.nbytes)
        _member(archive, "version", b"3\n")


def _tensor(number: int, tensor: OutputTensor) -> Call:
    strides = tuple(math.prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape)))
    count = math.prod(tensor.shape)
    storage = PersistentId(("storage", PythonName("torch", _CLASSES[tensor.dtype]), str(number), "cpu", count))
    hooks = Call(PythonName("collections", "OrderedDict"))
    return Call(
        PythonName("torch._utils", "_rebuild_tensor_v2"),
        (storage, 0, tensor.shape, strides, False, hooks),
    )


def _member(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    with archive.open(_info(archive, name), "w", force_zip64=True) as stream:
        stream.write(data)


def _info(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """A member whose bytes begin at a multiple of 64: a field of the header that nobody reads fills the gap."""
    info = zipfile.ZipInfo(f"archive/{name}", _DATE)
    begin = archive.start_dir + _LOCAL_HEADER + len(info.filename) + _ZIP64_FIELD + 4
    gap = -begin % _ALIGNMENT
    info.extra = b"FB" + gap.to_bytes(2, "little") + bytes(gap)
    return info
