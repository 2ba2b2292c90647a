"""One recorded tensor of a MindSpore dump, and where in the dump it is."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable
from dataclasses import dataclass

BITS = re.compile(r"(?:int|float|complex)([1-9]\d{0,2})$")  #: of a dtype, at the end of its name

Place = tuple[str, str, int, int]  #: encoded op name, input or output, slot, occurrence


@dataclass(slots=True)
class Record:
    """One recorded tensor."""

    kind: str
    name: str  #: encoded op name
    io: str
    slot: int
    time: int
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    file: str = ""  #: relative to the folder
    row: int = -1  #: row of the csv
    content: Hashable = None  #: equal for equal tensors; None if the content is unknown
    occurrence: int = 0
    has_dtype_in_name: bool = False  #: the file name contains the dtype
    full_name: str = ""  #: name with slashes, if the file name can be decoded (before 2.3)

    def hash_content(self) -> int:
        """Return the fingerprint of its file, 0 if it has none."""
        if not self.file or self.content is None:
            return 0
        return hash(self.content) or 1


def count_elements(shape: tuple[int, ...] | None, dtype: str, n_bytes: int) -> int:
    """Return the number of elements of a tensor, -1 if unknown. ``n_bytes`` is -1 if unknown."""
    if shape is not None:
        return math.prod(shape)
    if n_bytes < 0:
        return -1
    if dtype == "bool":
        return n_bytes
    bits = BITS.search(dtype)
    return n_bytes * 8 // int(bits[1]) if bits else -1
