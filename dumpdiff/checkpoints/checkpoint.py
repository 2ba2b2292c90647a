"""The one model of a checkpoint: which tensors it holds and where their bytes lie; nothing is read before it is asked.

Readers make checkpoints; nobody else knows a format. A tensor that several ranks share in pieces has one entry for
each piece, see ``Entry.rank``; :mod:`dumpdiff.weights.shards` puts them together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..model.arrays import AnyArray
from ..model.errors import DumpError
from ..model.trace import Problem
from .elements import STORED, decode, item_size
from .memory_map import MappedFiles


class Extent(NamedTuple):
    """Consecutive bytes of a file."""

    file: str  #: relative to the checkpoint's folder
    offset: int
    length: int


class Rank(NamedTuple):
    """Which device of a parallel run wrote an entry; all 0 where nothing was split."""

    tensor: int = 0
    pipeline: int = 0
    expert: int = 0
    chunk: int = 0  #: virtual pipeline stage on this device

    def __str__(self) -> str:
        said = [
            f"{name} {number}" for name, number in zip(self._fields, self, strict=True) if number
        ]
        return ", ".join(said) or "rank 0"


class Window(NamedTuple):
    """Where an entry stands in the tensor that it is a piece of, if the checkpoint says so."""

    start: tuple[int, ...]  #: first index along each axis
    whole: tuple[int, ...]  #: shape of the whole tensor


UNSPLIT = Rank()


@dataclass(frozen=True)
class Entry:
    """One tensor of a checkpoint, or one piece of it."""

    name: str  #: as the framework spells it, wrappers included
    dtype: str  #: float32, bfloat16, int64, ...
    shape: tuple[int, ...]
    extents: tuple[Extent, ...]  #: the bytes of its storage, in order
    strides: tuple[int, ...] | None = None  #: in elements; None for C order
    start: int = 0  #: first element in the storage; 0 for C order
    rank: Rank = UNSPLIT
    window: Window | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def file(self) -> str:
        """The file that holds it, or its beginning; '' if it has no bytes."""
        return self.extents[0].file if self.extents else ""


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of one model as saved: what they are called, what they are, and how to read them.

    ``entries`` are in the order of the files; a name occurs once for each rank that has it.
    """

    path: Path  #: as given
    root: Path  #: folder that ``Extent.file`` is relative to
    format: str  #: safetensors, torch, mindspore, megatron, ...
    entries: tuple[Entry, ...]
    settings: Mapping[str, Any] = field(
        default_factory=dict
    )  #: config.json, or the arguments that the run was given
    problems: tuple[Problem, ...] = ()

    @cached_property
    def names(self) -> Mapping[str, tuple[Entry, ...]]:
        """Name -> its entries, one for each rank that has it."""
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            found.setdefault(entry.name, []).append(entry)
        return {name: tuple(entries) for name, entries in found.items()}

    @cached_property
    def size(self) -> int:
        """Bytes of all entries."""
        return sum(entry.size * item_size(entry.dtype) for entry in self.entries)

    def entry(self, name: str) -> Entry:
        """The entry of a tensor that is not split. Raises KeyError for any other."""
        entries = self.names[name]
        if len(entries) > 1:
            raise KeyError(f"{name} is split over {len(entries)} ranks")
        return entries[0]

    def raw(self, entry: Entry | str) -> AnyArray:
        """The elements as stored, memory-mapped and read-only: bfloat16 as uint16, float8 as uint8.

        Raises DumpError if the file is gone, cut short or damaged, KeyError for a name that is missing or split.
        """
        entry = self.entry(entry) if isinstance(entry, str) else entry
        dtype = np.dtype(STORED[entry.dtype])
        if entry.size == 0:
            return np.zeros(entry.shape, dtype)
        parts = [self._files.bytes(*extent) for extent in entry.extents]
        try:  # NumPy refuses what reaches beyond the bytes, or is not a whole number of elements
            storage = (parts[0] if len(parts) == 1 else np.concatenate(parts)).view(dtype)
            if entry.strides is None:
                return storage[entry.start : entry.start + entry.size].reshape(entry.shape)
            strides = tuple(stride * dtype.itemsize for stride in entry.strides)
            array: AnyArray = np.ndarray(
                entry.shape, dtype, storage, entry.start * dtype.itemsize, strides
            )
        except (TypeError, ValueError) as error:
            raise DumpError(
                f"{self.root / entry.file}: {entry.name} reaches beyond its data; copy it again"
            ) from error
        return array

    def array(self, entry: Entry | str) -> AnyArray:
        """The values: :meth:`raw`, but bfloat16 and float8 as float32 in memory."""
        entry = self.entry(entry) if isinstance(entry, str) else entry
        return decode(self.raw(entry), entry.dtype)

    def release(self) -> None:
        """Give back the memory of everything read so far; arrays stay valid and are read again when they are used."""
        self._files.release()

    @cached_property
    def _files(self) -> MappedFiles:
        return MappedFiles(self.root)
