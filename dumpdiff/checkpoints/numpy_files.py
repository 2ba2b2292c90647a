"""A folder of ``.npy`` files, or one ``.npz`` archive: each array has the name of its file."""

from __future__ import annotations

import zipfile
from pathlib import Path

from ..model.errors import DumpError
from ..model.input_files import open_input_file
from ..model.trace import Problem
from ..tensor_files.npy import Header, read_header, read_open_header
from ..tensor_files.torch_pt import ARCHIVE_ERRORS, find_entry_start
from .checkpoint import Entry, Extent
from .elements import RAW_DTYPES

FORMAT = "numpy"


def read_entries(path: Path, file: str) -> tuple[list[Entry], list[Problem]]:
    """Return the arrays of an .npy file or .npz archive; entries refer to it as ``file``.

    Raises DumpError if it cannot be used, such as a compressed archive.
    """
    if path.suffix == ".npz":
        return _read_archive(path, file), []
    entry = _build_entry(path, file, file.removesuffix(".npy"), read_header(path), 0)
    return [entry], []


def _read_archive(path: Path, file: str) -> list[Entry]:
    entries = []
    try:
        with open_input_file(path) as file_stream, zipfile.ZipFile(file_stream) as archive:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED:
                    raise DumpError(
                        f"{path}: is compressed; write it with numpy.savez, not savez_compressed"
                    )
                with archive.open(member) as stream:
                    header = read_open_header(
                        stream,  # type: ignore[arg-type]
                        member.file_size,
                        f"{path}:{member.filename}",
                    )
                name = member.filename.removesuffix(".npy")
                begin = find_entry_start(path, member)
                entries.append(_build_entry(path, file, name, header, begin))
    except ARCHIVE_ERRORS as error:
        raise DumpError(f"{path}: damaged archive ({error}); write it again") from None
    return entries


def _build_entry(path: Path, file: str, name: str, header: Header, begin: int) -> Entry:
    if header.dtype not in RAW_DTYPES or header.stored.startswith(">"):
        raise DumpError(f"{path}: {name} holds {header.dtype} ({header.stored}), which is not read")
    extent = Extent(file, begin + header.offset, header.n_elements * header.itemsize)
    strides = None
    if header.fortran_order and len(header.shape) > 1:
        fortran_strides = [1]
        for length in header.shape[:-1]:
            fortran_strides.append(fortran_strides[-1] * length)
        strides = tuple(fortran_strides)
    return Entry(name, header.dtype, header.shape, (extent,), strides)
