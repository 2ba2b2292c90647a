"""Sharded checkpoints of MindSpore: ``rank_N`` folders, and strategy files for their slices.

A layout of node_strategy.proto has a device matrix and a tensor map. Axis i of a parameter is
split along the axis of the device matrix that is ``tensor_map[i]`` positions from its right end,
-1 for none. ``opt_weight_shard_size`` splits the first axis further (optimizer parallelism).
Ranks are numbered through pipeline stages of equal size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..model.errors import DumpError
from ..model.input_files import read_input_bytes
from ..model.trace import Problem
from .checkpoint import Entry, Rank, Window
from .protobuf import BYTES, Field, iterate_fields, read_integers, read_text, to_signed

_LARGEST_STRATEGY = 1 << 28  #: bytes; a larger file is refused
#: Field numbers of node_strategy.proto: of the file and an item, and of a layout.
STAGE, LAYOUT_ITEM, NAME, LAYOUTS = 1, 3, 1, 2
DEVICES, MAP, SPLIT_SHAPE, OFFSETS, FIELD, SHARD_STEP, SHARD_SIZE = 1, 2, 3, 4, 5, 6, 7


class Layout(NamedTuple):
    """How a parameter is split over the devices of its stage."""

    devices: tuple[int, ...]
    #: For each axis, the axes of the device matrix that split it, counted from its right end.
    axes: tuple[tuple[int, ...], ...]
    shard_step: int
    shard_size: int


def find_strategy_files(folder: Path) -> list[Path]:
    """Return the strategy files for the ranks in ``folder``.

    They are in the folder, in ``strategy`` inside it, or in ``strategy`` next to it.
    """
    strategy_files: list[Path] = []
    for place in (folder, folder / "strategy", folder.parent / "strategy"):
        for file in sorted(place.glob("*strategy*")):
            has_suffix = file.suffix in (".ckpt", ".json")
            if has_suffix and file.is_file():
                strategy_files.append(file)
    return strategy_files


def read_layouts(files: Iterable[Path]) -> dict[str, Layout]:
    """Return parameter name -> layout. Raises DumpError for a file that is no strategy."""
    layouts: dict[str, Layout] = {}
    for file in files:
        for key, layout in _read_strategy_file(file).items():
            name = key.partition("-")[2] or key  # '1-name' is a parameter of pipeline stage 1
            layouts.setdefault(name, layout)
    return layouts


def _read_strategy_file(file: Path) -> dict[str, Layout]:
    try:
        data = read_input_bytes(file, _LARGEST_STRATEGY)
        return _parse_json(data) if file.suffix == ".json" else _parse_protobuf(data)
    except OSError as error:
        raise DumpError(f"{file}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise DumpError(f"{file}: expected a MindSpore strategy file ({error})") from error


def _parse_protobuf(data: bytes) -> dict[str, Layout]:
    layouts = {}
    for item in iterate_fields(data, 0, len(data)):
        if item.number == LAYOUT_ITEM and item.wire == BYTES:
            parts = {field.number: field for field in iterate_fields(data, item.begin, item.end)}
            layouts[read_text(data, parts[NAME])] = _parse_layout(data, parts[LAYOUTS])
    return layouts


def _parse_layout(data: bytes, message: Field) -> Layout:
    fields: dict[int, list[Field]] = {}
    for field in iterate_fields(data, message.begin, message.end):
        fields.setdefault(field.number, []).append(field)
    maps = [tuple(read_integers(data, field, 1)) for field in fields[MAP]]
    # One map with a number for each axis, or one map for each axis that several device axes split.
    axes: tuple[tuple[int, ...], ...]
    if len(maps) == 1:
        axes = tuple((axis,) for axis in maps[0])
    else:
        axes = tuple(axis for axis in maps if axis)
    step = to_signed(fields[SHARD_STEP][0].value) if SHARD_STEP in fields else 0
    size = to_signed(fields[SHARD_SIZE][0].value) if SHARD_SIZE in fields else 0
    devices = tuple(read_integers(data, fields[DEVICES][0], 1))
    return Layout(devices, axes, step, size)


def _parse_json(data: bytes) -> dict[str, Layout]:
    items = json.loads(data)["parallel_layout_item"]
    return {
        name: Layout(
            tuple(map(int, item["dev_matrix"])),
            tuple((int(axis),) for axis in item["tensor_map"]),
            int(item["opt_weight_shard_step"]),
            int(item["opt_weight_shard_size"]),
        )
        for name, item in items.items()
    }


def place_slices(
    entries_by_rank: Mapping[int, list[Entry]], layouts: Mapping[str, Layout], file: str
) -> tuple[tuple[Entry, ...], list[Problem]]:
    """Return the entries of all ranks with their windows; of replicas (equal windows) the first.

    Entries without a layout have a rank and no window; their number is reported as a problem of
    ``file``.
    """
    placed_entries: dict[tuple[str, object], Entry] = {}
    n_without_layout = 0
    for rank, entries in sorted(entries_by_rank.items()):
        for entry in entries:
            layout = layouts.get(entry.name)
            window = None
            if layout is not None:
                window = _compute_window(layout, entry.shape, rank)
            elif len(entries_by_rank) > 1:
                n_without_layout += 1
            key = (entry.name, rank if window is None else window.start)
            placed_entry = replace(entry, rank=Rank(tensor=rank), window=window)
            placed_entries.setdefault(key, placed_entry)
    problems = []
    if n_without_layout:
        message = "parameters without a strategy: how they are split is inferred"
        problems.append(Problem(file, message, count=n_without_layout))
    return tuple(placed_entries.values()), problems


def _compute_window(layout: Layout, shape: tuple[int, ...], rank: int) -> Window | None:
    """Return the window of a rank's slice; None if the layout does not fit the slice's shape."""
    n_devices = math.prod(layout.devices)
    if n_devices == 0 or len(layout.axes) != len(shape):
        return None
    coordinates = np.unravel_index(rank % n_devices, layout.devices)
    start, full_shape = [], []
    for length, device_axes in zip(shape, layout.axes, strict=True):
        index, count = 0, 1
        for device_axis in device_axes:
            if device_axis >= 0:
                n_parts = layout.devices[-device_axis - 1]
                index = index * n_parts + int(coordinates[-device_axis - 1])
                count *= n_parts
        start.append(index * length)
        full_shape.append(count * length)
    if layout.shard_size > 1 and layout.shard_step > 0 and shape:
        shard = (rank % n_devices) // layout.shard_step % layout.shard_size
        start[0] = start[0] * layout.shard_size + shard * shape[0]
        full_shape[0] *= layout.shard_size
    return Window(tuple(start), tuple(full_shape))
