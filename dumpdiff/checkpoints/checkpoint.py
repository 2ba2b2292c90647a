"""The format-independent model of a checkpoint: its tensors and the positions of their bytes.

Only the format modules of this package know a file format. A tensor that is split over several
ranks has one entry for each piece, see ``Entry.rank``; :mod:`dumpdiff.weight_comparison.shards`
joins them.
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
from .elements import RAW_DTYPES, decode, get_item_size
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
        if self == UNSPLIT:
            return "rank 0"
        labels = []
        for name, number in zip(self._fields, self, strict=True):
            if number:
                labels.append(f"{name} {number}")
        return ", ".join(labels)


class Window(NamedTuple):
    """Where in the full tensor a piece is, if the checkpoint states it."""

    start: tuple[int, ...]  #: first index along each axis
    full_shape: tuple[int, ...]


UNSPLIT = Rank()


@dataclass(frozen=True)
class Entry:
    """One tensor of a checkpoint, or one piece of it."""

    name: str  #: as in the file, including prefixes that wrappers add
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
        """The file in which its storage begins; '' if it has no bytes."""
        return self.extents[0].file if self.extents else ""


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of one model as saved: names, dtypes, shapes, and methods to read them.

    ``entries`` are in the order of the files. A name occurs once for each rank that has it.
    """

    path: Path  #: as given by the user
    root: Path  #: folder that ``Extent.file`` is relative to
    format: str  #: safetensors, torch, mindspore, megatron, ...
    entries: tuple[Entry, ...]
    #: Content of config.json, or the command-line arguments of the run that saved the checkpoint.
    settings: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    @cached_property
    def entries_by_name(self) -> Mapping[str, tuple[Entry, ...]]:
        """Name -> its entries, one for each rank that has it."""
        entries_by_name: dict[str, list[Entry]] = {}
        for entry in self.entries:
            entries_by_name.setdefault(entry.name, []).append(entry)
        return {name: tuple(entries) for name, entries in entries_by_name.items()}

    @cached_property
    def size(self) -> int:
        """Bytes of all entries."""
        return sum(entry.size * get_item_size(entry.dtype) for entry in self.entries)

    def get_entry(self, name: str) -> Entry:
        """Return the entry of a tensor that is not split. Raises KeyError for any other name."""
        entries = self.entries_by_name[name]
        if len(entries) > 1:
            raise KeyError(f"{name} is split over {len(entries)} ranks")
        return entries[0]

    def read_raw(self, entry: Entry | str) -> AnyArray:
        """Return the elements as stored, memory-mapped and read-only.

        bfloat16 is returned as uint16, float8 as uint8. Raises DumpError if the file is missing,
        cut short or damaged, KeyError for a name that is missing or split.
        """
        entry = self.get_entry(entry) if isinstance(entry, str) else entry
        dtype = np.dtype(RAW_DTYPES[entry.dtype])
        if entry.size == 0:
            return np.zeros(entry.shape, dtype)
        pieces = [self._mapped_files.read_bytes(*extent) for extent in entry.extents]
        content = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        # NumPy raises if the bytes are not whole elements, or if shape and strides exceed them.
        try:
            storage = content.view(dtype)
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

    def read_array(self, entry: Entry | str) -> AnyArray:
        """Return the values: :meth:`read_raw`, but bfloat16 and float8 as float32 in memory."""
        entry = self.get_entry(entry) if isinstance(entry, str) else entry
        return decode(self.read_raw(entry), entry.dtype)

    def release(self) -> None:
        """Free the memory of everything read so far.

        Arrays stay valid; their content is read from the file again at the next use.
        """
        self._mapped_files.release()

    @cached_property
    def _mapped_files(self) -> MappedFiles:
        return MappedFiles(self.root)
