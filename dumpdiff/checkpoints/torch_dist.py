"""Distributed checkpoints of torch: ``.metadata``, a pickle that is only disassembled, and ``*.distcp`` files.

Each run of bytes of a ``.distcp`` file that the metadata names is one ``torch.save`` of one piece of a tensor
(torch/distributed/checkpoint/{metadata,filesystem}.py). Megatron-core's ``torch_dist`` is the same, with the layers of
a stage as the first axis of a tensor (``decoder.layers.self_attention...``), and experts as the second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..model.errors import DumpError
from ..model.trace import Problem
from ..readers.files import is_plain_name
from ..readers.pickles import Called, UnknownPickle, disassemble, mapping_of
from . import torch_zip
from .checkpoint import Entry, Window
from .megatron import arguments

FORMAT = "torch_dist"

METADATA = ".metadata"
_LARGEST = 1 << 28  #: bytes
_STACKED_LAYERS = re.compile(r"(?<![\w.])((?:\w+\.)*layers)\.(?!\d)")
_STACKED_EXPERTS = re.compile(r"\.experts\.experts\.")
_STATE = re.compile(r"(^|\.)(optimizer|rng_state|opt_param_scheduler)(\.|$)")


def read(folder: Path) -> tuple[tuple[Entry, ...], Mapping[str, Any], list[Problem]]:
    """The pieces of all tensors but those of the optimizer, the arguments of the run, and what could not be read.

    Raises DumpError if the metadata cannot be used.
    """
    path = folder / METADATA
    try:
        if path.stat().st_size > _LARGEST:
            raise DumpError(f"{path}: expected metadata, found {path.stat().st_size:,} bytes")
        said = _state(disassemble(path.read_bytes()))
        stored = mapping_of(said["storage_data"]) or {}
        wholes = {
            str(name): _state(meta)
            for name, meta in (mapping_of(said["state_dict_metadata"]) or {}).items()
        }
        pieces = list(_pieces(folder, stored, wholes))
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from error
    except (UnknownPickle, KeyError, TypeError, ValueError, IndexError) as error:
        raise DumpError(
            f"{path}: expected the metadata of a distributed checkpoint ({error})"
        ) from error
    common = folder / "common.pt"
    settings = {}
    if common.is_file() and torch_zip.is_torch(common):
        saved = mapping_of(torch_zip.archive(common, common.name).value) or {}
        settings = arguments(saved.get("args"))
    return tuple(pieces), settings, []


def _pieces(
    folder: Path, stored: Mapping[Any, Any], wholes: Mapping[str, Mapping[str, Any]]
) -> Iterator[Entry]:
    for index, info in stored.items():
        key, place = _state(index), _state(info)
        name, file = str(key["fqn"]), place["relative_path"]
        size = _sizes(wholes.get(name, {}).get("size"))
        if size is None or _STATE.search(name):
            continue  # bytes of another kind, such as a scheduler's state, or not the model's
        if not isinstance(file, str) or not is_plain_name(file):
            raise ValueError(f"{file!r} is no file of its folder")
        archive = torch_zip.archive(folder / file, file, int(place["offset"]), int(place["length"]))
        entry = archive.tensor(name, archive.value)
        if entry is not None:
            start = _sizes(key.get("offset")) or (0,) * len(size)
            yield _unstacked(entry, Window(start, size))


def _unstacked(entry: Entry, window: Window) -> Entry:
    """A piece of a tensor that holds all layers, or all experts of all layers, under the name of its own layer."""
    from dataclasses import replace

    name, shape = entry.name, entry.shape
    for pattern, form in (
        (_STACKED_LAYERS, r"\1.{}."),
        (_STACKED_EXPERTS, r".experts.local_experts.{}."),
    ):
        if pattern.search(name) and len(shape) > 1 and shape[0] == 1:
            name = pattern.sub(form.format(window.start[0]), name, count=1)
            shape, window = shape[1:], Window(window.start[1:], window.whole[1:])
    strides = None if entry.strides is None else entry.strides[len(entry.shape) - len(shape) :]
    return replace(
        entry,
        name=name,
        shape=shape,
        strides=strides,
        window=None if window.whole == shape else window,
    )


def _state(value: Any) -> Mapping[str, Any]:
    """The attributes of an instance of a dataclass."""
    state = value.state if isinstance(value, Called) else None
    return {str(name): item for name, item in (mapping_of(state) or {}).items()}


def _sizes(value: Any) -> tuple[int, ...] | None:
    """The numbers of a ``torch.Size``."""
    if isinstance(value, Called) and len(value.arguments) == 1:
        value = value.arguments[0]
    return (
        tuple(value)
        if isinstance(value, (tuple, list)) and all(type(n) is int for n in value)
        else None
    )
