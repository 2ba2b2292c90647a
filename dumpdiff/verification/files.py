"""Files of whole tensors, held against their records when they are opened."""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

import numpy as np

from ..graph.statistics import STATISTICS, compute_statistics
from ..model.arrays import AnyArray, Flags, Floats
from ..model.errors import DumpError
from ..model.threads import map_in_threads
from ..model.trace import Trace
from .contradictions import Check, Contradiction
from .descriptions import build_contradiction, format_numbers
from .tolerances import RecordedNumbers, collect_numbers

#: What opening a file can raise: DumpError for content that is no tensor, the others for a file
#: that vanishes or shrinks while it is read.
READ_ERRORS = (DumpError, OSError, ValueError)
#: Dtypes of which files hold another one: wider, or that of a Python scalar.
_CONVERTED_DTYPES = ("bfloat16", "int4", "uint1", "int", "float", "", "unknown")
#: Share of the opened files that may have another size than recorded; beyond it, the recorder
#: stores samples.
_MAX_RESIZED_SHARE = 0.5
_BITS = re.compile(r"(?:u?int|b?float|complex)(\d+)")
_PROGRESS_STEP = 64  #: ops between two reports of progress


def check_file_sizes(trace: Trace) -> Check:
    """Check that files are long enough for their tensors. No file is opened, none is followed.

    Files whose bytes the reader of the dump took a fingerprint of are not looked at again. If most
    files are too short, the recorder stores samples.
    """
    tensors = trace.tensors
    n_bytes = {dtype: _count_bytes(dtype) for dtype in tensors["dtype"].unique()}
    expected = tensors["size"].to_numpy() * tensors["dtype"].map(n_bytes).to_numpy()
    is_open = (tensors["file"].to_numpy() != "") & (tensors["content"] == 0).to_numpy()
    rows = np.flatnonzero(is_open & (expected > 0))
    files = tensors["file"].tolist()
    contradictions = []
    for row in rows.tolist():
        try:
            status = os.lstat(os.path.join(trace.source.path, files[row]))
        except OSError:
            continue  # whoever opens it says why
        if stat.S_ISREG(status.st_mode) and status.st_size < expected[row]:
            recorded = f"has {expected[row]:,} bytes"
            computed = f"the file is cut short, {status.st_size:,} bytes"
            item = build_contradiction(trace, "file", row, recorded, computed)
            contradictions.append(item)
    if len(contradictions) > max(1.0, _MAX_RESIZED_SHARE * len(rows)):
        contradictions = []
    return Check("lengths of files", len(rows), tuple(contradictions))


def _count_bytes(dtype: str) -> int:
    """Return the fewest bytes in which an element of a dtype is stored, 0 if unknown."""
    if dtype == "bool" or dtype.startswith("float8"):
        return 1
    match = _BITS.fullmatch(dtype)
    return int(match[1]) // 8 if match else 0


class FileChecks:
    """Checks of the files of one trace: each is made when the file is first opened."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._contradictions: dict[str, tuple[Contradiction, ...]] = {}  #: by file
        self._n_statistics = 0

    def attach(self) -> Trace:
        """Return the trace, so that whoever opens one of its files also checks it."""
        return replace(self._trace, load=self._load)

    @cached_property
    def n_files(self) -> int:
        """Number of files that the trace has."""
        return len(self._rows)

    @property
    def n_read(self) -> int:
        """Number of files that were opened, or could not be opened."""
        return len(self._contradictions)

    @property
    def contradictions(self) -> tuple[Contradiction, ...]:
        """All contradictions so far, in the order of the trace.

        Sizes that differ nearly everywhere are none: that recorder stores samples.
        """
        items = [item for found in self._contradictions.values() for item in found]
        resized_files = {item.file for item in items if item.kind == "shape"}
        if len(resized_files) > max(1.0, _MAX_RESIZED_SHARE * self.n_read):
            items = [item for item in items if item.file not in resized_files]
        return tuple(sorted(items, key=lambda item: item.tensor))

    def read_all(
        self,
        progress: Callable[[float], None] | None = None,
        visit: Callable[[int, Mapping[int, AnyArray | None]], None] | None = None,
    ) -> Trace:
        """Open and check every file, op by op, and hand the tensors of each op to ``visit``.

        Return the trace with fingerprints of all bytes of the files of values that ops pass on. The
        reader of a dump takes those of large files from parts of them. ``visit`` gets the id of
        the op and its tensors by id; None for one that cannot be read.
        """
        trace = self.attach()
        content = trace.tensors["content"].to_numpy(copy=True)
        is_passed_on = self._flag_ends_of_edges()
        rows_by_op = self._list_rows_by_op()
        files = trace.tensors["file"].tolist()

        def read(op: int) -> None:
            arrays: dict[int, AnyArray | None] = {}
            for row in rows_by_op[op]:
                arrays[row] = None
                if files[row]:
                    with suppress(*READ_ERRORS):  # the check has noted them
                        array = trace.array(row)
                        arrays[row] = array
                        if is_passed_on[row]:
                            content[row] = _compute_fingerprint(array)
            if visit is not None:
                visit(op, arrays)

        ops = list(rows_by_op)
        sizes = self._trace.tensors.groupby("op")["size"].sum().to_dict()
        elements = [sizes[op] for op in ops]
        for n_done, _ in enumerate(map_in_threads(read, ops, elements)):
            if progress and n_done % _PROGRESS_STEP == 0:
                progress(n_done / len(ops))
        return replace(trace, tensors=trace.tensors.assign(content=content))

    def _list_rows_by_op(self) -> dict[int, list[int]]:
        """Return op -> its tensors."""
        rows_by_op: dict[int, list[int]] = {}
        for row, op in enumerate(self._trace.tensors["op"].tolist()):
            rows_by_op.setdefault(op, []).append(row)
        return rows_by_op

    def _flag_ends_of_edges(self) -> Flags:
        """Return which tensors another one reads or is read from, as recorded."""
        sources = self._trace.tensors["source_tensor"].to_numpy()
        flags: Flags = sources >= 0
        flags[sources[flags]] = True
        return flags

    def list_checks(self) -> tuple[Check, ...]:
        """Return the checks made so far, by what the files were held against."""
        items = self.contradictions
        readable = tuple(item for item in items if item.kind == "file")
        typed = tuple(item for item in items if item.kind in ("shape", "dtype"))
        statistics = tuple(item for item in items if item.kind == "statistics")
        return (
            Check("files that can be opened", self.n_read, readable),
            Check("shapes and dtypes of files", self.n_read - len(readable), typed),
            Check("statistics of files", self._n_statistics, statistics),
        )

    def _load(self, name: str) -> AnyArray:
        assert self._trace.load is not None
        rows = self._rows.get(name, [])
        try:
            array = self._trace.load(name)
        except READ_ERRORS as error:
            message = str(error)
            self._contradictions[name] = tuple(
                build_contradiction(self._trace, "file", row, "has a file", message)
                for row in rows[:1]
            )
            raise
        if name not in self._contradictions:
            items: list[Contradiction] = []
            for row in rows:
                items += self._check(row, array)
            self._contradictions[name] = tuple(items)
        return array

    @cached_property
    def _rows(self) -> dict[str, list[int]]:
        """File -> the tensors that it holds."""
        rows: dict[str, list[int]] = {}
        for row, file in enumerate(self._trace.tensors["file"].tolist()):
            if file:
                rows.setdefault(file, []).append(row)
        return rows

    def _check(self, row: int, array: AnyArray) -> list[Contradiction]:
        """Return what the record of a tensor says other than its file."""
        tensors = self._trace.tensors
        size, dtype = int(tensors["size"].iat[row]), str(tensors["dtype"].iat[row])
        if size >= 0 and array.size != size:
            recorded = f"recorded with shape {tensors['shape'].iat[row]}"
            computed = f"the file holds {array.shape}"
            return [build_contradiction(self._trace, "shape", row, recorded, computed)]
        if not _is_stored_as(dtype, str(array.dtype)):
            recorded = f"recorded as {dtype}"
            computed = f"the file holds {array.dtype}"
            return [build_contradiction(self._trace, "dtype", row, recorded, computed)]
        recorded_numbers = self._statistics[row]
        has_statistics = not np.isnan(recorded_numbers).all()
        if not has_statistics or np.iscomplexobj(array) or array.size == 0:
            return []
        self._n_statistics += 1
        return self._check_statistics(row, array, recorded_numbers)

    def _check_statistics(self, row: int, array: AnyArray, recorded: Floats) -> list[Contradiction]:
        *computed, is_nonfinite = compute_statistics(array)
        recorded_flag = int(self._trace.tensors["nonfinite"].iat[row])
        is_different = recorded_flag >= 0 and recorded_flag != is_nonfinite
        if not is_nonfinite and recorded_flag <= 0:
            slacks = self._compute_slacks(row, computed, array.size)
            gaps = np.abs(recorded - np.array(computed))
            is_different |= bool(np.any(gaps > slacks))  # NaN: not recorded
        if not is_different:
            return []
        recorded_text = format_numbers(
            dict(zip(STATISTICS, recorded.tolist(), strict=True)), recorded_flag == 1
        )
        computed_text = format_numbers(
            dict(zip(STATISTICS, computed, strict=True)), bool(is_nonfinite)
        )
        message = f"the file has {computed_text}"
        item = build_contradiction(self._trace, "statistics", row, recorded_text, message)
        return [item]

    def _compute_slacks(self, row: int, computed: list[float], size: int) -> Floats:
        """Return the allowed differences of max, min, mean and norm."""
        numbers = self._numbers
        extreme_error, sum_error = numbers.extreme_errors[row], numbers.sum_errors[row]
        floor = numbers.floors[row]
        high, low, _, norm = computed
        extreme_slack = extreme_error * max(abs(high), abs(low))
        mean_slack = sum_error * norm / size**0.5 + floor
        return np.array([extreme_slack, extreme_slack, mean_slack, sum_error * norm + floor])

    @cached_property
    def _statistics(self) -> Floats:
        statistics: Floats = self._trace.tensors[list(STATISTICS)].to_numpy(dtype=float)
        return statistics

    @cached_property
    def _numbers(self) -> RecordedNumbers:
        return collect_numbers(self._trace)


def _compute_fingerprint(array: AnyArray) -> int:
    """Return a number that is equal for equal bytes of any shape, never 0."""
    data = np.ascontiguousarray(array.ravel(order="K"))
    checksum = zlib.crc32(data.view(np.uint8).data)
    length = data.nbytes & 0x7FFFFFFF  # the number must fit into 63 bits
    return (length << 32 | checksum) or 1


def _is_stored_as(dtype: str, stored: str) -> bool:
    """Return whether a tensor of a dtype may be stored as another: bfloat16 is stored wider."""
    if dtype == stored or dtype in _CONVERTED_DTYPES or dtype.startswith("float8"):
        return True
    return dtype == "bool" and stored == "uint8"
