"""Sharded checkpoints of MindSpore: ``rank_N`` folders, and the strategy files that say which slice each holds.

A layout of node_strategy.proto has a device matrix and a tensor map: axis i of a parameter is cut along the axis of
the device matrix that stands ``tensor_map[i]`` places from its right end, -1 for none. ``opt_weight_shard_size`` cuts
the first axis further (optimizer parallelism). Numbers of ranks count through pipeline stages of equal size.
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
from ..model.trace import Problem
from .checkpoint import Entry, Rank, Window
from .protobuf import BYTES, Field, fields, numbers, text

_LARGEST = 1 << 28  #: bytes of a strategy file
_LAYOUT_ITEM, _NAME, _LAYOUTS = 3, 1, 2
_DEVICES, _MAP, _SHARD_STEP, _SHARD_SIZE = 1, 2, 6, 7


class Layout(NamedTuple):
    """How a parameter is cut over the devices of its stage."""

    devices: tuple[int, ...]
    axes: tuple[
        tuple[int, ...], ...
    ]  #: for each axis, which axes of the device matrix cut it, from its right end
    shard_step: int
    shard_size: int


def strategy_files(folder: Path) -> list[Path]:
    """Strategy files that go with the ranks of ``folder``: in it, in ``strategy`` in it or beside it."""
    places = [folder, folder / "strategy", folder.parent / "strategy"]
    found = (
        file
        for place in places
        if place.is_dir()
        for file in sorted(place.iterdir())
        if "strategy" in file.name
    )
    return [file for file in found if file.is_file() and file.suffix in (".ckpt", ".json")]


def layouts(files: Iterable[Path]) -> dict[str, Layout]:
    """Parameter name -> layout, of all files together. Raises DumpError for a file that is no strategy."""
    found: dict[str, Layout] = {}
    for file in files:
        for name, layout in _layouts(file).items():
            found.setdefault(
                name.partition("-")[2] or name, layout
            )  # '1-name': of pipeline stage 1
    return found


def _layouts(file: Path) -> dict[str, Layout]:
    try:
        if file.stat().st_size > _LARGEST:
            raise DumpError(
                f"{file}: expected a strategy file, found {file.stat().st_size:,} bytes"
            )
        data = file.read_bytes()
        return _json(data) if file.suffix == ".json" else _protobuf(data)
    except OSError as error:
        raise DumpError(f"{file}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise DumpError(f"{file}: expected a MindSpore strategy file ({error})") from error


def _protobuf(data: bytes) -> dict[str, Layout]:
    found = {}
    for item in fields(data, 0, len(data)):
        if item.number != _LAYOUT_ITEM or item.wire != BYTES:
            continue
        parts = {field.number: field for field in fields(data, item.begin, item.end)}
        inner: dict[int, list[Field]] = {}
        for field in fields(data, parts[_LAYOUTS].begin, parts[_LAYOUTS].end):
            inner.setdefault(field.number, []).append(field)
        maps = [tuple(numbers(data, field, 1)) for field in inner[_MAP]]
        # one map with a number for each axis, or one map for each axis that several device axes cut
        axes: tuple[tuple[int, ...], ...] = tuple(axis for axis in maps if axis)
        if len(maps) == 1:
            axes = tuple((axis,) for axis in maps[0])
        step, size = (
            _int32(inner[number][0].value) if number in inner else 0
            for number in (_SHARD_STEP, _SHARD_SIZE)
        )
        found[text(data, parts[_NAME])] = Layout(
            tuple(numbers(data, inner[_DEVICES][0], 1)), axes, step, size
        )
    return found


def _int32(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _json(data: bytes) -> dict[str, Layout]:
    said = json.loads(data)["parallel_layout_item"]
    return {
        name: Layout(
            tuple(map(int, item["dev_matrix"])),
            tuple((int(axis),) for axis in item["tensor_map"]),
            int(item["opt_weight_shard_step"]),
            int(item["opt_weight_shard_size"]),
        )
        for name, item in said.items()
    }


def placed(
    ranks: Mapping[int, list[Entry]], known: Mapping[str, Layout], file: str
) -> tuple[tuple[Entry, ...], list[Problem]]:
    """The entries of all ranks with their windows; of equal windows the first, since the others are replicas.

    Entries without a layout keep their rank alone.
    """
    found: dict[tuple[str, object], Entry] = {}
    unknown = 0
    for number, entries in sorted(ranks.items()):
        for entry in entries:
            layout = known.get(entry.name)
            window = None if layout is None else _window(layout, entry.shape, number)
            unknown += layout is None and len(ranks) > 1
            key = (entry.name, number if window is None else window.start)
            found.setdefault(key, replace(entry, rank=Rank(tensor=number), window=window))
    problems = []
    if unknown:
        problems.append(
            Problem(
                file, "parameters without a strategy: how they are split is inferred", count=unknown
            )
        )
    return tuple(found.values()), problems


def _window(layout: Layout, shape: tuple[int, ...], rank: int) -> Window | None:
    """Where the slice of a rank begins, in a whole of which shape; None if the layout does not fit the shape."""
    devices = math.prod(layout.devices)
    if devices == 0 or len(layout.axes) != len(shape):
        return None
    place = np.unravel_index(rank % devices, layout.devices)
    start, whole = [], []
    for length, cuts in zip(shape, layout.axes, strict=True):
        index, count = 0, 1
        for cut in cuts:
            if cut >= 0:
                index = index * layout.devices[-cut - 1] + int(place[-cut - 1])
                count *= layout.devices[-cut - 1]
        start.append(index * length)
        whole.append(count * length)
    if layout.shard_size > 1 and layout.shard_step > 0 and shape:
        shard = (rank % devices) // layout.shard_step % layout.shard_size
        start[0] = start[0] * layout.shard_size + shard * shape[0]
        whole[0] *= layout.shard_size
    return Window(tuple(start), tuple(whole))
