"""Distributed checkpoints of torch: ``.metadata``, a pickle, and ``*.distcp`` files.

The pickle is only disassembled.

Each byte range of a ``.distcp`` file that the metadata names is one ``torch.save`` of one piece
of a tensor (torch/distributed/checkpoint/{metadata,filesystem}.py). Megatron-core's
``torch_dist`` has the same format, with the layers of a stage as the first axis of a tensor
(``decoder.layers.self_attention...``), and experts as the second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..model.errors import DumpError
from ..model.input_files import is_plain_name, read_input_bytes
from ..tensor_files.pickles import PickledCall, UnknownPickle, disassemble, get_mapping_items
from . import torch_zip
from .checkpoint import Entry, Window
from .megatron import extract_arguments

FORMAT = "torch_dist"

METADATA = ".metadata"
_LARGEST_METADATA = 1 << 28  #: bytes; a larger file is refused
_STACKED_LAYERS = re.compile(r"(?<![\w.])((?:\w+\.)*layers)\.(?!\d)")
_STACKED_EXPERTS = re.compile(r"\.experts\.experts\.")
#: Pattern of a stacked name -> name of one of its layers or experts.
_UNSTACKED_NAMES = (
    (_STACKED_LAYERS, r"\1.{}."),
    (_STACKED_EXPERTS, r".experts.local_experts.{}."),
)
_OPTIMIZER_STATE = re.compile(r"(^|\.)(optimizer|rng_state|opt_param_scheduler)(\.|$)")


def read_entries(folder: Path) -> tuple[tuple[Entry, ...], Mapping[str, Any]]:
    """Return the pieces of all tensors except the optimizer's, and the arguments of the run.

    Raises DumpError if the metadata cannot be used.
    """
    path = folder / METADATA
    try:
        metadata = _get_attributes(disassemble(read_input_bytes(path, _LARGEST_METADATA)))
        storage = get_mapping_items(metadata["storage_data"]) or {}
        tensors = get_mapping_items(metadata["state_dict_metadata"]) or {}
        attributes = {str(name): _get_attributes(tensor) for name, tensor in tensors.items()}
        pieces = tuple(_iterate_pieces(folder, storage, attributes))
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from error
    except (UnknownPickle, KeyError, TypeError, ValueError, IndexError) as error:
        raise DumpError(
            f"{path}: expected the metadata of a distributed checkpoint ({error})"
        ) from error
    return pieces, _read_settings(folder / "common.pt")


def _read_settings(file: Path) -> Mapping[str, Any]:
    """Return the run's arguments from Megatron's ``common.pt``; empty if there is no such file."""
    if not file.is_file() or not torch_zip.is_torch(file):
        return {}
    archive = torch_zip.read_archive(file, file.name)
    state = get_mapping_items(archive.value) or {}
    return extract_arguments(state.get("args"))


def _iterate_pieces(
    folder: Path, storage: Mapping[Any, Any], attributes: Mapping[str, Mapping[str, Any]]
) -> Iterator[Entry]:
    """Yield one entry for each piece; ``attributes`` are those of the full tensors, by name."""
    for index, info in storage.items():
        key, place = _get_attributes(index), _get_attributes(info)
        name, file = str(key["fqn"]), place["relative_path"]
        full_shape = _parse_size(attributes.get(name, {}).get("size"))
        if full_shape is None or _OPTIMIZER_STATE.search(name):
            continue  # no tensor, such as a scheduler's state, or not the model's
        if not isinstance(file, str) or not is_plain_name(file):
            raise ValueError(f"{file!r} is no file of its folder")
        archive = torch_zip.read_archive(
            folder / file, file, int(place["offset"]), int(place["length"])
        )
        entry = archive.build_entry(name, archive.value)
        if entry is not None:
            start = _parse_size(key.get("offset")) or (0,) * len(full_shape)
            yield _unstack(entry, Window(start, full_shape))


def _unstack(entry: Entry, window: Window) -> Entry:
    """Name a piece of a stacked tensor after its own layer and expert, and drop those axes."""
    name, shape = entry.name, entry.shape
    for pattern, template in _UNSTACKED_NAMES:
        if pattern.search(name) and len(shape) > 1 and shape[0] == 1:
            name = pattern.sub(template.format(window.start[0]), name, count=1)
            shape, window = shape[1:], Window(window.start[1:], window.full_shape[1:])
    n_dropped = len(entry.shape) - len(shape)
    return replace(
        entry,
        name=name,
        shape=shape,
        strides=None if entry.strides is None else entry.strides[n_dropped:],
        window=None if window.full_shape == shape else window,
    )


def _get_attributes(value: Any) -> Mapping[str, Any]:
    """Return the attributes of a dataclass instance in a pickle; empty for anything else."""
    state = value.state if isinstance(value, PickledCall) else None
    return {str(name): item for name, item in (get_mapping_items(state) or {}).items()}


def _parse_size(value: Any) -> tuple[int, ...] | None:
    """Return the numbers of a ``torch.Size``; None for anything else."""
    if isinstance(value, PickledCall) and len(value.arguments) == 1:
        value = value.arguments[0]
    if not isinstance(value, (tuple, list)):
        return None
    types = set(map(type, value))
    return tuple(value) if types <= {int} else None
