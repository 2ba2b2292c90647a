"""Files of a checkpoint, each mapped into memory once, and let go of again after use."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from ..model.arrays import AnyArray
from ..model.errors import DumpError
from ..readers.npy import inside


class MappedFiles:
    """The bytes of files below one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._maps: dict[str, mmap.mmap] = {}

    def bytes(self, file: str, offset: int, length: int) -> AnyArray:
        """(length,) uint8, read-only and mapped. Raises DumpError if the file is outside, gone or cut short."""
        mapped = self._maps.get(file)
        if mapped is None:
            path = inside(self._root, file)
            try:
                with path.open("rb") as stream:
                    mapped = self._maps[file] = mmap.mmap(
                        stream.fileno(), 0, access=mmap.ACCESS_READ
                    )
            except (OSError, ValueError) as error:
                raise DumpError(f"{path}: cannot be read ({error})") from error
        if offset < 0 or length < 0 or offset + length > len(mapped):
            raise DumpError(
                f"{self._root / file}: cut short, {len(mapped):,} of {offset + length:,} bytes; copy it again"
            )
        return np.frombuffer(mapped, np.uint8, length, offset)

    def release(self) -> None:
        """Drop the pages that are in memory; the maps stay, and read from the file again when they are used."""
        if not hasattr(
            mmap, "MADV_DONTNEED"
        ):  # pragma: no cover - not on Linux: the system does as it likes
            return
        for mapped in self._maps.values():
            mapped.madvise(mmap.MADV_DONTNEED)
