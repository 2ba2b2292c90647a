"""How large a dump will be and how long writing it takes, from the tensors of a dump that is there.

Sizes follow from shapes and dtypes. Times are those of one machine (two cores, local disk) and of the order of
magnitude only: see :data:`_WRITERS` for what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Flags, Ints
from ..trace import Trace

_ITEM = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}  #: bytes of an element, by the end of its dtype's name


@dataclass(frozen=True)
class _Writer:
    """What one dumper spends."""

    header: int  #: bytes of a tensor's file beyond its elements
    row: int  #: bytes of the record of a tensor's statistics, its name included
    per_tensor: float  #: seconds for each tensor, its statistics included
    rate: float  #: bytes written per second
    widens: bool  #: bfloat16 is stored as float32


#: MindSpore 2.10 on CPU: 3006 files took 0.44 s a step; msprobe 26.2 on PyTorch: 1000 small tensors took 3.2 s, 16 of
#: 64 MB each 4.1 s. An npy file has 128 bytes before its elements, a torch file some 1.2 kB around them.
_WRITERS = {
    "mindspore": _Writer(128, 220, 1.5e-4, 2.5e8, True),
    "msprobe": _Writer(1200, 280, 3e-3, 2.5e8, False),
    "ptdbg": _Writer(128, 350, 3e-3, 2.5e8, True),
}


@dataclass(frozen=True)
class Cost:
    """What one step of one rank costs."""

    tensors: int
    bytes: int
    seconds: float

    def times(self, steps: int) -> Cost:
        """Of several steps."""
        return Cost(self.tensors * steps, self.bytes * steps, self.seconds * steps)

    def __str__(self) -> str:
        return f"{self.tensors:,} tensors, {_size(self.bytes)}, {_time(self.seconds)}"


def cost(trace: Trace, ops: Ints | None = None, *, whole: bool = True, format: str | None = None) -> Cost:
    """What recording the tensors of some ops of a trace (None: all) would cost, whole or as statistics.

    ``format`` is that of the dump to be made; by default that of the trace.
    """
    writer = _WRITERS[format or trace.source.format]
    chosen = _recorded(trace)
    if ops is not None:
        chosen &= np.isin(trace.tensors["op"].to_numpy(), ops)
    rows = np.flatnonzero(chosen)
    spent = writer.row * len(rows)
    if whole:
        sizes = trace.tensors["size"].to_numpy()[rows]
        items = trace.tensors["dtype"].map(lambda dtype: _item(dtype, writer.widens)).to_numpy(dtype=np.int64)[rows]
        spent += int((np.maximum(sizes, 0) * items).sum()) + writer.header * len(rows)
    return Cost(len(rows), spent, writer.per_tensor * len(rows) + spent / writer.rate)


def _recorded(trace: Trace) -> Flags:
    """(tensors,) true for tensors; false for immediate values, of which no file is written."""
    flags: Flags = ~trace.tensors["constant"].to_numpy() & (trace.tensors["size"] >= 0).to_numpy()
    return flags


def _item(dtype: str, widens: bool) -> int:
    """Bytes of an element as it is stored."""
    if dtype == "bfloat16" and widens:
        return 4
    return next((size for bits, size in reversed(_ITEM.items()) if dtype.endswith(bits)), 1)


def _size(count: int) -> str:
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


def _time(seconds: float) -> str:
    if seconds < 1:
        return "less than a second"
    return f"about {seconds:.0f} s" if seconds < 120 else f"about {seconds / 60:.0f} min"
