"""Memory-mapped files of a checkpoint: each file is mapped once, and its pages can be released."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from ..model.arrays import AnyArray
from ..model.errors import DumpError
from ..model.input_files import open_input_file
from ..tensor_files.npy import resolve_inside

#: Bytes read after which a reader of whole checkpoints calls ``release``. With 64 MB, comparing
#: 2 GB on each side needs 26 MB more memory and is no faster.
RELEASE_AFTER = 32 << 20


class MappedFiles:
    """The bytes of the files in one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._maps: dict[str, mmap.mmap] = {}

    def read_bytes(self, file: str, offset: int, length: int) -> AnyArray:
        """Return (length,) uint8, read-only and memory-mapped.

        Raises DumpError if the file is outside the folder, missing or cut short.
        """
        mapped_file = self._maps.get(file)
        if mapped_file is None:
            mapped_file = self._maps[file] = self._map_file(file)
        if offset < 0 or length < 0 or offset + length > len(mapped_file):
            raise DumpError(
                f"{self._root / file}: cut short, {len(mapped_file):,} of {offset + length:,} "
                "bytes; copy it again"
            )
        return np.frombuffer(mapped_file, np.uint8, length, offset)

    def _map_file(self, file: str) -> mmap.mmap:
        path = resolve_inside(self._root, file)
        try:
            with open_input_file(path) as stream:
                return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise DumpError(f"{path}: cannot be read ({error})") from error

    def release(self) -> None:
        """Drop the pages in memory. The maps stay valid and read from the file at the next use."""
        if not hasattr(mmap, "MADV_DONTNEED"):  # pragma: no cover - exists only on Linux
            return
        for mapped_file in self._maps.values():
            mapped_file.madvise(mmap.MADV_DONTNEED)
