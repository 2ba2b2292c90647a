"""Writer of Megatron-core's distributed checkpoints, ``torch_dist``; torch is not needed.

Every tensor is whole, so ranks of any layout load their shares. Sources: torch 2.13
distributed/checkpoint/{metadata,filesystem}.py (``.metadata``, and one ``torch.save`` for each
chunk of a tensor); megatron-core 0.16.1 transformer/transformer_block.py (layers are the first
axis, unless some have experts), ssm/mamba_block.py (but not those of Mamba),
transformer/moe/experts.py (experts are the axis after it), tensor_parallel/layers.py (an empty
``_extra_state``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..model.errors import DumpError
from . import torch_writer
from .pickle_writer import Call, PythonName, encode_pickle
from .rows import OutputTensor

#: Megatron-core reads the other files as this one says.
CONFIG_NAME = "metadata.json"
CONFIG = json.dumps(
    {
        "sharded_backend": "torch_dist",
        "sharded_backend_version": 1,
        "common_backend": "torch",
        "common_backend_version": 1,
    }
)
COMMON_NAME = "common.pt"  #: the arguments of the run
_DATA_NAME = "__0_0.distcp"
_VERSION = "1.0.0"  #: of the metadata
_LAYER = re.compile(r"^(decoder\.layers)\.(\d+)(?=\.)")
#: In names of models whose layers are tensors of their own.
_MIXER = ".mixer."
_UNSTACKED = (".experts.", _MIXER)
_LOCAL_EXPERT = re.compile(r"(?<=\.experts)\.local_experts\.(\d+)(?=\.)")
_GROUPED_EXPERT = re.compile(r"(?<=\.experts)(\.linear_fc[12]\.\w+?)(\d+)$")
#: The weight of a linear layer; of a mixer's input projection, its first part.
_LINEAR_WEIGHT = re.compile(r"^(.*\.(?:linear_\w+|eh_proj|(?:in|out)_proj))\.weight(?:\.z)?$")
_METADATA_MODULE = "torch.distributed.checkpoint.metadata"
_STORAGE_MODULE = "torch.distributed.checkpoint.filesystem"


@dataclass(frozen=True)
class _Chunk:
    """A tensor as a part of the tensor of all layers, or of all experts, that has the key."""

    key: str
    place: tuple[int, ...]  #: its numbers on the axes before its own: layer, expert
    tensor: OutputTensor

    @property
    def start(self) -> tuple[int, ...]:
        """Position of its first element in the tensor of the key."""
        return (*self.place, *(0 for _ in self.tensor.shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """Its own shape after an axis of length one for each number of its place."""
        return (*(1 for _ in self.place), *self.tensor.shape)


@dataclass(frozen=True)
class _Span:
    """The bytes of a chunk or an object in the file of the data."""

    key: str
    start: tuple[int, ...] | None  #: of a chunk in its tensor; None for an object
    offset: int
    length: int


def write_files(
    path: Path, tensors: Sequence[OutputTensor], report_bytes: Callable[[int], None]
) -> None:
    """Write the data of all tensors next to ``path``, and to ``path`` their metadata.

    ``report_bytes`` is called with the size of every piece. Raises DumpError if the layers do not
    have the same parameters, though they are one tensor.
    """
    groups = _group_chunks(tensors)
    spans: list[_Span] = []
    with path.with_name(_DATA_NAME).open("wb") as stream:
        for key, chunks in groups.items():
            counts = _count_places(key, chunks)
            for chunk in chunks:
                offset = stream.tell()
                value = torch_writer.describe_tensor(0, chunk.tensor, chunk.shape)
                torch_writer.write_archive(stream, value, [chunk.tensor], report_bytes)
                spans.append(_Span(key, chunk.start, offset, stream.tell() - offset))
                match = _LINEAR_WEIGHT.match(key)
                if match is not None:
                    state_key = _build_state_key(match[1], chunk.place, counts)
                    spans.append(_write_state(stream, state_key, report_bytes))
        if any(_MIXER in key for key in groups):  # MambaModel keeps this state, GPTModel does not
            state_key = _build_state_key("output_layer", (), ())
            spans.append(_write_state(stream, state_key, report_bytes))
    path.write_bytes(encode_pickle(_describe_checkpoint(groups, spans)))


def _write_state(stream: BinaryIO, key: str, report_bytes: Callable[[int], None]) -> _Span:
    """Write the empty extra state of a linear layer."""
    offset = stream.tell()
    torch_writer.write_archive(stream, [None], (), report_bytes)
    return _Span(key, None, offset, stream.tell() - offset)


def _group_chunks(tensors: Sequence[OutputTensor]) -> dict[str, list[_Chunk]]:
    """Return key -> its chunks, in the order of the tensors."""
    is_stacked = not any(part in tensor.name for tensor in tensors for part in _UNSTACKED)
    groups: dict[str, list[_Chunk]] = {}
    for tensor in tensors:
        key, place = tensor.name, []
        layer = _LAYER.match(key)
        if layer is not None and is_stacked:
            key = layer[1] + key[layer.end() :]
            place.append(int(layer[2]))
        expert = _LOCAL_EXPERT.search(key)
        if expert is not None:
            key = _LOCAL_EXPERT.sub(".experts", key)
            place.append(int(expert[1]))
        grouped = _GROUPED_EXPERT.search(key)
        if grouped is not None:
            key = _GROUPED_EXPERT.sub(r".experts\1", key)
            place.append(int(grouped[2]))
        groups.setdefault(key, []).append(_Chunk(key, tuple(place), tensor))
    return groups


def _count_places(key: str, chunks: Sequence[_Chunk]) -> tuple[int, ...]:
    """Return how many layers, or experts, a key has. Raises DumpError if some are missing."""
    places = {chunk.place for chunk in chunks}
    counts = tuple(1 + max(numbers) for numbers in zip(*places, strict=True))
    n_places = 1
    for count in counts:
        n_places *= count
    shapes = {(chunk.tensor.shape, chunk.tensor.dtype) for chunk in chunks}
    if n_places != len(chunks) or len(shapes) > 1:
        raise DumpError(
            f"{key}: torch_dist has one tensor of all layers or experts, and here they differ in"
            " shape or dtype, or one has none; convert without --ckpt-format torch_dist"
        )
    return counts


def _build_state_key(module: str, place: Sequence[int], counts: Sequence[int]) -> str:
    """Return the key of a module's extra state, which has the number of its layer and expert."""
    numbers = ".".join(map(str, place or (0,)))
    return f"{module}._extra_state/shard_{numbers}_{'.'.join(map(str, counts or (1,)))}"


def _describe_checkpoint(groups: Mapping[str, Sequence[_Chunk]], spans: Sequence[_Span]) -> Call:
    """Return the metadata: shape and chunks of each key, and the bytes of each chunk."""
    entries = {key: _describe_key(chunks) for key, chunks in groups.items()}
    storage = {}
    for span in spans:
        start = None
        if span.start is None:
            entries[span.key] = _build_instance(_METADATA_MODULE, "BytesStorageMetadata")
        else:
            start = _describe_size(span.start)
        index = _build_instance(
            _METADATA_MODULE, "MetadataIndex", fqn=span.key, offset=start, index=None
        )
        storage[index] = _build_instance(
            _STORAGE_MODULE,
            "_StorageInfo",
            relative_path=_DATA_NAME,
            offset=span.offset,
            length=span.length,
        )
    return _build_instance(
        _METADATA_MODULE,
        "Metadata",
        state_dict_metadata=entries,
        planner_data=None,
        storage_data=storage,
        storage_meta=None,
        version=_VERSION,
    )


def _describe_key(chunks: Sequence[_Chunk]) -> Call:
    """Return the description of the tensor that chunks are together."""
    ends = [
        [start + length for start, length in zip(chunk.start, chunk.shape, strict=True)]
        for chunk in chunks
    ]
    descriptions = [
        _build_instance(
            _METADATA_MODULE,
            "ChunkStorageMetadata",
            offsets=_describe_size(chunk.start),
            sizes=_describe_size(chunk.shape),
        )
        for chunk in chunks
    ]
    dtype = PythonName("torch", chunks[0].tensor.dtype)
    return _build_instance(
        _METADATA_MODULE,
        "TensorStorageMetadata",
        properties=Call(PythonName(_METADATA_MODULE, "TensorProperties"), (dtype,)),
        size=_describe_size([max(axis_ends) for axis_ends in zip(*ends, strict=True)]),
        chunks=descriptions,
    )


def _describe_size(lengths: Sequence[int]) -> Call:
    return Call(PythonName("torch", "Size"), (tuple(lengths),))


def _build_instance(module: str, name: str, **attributes: Any) -> Call:
    """Return an instance of a class as a pickle has it: its attributes."""
    return Call(PythonName(module, name), (), attributes)
