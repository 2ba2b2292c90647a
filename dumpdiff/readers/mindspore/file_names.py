"""Parse the names of npy files that MindSpore's dumper writes, of every version.

``{op type}.{op name}.{task}.{stream}.{timestamp}.{input|output}.{slot}.{format}[.{dtype}].npy``

- ``/`` of the op name becomes ``--`` up to 2.3.0-rc1. From 2.3.0-rc2 on, ``/``, ``\\``, ``.`` and
  space become ``_``. Names are not decoded, because ``_`` is not reversible; the graph has the full
  names.
- The dtype is part of the name from 2.4.0 on.
- A name of more than 255 characters is replaced by ``{random number}.npy``, and ``mapping.csv`` in
  the same folder has ``random,original`` lines without a header.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import NamedTuple

from ...model.errors import DumpError
from ...model.input_files import open_input_text

_NAME = re.compile(
    r"(?P<kind>[^./\\]+)\.(?P<name>[^/\\]+)\.(?P<task>\d{1,20})\.(?P<stream>\d{1,20})"
    r"\.(?P<time>\d{10,18})\.(?P<io>input|output)\.(?P<slot>\d{1,6})"
    r"\.(?P<format>[A-Za-z]\w*)(?:\.(?P<dtype>[A-Za-z]\w*))?\.npy",
    re.ASCII,
)
_MAX_LENGTH = 4096  #: characters; cell names can be long, but no real path is longer
_ENCODED_CHARACTERS = "/\\. "
_OP_NUMBER = re.compile(r"-op\d+(?=$|_)")

#: Op type of parameters and graph inputs in file names; they are written at the end of the step.
PARAMETER = "Parameter"
MAPPING = "mapping.csv"


class FileName(NamedTuple):
    """The parts of one file name."""

    kind: str  #: op type
    name: str  #: encoded op name
    time: int  #: microseconds since 1970 when the file was written (not when the op ran)
    io: str  #: input or output
    slot: int
    dtype: str  #: '' before 2.4


def parse_file_name(name: str) -> FileName | None:
    """Return the parts of an .npy file name, None if the dumper does not write such names."""
    if len(name) > _MAX_LENGTH:
        return None
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    kind, op, _, _, time, io, slot, _, dtype = match.groups()
    return FileName(kind, op, int(time), io, int(slot), dtype or "")


def encode_op_name(name: str) -> str:
    """Return an op name as file names since 2.3 spell it. Names are joined in this spelling.

    >>> encode_op_name("Default/fc-Dense/MatMul-op0"), encode_op_name("layers.0.weight")
    ('Default_fc-Dense_MatMul-op0', 'layers_0_weight')
    >>> encode_op_name("Default--fc-Dense--MatMul-op0")
    'Default_fc-Dense_MatMul-op0'
    """
    encoded = name.replace("--", "/")
    for character in _ENCODED_CHARACTERS:  # str.translate is ten times slower
        encoded = encoded.replace(character, "_")
    return encoded


def strip_op_number(encoded: str) -> str:
    """Return the op name without its number; it is the same for ops of one scope and type."""
    return _OP_NUMBER.sub("", encoded)


def read_mapping(folder: Path) -> dict[str, str]:
    """Return file name -> original long name from the folder's ``mapping.csv``.

    {} without that file.

    Raises DumpError if ``mapping.csv`` cannot be read.
    """
    path = folder / MAPPING
    if not path.is_file():
        return {}
    try:
        with open_input_text(path, newline="") as file:
            rows = [row for row in csv.reader(file) if len(row) >= 2]
    except (OSError, csv.Error) as error:
        raise DumpError(f"{path}: cannot be read: {error}") from error
    return {row[0].strip(): row[1].strip() for row in rows}
