"""Writer of safetensors files: the header, then the elements of each tensor in chunks.

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

_HEADER_DTYPES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNMENT = 8  #: bytes; the header is padded with spaces, as the reference implementation does
LARGEST = 5 * 10**9  #: bytes of tensors in one file; the default of transformers


def compute_size(tensor: OutputTensor) -> int:
    """Return the bytes of its elements."""
    return get_item_size(tensor.dtype) * math.prod(tensor.shape)


def write_file(
    path: Path, tensors: Sequence[OutputTensor], report_bytes: Callable[[int], None]
) -> None:
    """Write one file; ``report_bytes`` is called with the size of every chunk."""
    with path.open("wb") as stream:
        stream.write(_encode_header(tensors))
        for tensor in tensors:
            for chunk in tensor.read_chunks():
                stream.write(chunk.data)
                report_bytes(chunk.nbytes)


def _encode_header(tensors: Sequence[OutputTensor]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + compute_size(tensor)
        header[tensor.name] = {
            "dtype": _HEADER_DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def split_into_files(
    tensors: Sequence[OutputTensor], largest: int = LARGEST
) -> dict[str, list[OutputTensor]]:
    """Return file name -> its tensors: one file, or several of at most ``largest`` bytes.

    A file with a single tensor may be larger.
    """
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
        f"model-{number:05d}-of-{len(groups):05d}.safetensors": group
        for number, group in enumerate(groups, start=1)
    }


def build_index(tensors_by_file: Mapping[str, Sequence[OutputTensor]]) -> str:
    """Return ``model.safetensors.index.json``: which file holds which tensor."""
    total_size = 0
    weight_map = {}
    for file, tensors in tensors_by_file.items():
        for tensor in tensors:
            total_size += compute_size(tensor)
            weight_map[tensor.name] = file
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    return json.dumps(index, indent=2) + "\n"
