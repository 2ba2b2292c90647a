"""A folder of ``.npy`` files, or one ``.npz`` archive: each array under the name of its file."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

from ..model.errors import DumpError
from ..readers.npy import Header, header_of, read_header
from ..readers.torch_pt import entry_start
from .checkpoint import Entry, Extent
from .elements import STORED

FORMAT = "numpy"


def entry(path: Path, file: str) -> Entry:
    """The array of an .npy file; ``file`` is what the entry calls it. Raises DumpError if it cannot be used."""
    return _entry(path, file, file.removesuffix(".npy"), read_header(path), 0)


def archive(path: Path, file: str) -> list[Entry]:
    """The arrays of an .npz archive that is not compressed. Raises DumpError if it cannot be used."""
    found = []
    try:
        with zipfile.ZipFile(path) as opened:
            for member in opened.infolist():
                if member.compress_type != zipfile.ZIP_STORED:
                    raise DumpError(
                        f"{path}: is compressed; write it with numpy.savez, not savez_compressed"
                    )
                with opened.open(member) as stream:
                    header = header_of(stream, member.file_size, f"{path}:{member.filename}")  # type: ignore[arg-type]
                name = member.filename.removesuffix(".npy")
                found.append(_entry(path, file, name, header, entry_start(path, member)))
    except (OSError, ValueError, zipfile.BadZipFile, struct.error, NotImplementedError) as error:
        raise DumpError(f"{path}: damaged archive ({error}); write it again") from None
    return found


def _entry(path: Path, file: str, name: str, header: Header, begin: int) -> Entry:
    if header.dtype not in STORED or header.stored.startswith(">"):
        raise DumpError(f"{path}: {name} holds {header.dtype} ({header.stored}), which is not read")
    extent = Extent(file, begin + header.offset, header.size * header.itemsize)
    strides = None
    if header.fortran_order and len(header.shape) > 1:
        steps = [1]
        for length in header.shape[:-1]:
            steps.append(steps[-1] * length)
        strides = tuple(steps)
    return Entry(name, header.dtype, header.shape, (extent,), strides)
