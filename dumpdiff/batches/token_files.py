"""Megatron's token files: ``NAME.idx`` says where each sequence lies in ``NAME.bin``; both stay on disk.

Layout of the index, little-endian (written by megatron.core.datasets.indexed_dataset, and by MindSpore Transformers):
9 bytes ``MMIDIDX\\0\\0``, int64 version 1, uint8 code of the dtype, int64 number of sequences s, int64 number d of
document borders, int32 [s] lengths in tokens, int64 [s] places in bytes, int64 [d] sequences before each border,
and int8 [s] modes in a multimodal dataset.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..model.arrays import AnyArray, Ints
from ..model.errors import DumpError

MAGIC = b"MMIDIDX\x00\x00"
_OLD_MAGIC = b"TNTIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
#: Code -> dtype of the tokens; 6 and 7 are floats, which no token is.
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_BLOCK = 1 << 20  #: sequences that are checked at once


@dataclass(frozen=True)
class TokenFile:
    """One dataset, memory-mapped."""

    prefix: Path
    dtype: np.dtype[np.generic]
    lengths: AnyArray  #: (sequences,) int32, tokens
    offsets: AnyArray  #: (sequences,) int64, bytes
    documents: int  #: of one or more sequences each
    modes: AnyArray | None  #: (sequences,) int8, of a multimodal dataset
    size: int  #: bytes of the .bin file

    def read_tokens(self, sequence: int, begin: int, end: int) -> Ints:
        """Tokens ``begin`` to ``end`` of a sequence, which has that many.

        Raises DumpError if the index points outside of the .bin file.
        """
        at, count = int(self.offsets[sequence]) + begin * self.dtype.itemsize, end - begin
        if at < 0 or at + count * self.dtype.itemsize > self.size:
            raise DumpError(
                f"{_named(self.prefix, '.bin')}: has {self.size:,} bytes, by the index sequence {sequence} lies"
                " outside of them; copy both files again"
            )
        with _named(self.prefix, ".bin").open("rb") as stream:
            read: Ints = np.fromfile(stream, self.dtype, count, offset=at).astype(np.int64)
        return read


def find_prefix(path: str | Path) -> Path | None:
    """The prefix of a dataset that ``path`` names (itself, its .idx or its .bin); None if there is no index."""
    text = str(path)
    prefix = Path(text[:-4] if text.endswith((".idx", ".bin")) else text)
    return prefix if _named(prefix, ".idx").is_file() else None


def open_token_file(prefix: Path) -> TokenFile:
    """The dataset of a prefix. Raises DumpError if a file is missing or cut short, or the index cannot be right."""
    index, data = _named(prefix, ".idx"), _named(prefix, ".bin")
    if not data.is_file():
        raise DumpError(f"{data}: is missing, {index.name} lies beside it; copy both files")
    dtype, sequences, borders = _header(index)
    length = index.stat().st_size
    begin = _HEADER.size
    least = begin + 12 * sequences + 8 * borders
    if length not in (least, least + sequences):
        raise DumpError(
            f"{index}: has {length:,} bytes, its header ({sequences:,} sequences) asks for {least:,}; copy it again"
        )
    lengths = np.memmap(index, "<i4", "r", begin, (sequences,))
    places = np.memmap(index, "<i8", "r", begin + 4 * sequences, (sequences,))
    for first in range(0, sequences, _BLOCK):
        if lengths[first : first + _BLOCK].min() < 0:
            raise DumpError(f"{index}: holds a negative length; preprocess again")
    size, needed = data.stat().st_size, int(lengths.sum(dtype=np.int64)) * dtype.itemsize
    if needed > size:
        raise DumpError(f"{data}: cut short, {size:,} of {needed:,} bytes; copy it again")
    modes = None if length == least else np.memmap(index, "i1", "r", least, (sequences,))
    return TokenFile(prefix, dtype, lengths, places, max(borders - 1, 0), modes, size)


def _header(index: Path) -> tuple[np.dtype[np.generic], int, int]:
    try:
        with index.open("rb") as stream:
            start = stream.read(_HEADER.size)
    except OSError as error:
        raise DumpError(f"{index}: cannot be read ({error.strerror})") from error
    if start.startswith(_OLD_MAGIC):
        raise DumpError(
            f"{index}: is of the old kind before Megatron's mmap files; preprocess again"
        )
    if len(start) < _HEADER.size or not start.startswith(MAGIC):
        raise DumpError(f"{index}: expected an index of Megatron (MMIDIDX), found something else")
    _, version, code, sequences, borders = _HEADER.unpack(start)
    if version != 1:
        raise DumpError(f"{index}: is of version {version}, version 1 is read")
    if code not in _DTYPES:
        raise DumpError(f"{index}: its elements are of kind {code}, which are no token ids")
    if sequences == 0:
        raise DumpError(f"{index}: holds no sequences")
    return np.dtype(_DTYPES[code]), sequences, borders


def _named(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)
