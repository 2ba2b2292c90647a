"""How large a dump will be and how long writing it takes, from the tensors of a dump that is there.

Sizes follow from shapes and dtypes. Times are those of one machine (two cores, local disk) and of the order of
magnitude only: see :data:`_WRITERS` for what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..model.arrays import Flags
from ..model.trace import Trace

_ITEM = {
    "8": 1,
    "16": 2,
    "32": 4,
    "64": 8,
    "128": 16,
}  #: bytes of an element, by the end of its dtype's name


@dataclass(frozen=True)
class _Writer:
    """What one dumper spends."""

    header_bytes: int  #: bytes of a tensor's file beyond its elements
    row_bytes: int  #: bytes of the record of a tensor's statistics, its name included
    seconds_per_tensor: float  #: seconds for each tensor
    bytes_per_second: float  #: bytes written per second
    widens_bfloat16: bool  #: bfloat16 is stored as float32
    always_statistics: bool  #: whole tensors come with theirs


#: MindSpore 2.10 on CPU: 3006 files took 0.44 s a step; msprobe 26.2 on PyTorch: 1000 small tensors took 3.2 s, 16 of
#: 64 MB each 4.1 s. An npy file has 128 bytes before its elements, a torch file some 2 kB around them; rows are as
#: large as those of the shipped dumps, call stacks included.
_WRITERS = {
    "mindspore": _Writer(128, 220, 1.5e-4, 2.5e8, True, False),
    "msprobe": _Writer(2000, 450, 3e-3, 2.5e8, False, True),
    "ptdbg": _Writer(128, 530, 3e-3, 2.5e8, True, True),
}


@dataclass(frozen=True)
class Cost:
    """What a dump costs."""

    tensors: int
    bytes: int
    seconds: float

    def multiply(self, steps: int) -> Cost:
        """Of several steps."""
        return Cost(self.tensors * steps, self.bytes * steps, self.seconds * steps)

    def __str__(self) -> str:
        return f"{self.tensors:,} tensors, {format_size(self.bytes)}, {format_time(self.seconds)}"


def flag_recorded_tensors(trace: Trace) -> Flags:
    """(tensors,) true for what a dumper writes: tensors, and those immediate values of which there is a file."""
    is_written = ~trace.tensors["constant"].to_numpy() | (trace.tensors["file"] != "").to_numpy()
    flags: Flags = is_written & (trace.tensors["size"] >= 0).to_numpy()
    return flags


def flag_op_tensors(trace: Trace, ops: Sequence[int]) -> Flags:
    """(tensors,) true for the tensors of these ops."""
    flags: Flags = flag_recorded_tensors(trace) & np.isin(trace.tensors["op"].to_numpy(), list(ops))
    return flags


def estimate_cost(
    trace: Trace, format: str, *, statistics: Flags | None = None, whole_tensors: Flags | None = None
) -> Cost:
    """What a dumper of this format would spend on a step and rank like the one of the trace.

    ``statistics`` and ``whole`` are (tensors,) flags: of which tensors the one, and the other, is written.
    """
    writer = _WRITERS[format]
    no_tensors = np.zeros(len(trace.tensors), dtype=bool)
    whole_tensors = no_tensors if whole_tensors is None else whole_tensors
    statistics = no_tensors if statistics is None else statistics
    if writer.always_statistics:
        statistics = statistics | whole_tensors
    rows = np.flatnonzero(whole_tensors)
    sizes = np.maximum(trace.tensors["size"].to_numpy()[rows], 0)
    dtypes = trace.tensors["dtype"].to_numpy()[rows].tolist()
    item_sizes = np.array([get_item_size(dtype, writer.widens_bfloat16) for dtype in dtypes], dtype=np.int64)
    n_bytes = (
        int((sizes * item_sizes).sum()) + writer.header_bytes * len(rows) + writer.row_bytes * int(statistics.sum())
    )
    tensors = int((whole_tensors | statistics).sum())
    return Cost(tensors, n_bytes, writer.seconds_per_tensor * tensors + n_bytes / writer.bytes_per_second)


def get_item_size(dtype: str, widens: bool) -> int:
    """Bytes of an element as it is stored."""
    if dtype == "bfloat16" and widens:
        return 4
    return next((size for bits, size in reversed(_ITEM.items()) if dtype.endswith(bits)), 1)


def format_size(count: int) -> str:
    """Bytes for a person.

    >>> _size(1536)
    '1.5 kB'
    """
    number, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            break
        number /= 1000
    return f"{number:.3g} {unit}"


def format_time(seconds: float) -> str:
    if seconds < 1:
        return "less than a second"
    return f"about {seconds:.0f} s" if seconds < 120 else f"about {seconds / 60:.0f} min"
