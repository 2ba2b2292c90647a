"""Writing safetensors: the header first, then the elements of each tensor as they come.

Format: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..checkpoints.elements import get_item_size
from ..checkpoints.safetensors import DTYPES
from .rows import OutputTensor

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNMENT = 8  #: bytes: the header is padded with spaces to a multiple, as the reference implementation does
LARGEST = 5 * 10**9  #: bytes of tensors in one file, where transformers begins another by default


def compute_size(tensor: OutputTensor) -> int:
    """Bytes of its elements."""
    return get_item_size(tensor.dtype) * math.prod(tensor.shape)


def write_file(path: Path, tensors: Sequence[OutputTensor], done: Callable[[int], None]) -> None:
    """Write one file; ``done`` hears of the bytes of every chunk."""
    with path.open("wb") as stream:
        stream.write(_header(tensors))
        for tensor in tensors:
            for chunk in tensor.read_chunks():
                stream.write(chunk.data)
                done(chunk.nbytes)


def _header(tensors: Sequence[OutputTensor]) -> bytes:
    said: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + compute_size(tensor)
        said[tensor.name] = {
            "dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end],
        }  # fmt: skip
        offset = end
    text = json.dumps(said, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def split_into_files(tensors: Sequence[OutputTensor], largest: int = LARGEST) -> dict[str, list[OutputTensor]]:
    """File name -> its tensors: one file, or several of at most ``largest`` bytes (or one tensor)."""
    groups: list[list[OutputTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if groups[-1] and size + compute_size(tensor) > largest:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += compute_size(tensor)
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {
        f"model-{n:05d}-of-{len(groups):05d}.safetensors": group
        for n, group in enumerate(groups, start=1)
    }


def build_index(files: Mapping[str, Sequence[OutputTensor]]) -> str:
    """``model.safetensors.index.json``, which says which file holds which tensor."""
    total = sum(compute_size(tensor) for tensors in files.values() for tensor in tensors)
    places = {tensor.name: file for file, tensors in files.items() for tensor in tensors}
    return json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2) + "\n"
