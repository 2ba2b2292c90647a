"""How the MindSpore dumper names its files, in every generation.

``{op type}.{op name}.{task}.{stream}.{timestamp}.{input|output}.{slot}.{format}[.{dtype}].npy``

- ``/`` of the op name became ``--`` up to 2.3.0-rc1, and ``_`` from 2.3.0-rc2 on, where ``\\``, ``.`` and space became
  ``_`` too. Neither is split again here: ``_`` is not reversible, the graph knows the names.
- the dtype is there from 2.4.0 on.
- a name of more than 255 characters is replaced by ``{random number}.npy``, and ``mapping.csv`` in the same folder
  has ``random,original`` lines without a header.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import NamedTuple

from ...model.errors import DumpError

_NAME = re.compile(
    r"(?P<kind>[^./\\]+)\.(?P<name>[^/\\]+)\.(?P<task>\d{1,20})\.(?P<stream>\d{1,20})\.(?P<time>\d{10,18})"
    r"\.(?P<io>input|output)\.(?P<slot>\d{1,6})\.(?P<format>[A-Za-z]\w*)(?:\.(?P<dtype>[A-Za-z]\w*))?\.npy",
    re.ASCII,
)
_LONGEST = 4096  #: characters; cell names can be long, no real path is longer
_ENCODED = str.maketrans(dict.fromkeys("/\\. ", "_"))
_COUNTER = re.compile(r"-op\d+(?=$|_)")

PARAMETER = "Parameter"  #: the op type under which parameters and graph inputs are written, at the end of the step
MAPPING = "mapping.csv"


class FileName(NamedTuple):
    """The parts of one file name."""

    kind: str
    name: str  #: encoded op name
    time: int  #: microseconds since 1970, of this file, not of the op
    io: str
    slot: int
    dtype: str  #: '' before 2.4


def parse_file_name(name: str) -> FileName | None:
    """The parts of an .npy file name, None if it is no name of this dumper."""
    if len(name) > _LONGEST:
        return None
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    kind, op, _, _, time, io, slot, _, dtype = found.groups()
    return FileName(kind, op, int(time), io, int(slot), dtype or "")


def encode_op_name(name: str) -> str:
    """The spelling of an op name in file names since 2.3, which is what names are joined on.

    >>> encode("Default/fc-Dense/MatMul-op0"), encode("Default--fc-Dense--MatMul-op0"), encode("layers.0.weight")
    ('Default_fc-Dense_MatMul-op0', 'Default_fc-Dense_MatMul-op0', 'layers_0_weight')
    """
    return name.replace("--", "/").translate(_ENCODED)


def strip_op_number(encoded: str) -> str:
    """The op name without its running number: ops of one scope and type share it."""
    return _COUNTER.sub("", encoded)


def read_mapping(folder: Path) -> dict[str, str]:
    """File name -> the long name it stands for, from the folder's ``mapping.csv``; empty if there is none.

    Raises DumpError if the file cannot be read.
    """
    path = folder / MAPPING
    if not path.is_file():
        return {}
    try:
        with open(path, newline="", encoding="utf-8", errors="replace") as file:
            rows = [row for row in csv.reader(file) if len(row) >= 2]
    except (OSError, csv.Error) as error:
        raise DumpError(f"{path}: cannot be read: {error}") from error
    return {row[0].strip(): row[1].strip() for row in rows}
