"""Megatron's token files: ``NAME.idx`` contains the location of each sequence in ``NAME.bin``.

Both files are memory-mapped or read in parts. Layout of the index, little-endian (written by
megatron.core.datasets.indexed_dataset, and by MindSpore Transformers): 9 bytes
``MMIDIDX\\0\\0``, int64 version 1, uint8 code of the dtype, int64 number of sequences s, int64
number d of document borders, int32 [s] lengths in tokens, int64 [s] offsets in bytes, int64 [d]
sequences before each border, and int8 [s] modes in a multimodal dataset.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..model.arrays import AnyArray, Ints
from ..model.errors import DumpError
from ..model.input_files import open_input_file

MAGIC = b"MMIDIDX\x00\x00"
_OLD_MAGIC = b"TNTIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_VERSION = 1
#: Code -> dtype of the tokens; codes 6 and 7 are floats, which are no tokens.
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
#: Bytes of the index per sequence (length and offset), and per document border.
_SEQUENCE_BYTES, _BORDER_BYTES = 12, 8
#: Sequences that are validated at once, to limit memory.
_CHUNK = 1 << 20


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
        """Read tokens ``begin`` to ``end`` of a sequence, which must have that many.

        Raises DumpError if the index points outside of the .bin file.
        """
        data_file = _add_ending(self.prefix, ".bin")
        offset = int(self.offsets[sequence]) + begin * self.dtype.itemsize
        count = end - begin
        if offset < 0 or offset + count * self.dtype.itemsize > self.size:
            raise DumpError(
                f"{data_file}: has {self.size:,} bytes; by the index, sequence {sequence} is"
                " outside of them; copy both files again"
            )
        with open_input_file(data_file) as stream:
            tokens: Ints = np.fromfile(stream, self.dtype, count, offset=offset).astype(np.int64)
        return tokens


def find_prefix(path: str | Path) -> Path | None:
    """Return the prefix of a dataset given by its prefix, .idx or .bin; None without an index."""
    text = str(path)
    prefix = Path(text[:-4] if text.endswith((".idx", ".bin")) else text)
    return prefix if _add_ending(prefix, ".idx").is_file() else None


def open_token_file(prefix: Path) -> TokenFile:
    """Open the dataset of a prefix.

    Raises DumpError if a file is missing or cut short, or if the index is invalid.
    """
    index_file, data_file = _add_ending(prefix, ".idx"), _add_ending(prefix, ".bin")
    if not data_file.is_file():
        raise DumpError(f"{data_file}: is missing next to {index_file.name}; copy both files")
    dtype, n_sequences, n_borders = _read_header(index_file)
    index_size = index_file.stat().st_size
    lengths_offset = _HEADER.size
    offsets_offset = lengths_offset + 4 * n_sequences
    modes_offset = lengths_offset + _SEQUENCE_BYTES * n_sequences + _BORDER_BYTES * n_borders
    if index_size not in (modes_offset, modes_offset + n_sequences):
        raise DumpError(
            f"{index_file}: has {index_size:,} bytes, its header ({n_sequences:,} sequences)"
            f" requires {modes_offset:,}; copy it again"
        )
    lengths = np.memmap(index_file, "<i4", "r", lengths_offset, (n_sequences,))
    offsets = np.memmap(index_file, "<i8", "r", offsets_offset, (n_sequences,))
    for start in range(0, n_sequences, _CHUNK):
        if lengths[start : start + _CHUNK].min() < 0:
            raise DumpError(f"{index_file}: holds a negative length; preprocess again")
    data_size = data_file.stat().st_size
    required_size = int(lengths.sum(dtype=np.int64)) * dtype.itemsize
    if required_size > data_size:
        raise DumpError(
            f"{data_file}: cut short, {data_size:,} of {required_size:,} bytes; copy it again"
        )
    modes = None
    if index_size > modes_offset:
        modes = np.memmap(index_file, "i1", "r", modes_offset, (n_sequences,))
    return TokenFile(prefix, dtype, lengths, offsets, max(n_borders - 1, 0), modes, data_size)


def _read_header(index_file: Path) -> tuple[np.dtype[np.generic], int, int]:
    """Return the dtype, the number of sequences and the number of document borders."""
    try:
        with open_input_file(index_file) as stream:
            header = stream.read(_HEADER.size)
    except OSError as error:
        raise DumpError(f"{index_file}: cannot be read ({error.strerror})") from error
    if header.startswith(_OLD_MAGIC):
        raise DumpError(
            f"{index_file}: has the old format before Megatron's mmap files; preprocess again"
        )
    if len(header) < _HEADER.size or not header.startswith(MAGIC):
        raise DumpError(
            f"{index_file}: expected an index of Megatron (MMIDIDX), found something else"
        )
    _, version, code, n_sequences, n_borders = _HEADER.unpack(header)
    if version != _VERSION:
        raise DumpError(
            f"{index_file}: has version {version}; only version {_VERSION} is supported"
        )
    if code not in _DTYPES:
        raise DumpError(f"{index_file}: its elements have dtype code {code}, which is no token id")
    if n_sequences == 0:
        raise DumpError(f"{index_file}: holds no sequences")
    return np.dtype(_DTYPES[code]), n_sequences, n_borders


def _add_ending(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)
