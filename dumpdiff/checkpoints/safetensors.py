"""safetensors: a JSON header, then the bytes; one file, or several with an index.

Format: https://github.com/huggingface/safetensors#format. The header is read here, not with the package: its NumPy
interface has no bfloat16 and no float8, and says nothing of where the bytes lie.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ..model.errors import DumpError
from ..model.trace import Problem
from ..readers.files import head, is_plain_name
from ..readers.npy import known_shape
from .checkpoint import Entry, Extent
from .elements import item_size

FORMAT = "safetensors"

#: dtype in the header -> dtype.
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64",
    "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_LONGEST_HEADER = 100_000_000  #: bytes; what the reference implementation accepts
_LARGEST_INDEX = 1 << 28  #: bytes


def is_safetensors(path: Path) -> bool:
    """Whether a file begins as one: the length of a header that fits into it, and the header's brace."""
    start = head(path, 9)
    return (
        len(start) == 9
        and start[8:] == b"{"
        and 2 <= int.from_bytes(start[:8], "little") <= path.stat().st_size - 8
    )


def entries(path: Path, file: str) -> tuple[list[Entry], list[Problem]]:
    """The tensors of one file, in the order of their bytes; ``file`` is what entries call it.

    Raises DumpError if the header cannot be read or the file is cut short.
    """
    length = path.stat().st_size
    said, begin = _header(path, length)
    found: list[Entry] = []
    problems: list[Problem] = []
    for name, entry in said.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape = DTYPES.get(entry["dtype"]), known_shape(entry["shape"])
            first, last = entry["data_offsets"]
            if dtype is None or shape is None:
                problems.append(
                    Problem(file, f"{name}: elements of type {entry['dtype']} are not read")
                )
                continue
            if last - first != item_size(dtype) * math.prod(shape) or first < 0:
                raise ValueError(name)
        except (KeyError, TypeError, ValueError) as error:
            raise DumpError(
                f"{path}: broken safetensors header at '{name}'; copy it again"
            ) from error
        if begin + last > length:
            raise DumpError(
                f"{path}: cut short, {length:,} of {begin + last:,} bytes; copy it again"
            )
        found.append(Entry(name, dtype, shape, (Extent(file, begin + first, last - first),)))
    return sorted(found, key=lambda entry: entry.extents[0].offset), problems


def _header(path: Path, length: int) -> tuple[dict[str, Any], int]:
    """The header and where the bytes begin."""
    try:
        with path.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if size > min(length - 8, _LONGEST_HEADER):
                raise DumpError(f"{path}: expected safetensors, found a header of {size:,} bytes")
            said = json.loads(stream.read(size))
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{path}: broken safetensors header; copy it again") from error
    if not isinstance(said, dict):
        raise DumpError(f"{path}: broken safetensors header; copy it again")
    return said, 8 + size


def indexed_files(index: Path) -> tuple[str, ...]:
    """The files that an index (``*.index.json``: weight_map of name to file) names, in order.

    Raises DumpError if it is none, or names something outside of its folder.
    """
    try:
        if index.stat().st_size > _LARGEST_INDEX:
            raise DumpError(f"{index}: expected an index, found {index.stat().st_size:,} bytes")
        files = tuple(
            dict.fromkeys(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        )
    except OSError as error:
        raise DumpError(f"{index}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise DumpError(f"{index}: expected an index with a weight_map") from error
    for file in files:
        if not isinstance(file, str) or not is_plain_name(file):
            raise DumpError(f"{index}: names {str(file)[:80]!r}, which is no file of its folder")
        if not (index.parent / file).is_file():
            raise DumpError(
                f"{index.parent / file}: is missing, {index.name} names it; copy the folder again"
            )
    return files
