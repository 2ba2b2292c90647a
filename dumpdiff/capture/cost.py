"""Estimate the size and the writing time of a dump, from the tensors of an existing dump.

Sizes follow from shapes and dtypes. Times were measured on one machine (two cores, local disk), so
only their order of magnitude counts: see :data:`_WRITERS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..model.arrays import Flags, Ints
from ..model.trace import FORWARD, Trace

#: Bytes of an element, by the number of bits at the end of its dtype's name.
_ITEM_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
_DEFAULT_ITEM_SIZE = 1  #: bytes of an element of any other dtype, such as bool
_BFLOAT16_AS_FLOAT32 = 4  #: bytes of an element of bfloat16 where a dumper stores float32


@dataclass(frozen=True)
class _Writer:
    """The size and speed of one dumper's output."""

    header_bytes: int  #: bytes of a tensor's file in addition to its elements
    row_bytes: int  #: bytes of the record of a tensor's statistics, without names and numbers
    number_bytes: float  #: bytes of each statistic in it
    row_names: int  #: how often the name of the op is in the record of each tensor
    op_bytes: int  #: bytes of the record of a call around those of its tensors, without names
    op_names: int  #: how often its name is in it
    stack_bytes: int  #: bytes of the call stack of a call of the forward pass
    call_bytes: int  #: bytes of each call in the structure, which lists all, recorded or not
    file_row_bytes: int  #: bytes of the name of a tensor's file in its record, without the op's
    seconds_per_tensor: float  #: seconds for each tensor
    bytes_per_second: float  #: bytes written per second
    widens_bfloat16: bool  #: bfloat16 is stored as float32
    always_statistics: bool  #: statistics are written for every saved tensor too


_PYNATIVE = "msprobe in PyNative mode"  #: a writer of its own, of the format msprobe
#: Measured: MindSpore 2.10 on CPU wrote 3006 files in 0.44 s per step; msprobe 26.2 on PyTorch
#: wrote 1000 small tensors in 3.2 s and 16 tensors of 64 MB each in 4.1 s. An npy file has 128
#: bytes before its elements, a torch file about 2 kB around them. The sizes of records are those of
#: real dumps: a row of statistic.csv; entries of dump.json, stack.json and construct.json, measured
#: for 26 configurations by tests/capture/test_cost_of_options.py; a line of a .pkl. In PyNative
#: mode msprobe writes npy files, and longer stacks, through the calls of cells: 239 kB for the 197
#: forward calls of a small model.
#: ``dumpdiff.record`` wrote 474 kB for the 588 tensors in 1152 slots of 436 calls; it writes a
#: tensor once for all slots that hold it, so whole tensors are half of the estimate there.
_WRITERS = {
    "mindspore": _Writer(128, 53, 7.5, 1, 0, 0, 0, 0, 0, 1.5e-4, 2.5e8, True, False),
    "msprobe": _Writer(2000, 195, 23, 0, 70, 1, 680, 80, 30, 3e-3, 2.5e8, False, True),
    _PYNATIVE: _Writer(128, 195, 23, 0, 70, 1, 1200, 80, 30, 3e-3, 2.5e8, True, True),
    "ptdbg": _Writer(128, 450, 20, 0, 0, 0, 0, 0, 0, 3e-3, 2.5e8, True, True),
    "manifest": _Writer(128, 260, 20, 0, 140, 2, 0, 0, 0, 3e-4, 2.5e8, True, True),
}
_N_STATISTICS = 4  #: max, min, mean and norm


@dataclass(frozen=True)
class Cost:
    """The size and writing time of a dump."""

    tensors: int
    bytes: int
    seconds: float

    def multiply(self, steps: int) -> Cost:
        """Return the cost of several such steps."""
        return Cost(self.tensors * steps, self.bytes * steps, self.seconds * steps)

    def __str__(self) -> str:
        return f"{self.tensors:,} tensors, {format_size(self.bytes)}, {format_time(self.seconds)}"


def flag_recorded_tensors(trace: Trace) -> Flags:
    """Return flags (tensors,): true for what a dumper writes.

    That is every tensor, and every constant that has a file.
    """
    is_written = ~trace.tensors["constant"].to_numpy() | (trace.tensors["file"] != "").to_numpy()
    flags: Flags = is_written & (trace.tensors["size"] >= 0).to_numpy()
    return flags


def flag_op_tensors(trace: Trace, ops: Sequence[int]) -> Flags:
    """Return flags (tensors,): true for the recorded tensors of these ops."""
    flags: Flags = flag_recorded_tensors(trace) & np.isin(trace.tensors["op"].to_numpy(), list(ops))
    return flags


def estimate_cost(
    trace: Trace,
    format: str,
    *,
    statistics: Flags | None = None,
    whole_tensors: Flags | None = None,
    n_statistics: int = _N_STATISTICS,
    max_elements: int | None = None,
    n_calls: int | None = None,
    n_stacks: int | None = None,
    framework: str = "",
) -> Cost:
    """Return the cost of one step and rank like those of the trace, for the dumper of ``format``.

    ``statistics`` and ``whole_tensors`` are flags (tensors,): whose statistics are written, and
    whose elements are written. ``n_statistics`` is their number, ``max_elements`` what a dumper
    that takes samples keeps of a tensor, ``n_calls`` the number of calls in the structure that it
    writes, by default all of the trace, and ``n_stacks`` the number of forward calls whose stacks
    it writes, by default those with a tensor that is written. ``framework`` is that of the run to
    be dumped, by default that of the trace.
    """
    writer = _choose_writer(format, framework or trace.source.framework)
    no_tensors = np.zeros(len(trace.tensors), dtype=bool)
    whole_tensors = no_tensors if whole_tensors is None else whole_tensors
    statistics = no_tensors if statistics is None else statistics
    if writer.always_statistics:
        statistics = statistics | whole_tensors
    n_bytes = _count_element_bytes(trace, writer, whole_tensors, max_elements)
    n_bytes += writer.header_bytes * int(whole_tensors.sum())
    n_bytes += _count_record_bytes(trace, writer, statistics, whole_tensors, n_statistics)
    n_bytes += writer.call_bytes * (len(trace.ops) if n_calls is None else n_calls)
    if n_stacks is None:
        n_stacks = count_forward_calls(trace, statistics)
    n_bytes += writer.stack_bytes * n_stacks
    tensors = int((whole_tensors | statistics).sum())
    return Cost(
        tensors, n_bytes, writer.seconds_per_tensor * tensors + n_bytes / writer.bytes_per_second
    )


def count_forward_calls(trace: Trace, tensors: Flags) -> int:
    """Return the number of forward calls with any of the tensors (tensors,) that are true."""
    is_forward = (trace.ops["phase"] == FORWARD).to_numpy()
    return int(is_forward[np.unique(trace.tensors["op"].to_numpy()[tensors])].sum())


def _choose_writer(format: str, framework: str) -> _Writer:
    """Return the writer of a dump of a format in a framework: msprobe has one for each."""
    is_pynative = format == "msprobe" and framework == "mindspore"
    return _WRITERS[_PYNATIVE if is_pynative else format]


def _count_element_bytes(
    trace: Trace, writer: _Writer, whole_tensors: Flags, max_elements: int | None
) -> int:
    rows = np.flatnonzero(whole_tensors)
    sizes = np.maximum(trace.tensors["size"].to_numpy()[rows], 0)
    if max_elements is not None:
        sizes = np.minimum(sizes, max_elements)
    dtypes = trace.tensors["dtype"].to_numpy()[rows].tolist()
    item_sizes = [get_item_size(dtype, writer.widens_bfloat16) for dtype in dtypes]
    return int((sizes * np.array(item_sizes, dtype=np.int64)).sum())


def _count_record_bytes(
    trace: Trace, writer: _Writer, statistics: Flags, whole_tensors: Flags, n_statistics: int
) -> int:
    """Return the bytes of the records of statistics, and of the calls that they are in."""
    name_lengths = trace.ops["name"].str.len().to_numpy()
    ops = trace.tensors["op"].to_numpy()
    recorded_ops = np.unique(ops[statistics])
    n_rows = int(statistics.sum())
    n_bytes = n_rows * (writer.row_bytes + writer.number_bytes * n_statistics)
    n_bytes += writer.row_names * name_lengths[ops[statistics]].sum()
    n_bytes += len(recorded_ops) * writer.op_bytes
    n_bytes += writer.op_names * name_lengths[recorded_ops].sum()
    if writer.file_row_bytes:
        rows_with_file = statistics & whole_tensors
        n_bytes += int(rows_with_file.sum()) * writer.file_row_bytes
        n_bytes += name_lengths[ops[rows_with_file]].sum()
    return int(n_bytes)


def count_op_bytes(trace: Trace) -> Ints:
    """Return (ops,) the bytes of the whole tensors that a dumper writes of each op."""
    writer = _choose_writer(trace.source.format, trace.source.framework)
    tensors = trace.tensors
    item_sizes = tensors["dtype"].map(
        {dtype: get_item_size(dtype, writer.widens_bfloat16) for dtype in tensors["dtype"].unique()}
    )
    sizes = np.maximum(tensors["size"].to_numpy(), 0)
    n_bytes = sizes * item_sizes.to_numpy(dtype=np.int64) + writer.header_bytes
    weights = n_bytes * flag_recorded_tensors(trace)
    counts: Ints = np.bincount(
        tensors["op"].to_numpy(), weights=weights, minlength=len(trace.ops)
    ).astype(np.int64)
    return counts


def get_item_size(dtype: str, widens: bool) -> int:
    """Return the bytes of an element in its file."""
    if dtype == "bfloat16" and widens:
        return _BFLOAT16_AS_FLOAT32
    for bits, size in reversed(_ITEM_SIZES.items()):
        if dtype.endswith(bits):
            return size
    return _DEFAULT_ITEM_SIZE


def format_size(count: int) -> str:
    """Return a number of bytes as text.

    >>> format_size(1536)
    '1.5 kB'
    """
    number, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            break
        number /= 1000
    return f"{number:.3g} {unit}"


def format_time(seconds: float) -> str:
    """Return a duration as text, rounded to seconds or minutes."""
    if seconds < 1:
        return "less than a second"
    return f"about {seconds:.0f} s" if seconds < 120 else f"about {seconds / 60:.0f} min"
