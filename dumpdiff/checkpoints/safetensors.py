"""safetensors: a JSON header, then the bytes; one file, or several with an index.

Format: https://github.com/huggingface/safetensors#format. The header is parsed here because the
package's NumPy interface has no bfloat16 and no float8, and does not tell where the bytes are.
"""

from __future__ import annotations

import json
import math
import operator
from pathlib import Path
from typing import Any

from ..model.errors import DumpError
from ..model.input_files import is_plain_name, open_input_file, read_head, read_input_text
from ..model.trace import Problem
from ..tensor_files.npy import validate_shape
from .checkpoint import Entry, Extent
from .elements import get_item_size

FORMAT = "safetensors"

#: dtype in the header -> dtype.
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_LONGEST_HEADER = 100_000_000  #: bytes; the limit of the reference implementation
_LARGEST_INDEX = 1 << 28  #: bytes; a larger file is refused


def is_safetensors(path: Path) -> bool:
    """Return whether a file begins with a header length that fits into it, and a brace."""
    head = read_head(path, 9)
    if len(head) < 9 or head[8:] != b"{":
        return False
    header_length = int.from_bytes(head[:8], "little")
    return 2 <= header_length <= path.stat().st_size - 8


def read_entries(path: Path, file: str) -> tuple[list[Entry], list[Problem]]:
    """Return the tensors of one file, in the order of their bytes; entries refer to it as ``file``.

    Raises DumpError if the header cannot be read or the file is cut short.
    """
    length = path.stat().st_size
    header, begin = _read_header(path, length)
    entries: list[Entry] = []
    problems: list[Problem] = []
    for name, description in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype = DTYPES.get(description["dtype"])
            shape = validate_shape(description["shape"])
            first, last = map(operator.index, description["data_offsets"])
            if dtype is None or shape is None:
                message = f"{name}: elements of type {description['dtype']} are not read"
                problems.append(Problem(file, message))
                continue
            if last - first != get_item_size(dtype) * math.prod(shape) or first < 0:
                raise ValueError(name)
        except (KeyError, TypeError, ValueError) as error:
            raise DumpError(
                f"{path}: broken safetensors header at '{name}'; copy it again"
            ) from error
        if begin + last > length:
            raise DumpError(
                f"{path}: cut short, {length:,} of {begin + last:,} bytes; copy it again"
            )
        entries.append(Entry(name, dtype, shape, (Extent(file, begin + first, last - first),)))
    entries.sort(key=lambda entry: entry.extents[0].offset)
    return entries, problems


def _read_header(path: Path, length: int) -> tuple[dict[str, Any], int]:
    """Return the header, and where the bytes begin."""
    try:
        with open_input_file(path) as stream:
            size = int.from_bytes(stream.read(8), "little")
            if size > min(length - 8, _LONGEST_HEADER):
                raise DumpError(f"{path}: expected safetensors, found a header of {size:,} bytes")
            header = json.loads(stream.read(size))
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{path}: broken safetensors header; copy it again") from error
    if not isinstance(header, dict):
        raise DumpError(f"{path}: broken safetensors header; copy it again")
    return header, 8 + size


def list_indexed_files(index: Path) -> tuple[str, ...]:
    """Return the file names in an index (``*.index.json``: weight_map of tensor to file), in order.

    Raises DumpError if it is no index, or names something outside its folder.
    """
    try:
        weight_map = json.loads(read_input_text(index, _LARGEST_INDEX))["weight_map"]
        files = tuple(dict.fromkeys(weight_map.values()))
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
