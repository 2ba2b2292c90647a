"""Writing safetensors: the header first, then the elements of each tensor as they come.

Format: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..checkpoints.elements import item_size
from ..checkpoints.safetensors import DTYPES
from .rows import Tensor

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNMENT = 8  #: bytes: the header is padded with spaces to a multiple, as the reference implementation does
LARGEST = 5 * 10**9  #: bytes of tensors in one file, where transformers begins another by default


def size_of(tensor: Tensor) -> int:
    """Bytes of its elements."""
    return item_size(tensor.dtype) * math.prod(tensor.shape)


def write(path: Path, tensors: Sequence[Tensor], done: Callable[[int], None]) -> None:
    """Write one file; ``done`` hears of the bytes of every chunk."""
    with path.open("wb") as stream:
        stream.write(_header(tensors))
        for tensor in tensors:
            for chunk in tensor.chunks():
                stream.write(chunk.data)
                done(chunk.nbytes)


def _header(tensors: Sequence[Tensor]) -> bytes:
    said: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + size_of(tensor)
        said[tensor.name] = {
            "dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end],
        }  # fmt: skip
        offset = end
    text = json.dumps(said, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def shards(tensors: Sequence[Tensor], largest: int = LARGEST) -> dict[str, list[Tensor]]:
    """File name -> its tensors: one file, or several of at most ``largest`` bytes (or one tensor)."""
    groups: list[list[Tensor]] = [[]]
    size = 0
    for tensor in tensors:
        if groups[-1] and size + size_of(tensor) > largest:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += size_of(tensor)
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {
        f"model-{n:05d}-of-{len(groups):05d}.safetensors": group
        for n, group in enumerate(groups, start=1)
    }


def index(files: Mapping[str, Sequence[Tensor]]) -> str:
    """``model.safetensors.index.json``, which says which file holds which tensor."""
    total = sum(size_of(tensor) for tensors in files.values() for tensor in tensors)
    places = {tensor.name: file for file, tensors in files.items() for tensor in tensors}
    return json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2) + "\n"
