"""Read the records of one iteration folder of a MindSpore dump (all versions).

The folder holds npy files, a statistic.csv or both.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path

import numpy as np

from ...model.dtypes import normalize_dtype
from ...model.errors import DumpError
from ...model.input_files import open_input_file
from ...model.trace import Problem
from ...tensor_files import npy
from .file_names import MAPPING, FileName, encode_op_name, parse_file_name, read_mapping
from .record import BITS, Place, Record
from .record_columns import RecordColumns, list_record_columns, read_csv_columns
from .statistic_csv import Statistics, read_statistic_csv

CSV = "statistic.csv"
#: Bytes. The content of files up to this size is compared completely, of larger files by three
#: blocks.
_MAX_COMPLETE = 192 * 1024
_BLOCK = 16 * 1024  #: bytes of one block: at the start, in the middle and at the end
#: Microseconds. No step pauses so long between two of its files; starting a process takes longer.
_RERUN_PAUSE = 1_000_000
#: Share of the first run's records that a later run must repeat to count as the same step again.
_RERUN_SHARE = 0.9
_MAX_BAD_HEADERS = 20  #: unreadable npy files after which a folder does not count as a dump


@dataclass
class Records:
    """All recorded tensors of one iteration."""

    npy_records: list[Record]
    statistics: Statistics | None
    format_variant: str
    problems: list[Problem] = field(default_factory=list)

    @property
    def n_files(self) -> int:
        """Number of npy files that could be read."""
        return len(self.npy_records)

    @cached_property
    def places(self) -> dict[Place, Record]:
        """The records by place: those of npy files, with the rows of the csv, then other rows."""
        places = _index_by_place(self.npy_records)
        csv_records = _list_csv_records(self.statistics) if self.statistics is not None else []
        for place, csv_record in _index_by_place(csv_records).items():
            record = places.setdefault(place, csv_record)
            if record is not csv_record:
                record.row = csv_record.row
                if csv_record.shape is not None:
                    record.shape = csv_record.shape
        return places

    def build_columns(self) -> RecordColumns:
        """Return the records as columns, in the order of ``places``."""
        if self.statistics is not None and not self.npy_records:
            return read_csv_columns(self.statistics)
        return list_record_columns(self.places.values())


def is_npy_folder(folder: Path, names: Sequence[str]) -> bool:
    """Whether the folder is a dump of npy files, judged by content.

    At least one file needs a name of the dumper (or one that mapping.csv translates) and a valid
    header.
    """
    mapping: dict[str, str] = {}
    if MAPPING in names:
        try:
            mapping = read_mapping(folder)
        except DumpError:
            mapping = {}
    n_bad_headers = 0
    for name in names:
        if not name.endswith(".npy") or not parse_file_name(mapping.get(name, name)):
            continue
        try:
            npy.read_header(folder / name)
        except DumpError:
            n_bad_headers += 1
            if n_bad_headers >= _MAX_BAD_HEADERS:
                return False
        else:
            return True
    return False


def read_records(folder: Path, csv: Path | None, whole_folder: bool = True) -> Records:
    """Return the records of ``folder``, joined with those of ``csv``.

    Raises DumpError if there is none.
    """
    problems: list[Problem] = []
    npy_records = _read_npy_records(folder, problems) if whole_folder else []
    statistics = None
    if csv is not None:
        try:
            statistics, csv_problems = read_statistic_csv(csv)
            problems += csv_problems
        except DumpError as error:
            if not npy_records:
                raise
            problems.append(Problem(csv.name, str(error), weakens=True))
    if not npy_records and statistics is None:
        raise DumpError(f"{folder}: not one tensor in it can be read")
    problems += _find_reruns(npy_records, statistics, folder)
    format_variant = _describe_variant(npy_records, statistics)
    return Records(npy_records, statistics, format_variant, problems)


def _read_npy_records(folder: Path, problems: list[Problem]) -> list[Record]:
    try:
        mapping = read_mapping(folder)
    except DumpError as error:
        mapping = {}
        problems.append(Problem(MAPPING, str(error), weakens=True))
    records, n_unknown = [], 0
    is_link = _list_npy_files(folder)
    for name in sorted(is_link):
        path = os.path.join(folder, name)
        file_name = parse_file_name(mapping.get(name, name))
        if file_name is None:
            n_unknown += 1
            continue
        try:
            if is_link[name]:
                npy.resolve_inside(folder, name)
            records.append(_read_npy_record(path, name, file_name))
        except DumpError as error:
            message = str(error).removeprefix(f"{path}: ")
            problems.append(Problem(name, message, op=file_name.name, weakens=True))
    n_missing = len(set(mapping) - set(is_link))
    if n_missing:
        message = "names a file that is missing"
        problems.append(Problem(MAPPING, message, count=n_missing, weakens=True))
    if n_unknown:
        message = (
            "the name of an .npy file is not the dumper's, and mapping.csv does not translate it"
        )
        problems.append(Problem(".", message, count=n_unknown))
    return records


def _list_npy_files(folder: Path) -> dict[str, bool]:
    """Return the npy files of a folder, and whether each is a link.

    The folder's entries tell links from files, so no file is opened.
    """
    is_link = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".npy") and entry.is_file():
                is_link[entry.name] = entry.is_symlink()
    return is_link


def _read_npy_record(path: str, name: str, file_name: FileName) -> Record:
    try:
        with open_input_file(path, is_buffered=False) as file:
            length = os.fstat(file.fileno()).st_size
            header = npy.read_open_header(file, length, path)
            content = _hash_content(file.fileno(), header)
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror}") from error
    dtype = header.dtype
    if (
        normalize_dtype(file_name.dtype) == "bfloat16"
    ):  # Ascend converts on write and names the original
        dtype = "bfloat16"
    return Record(
        file_name.kind,
        encode_op_name(file_name.name),
        file_name.io,
        file_name.slot,
        file_name.time,
        dtype,
        header.shape,
        name,
        content=content,
        has_dtype_in_name=bool(file_name.dtype),
        full_name=file_name.name.replace("--", "/") if "--" in file_name.name else "",
    )


def _hash_content(file: int, header: npy.Header) -> Hashable:
    """Return the number of bytes and hashes of them, which are equal for equal data of any shape.

    The hash is that of all bytes, or of large files that of three blocks.
    """
    n_bytes = header.n_elements * header.itemsize
    start = header.offset
    if n_bytes <= _MAX_COMPLETE:
        return n_bytes, hash(os.pread(file, n_bytes, start))
    block_starts = (start, start + (n_bytes - _BLOCK) // 2, start + n_bytes - _BLOCK)
    return n_bytes, *(hash(os.pread(file, _BLOCK, position)) for position in block_starts)


def compute_content(values: tuple[float, ...] | None, dtype: str) -> Hashable:
    """Return the content that a file of these values has.

    None if values or dtype are insufficient.
    """
    is_known_dtype = dtype == "bool" or (dtype != "bfloat16" and BITS.search(dtype))
    if values is None or not is_known_dtype:
        return None
    try:
        data = np.array(values).astype(dtype).tobytes()
    except (TypeError, ValueError, OverflowError):
        return None
    return len(data), hash(data)


def _list_csv_records(statistics: Statistics) -> list[Record]:
    columns = zip(
        statistics.kind, statistics.name, statistics.io,
        statistics.slot.tolist(), statistics.time.tolist(), statistics.dtype,
        statistics.shape, zip(*statistics.contents, strict=True), strict=True,
    )  # fmt: skip
    encoded_names = {name: encode_op_name(name) for name in set(statistics.name)}
    return [
        Record(kind, encoded_names[name], io, slot, time, dtype, shape, "", row, content)
        for row, (kind, name, io, slot, time, dtype, shape, content) in enumerate(columns)
    ]


def _index_by_place(records: list[Record]) -> dict[Place, Record]:
    """Return the records by place.

    The same op recorded again (in a loop, or by a second run) gets the next occurrence.
    """
    last_occurrence: dict[tuple[str, str, int], int] = {}
    places: dict[Place, Record] = {}
    for record in sorted(records, key=attrgetter("time")):
        slot = (record.name, record.io, record.slot)
        occurrence = last_occurrence.get(slot, -1) + 1
        last_occurrence[slot] = record.occurrence = occurrence
        places[(*slot, occurrence)] = record
    return places


def _find_reruns(
    npy_records: list[Record], statistics: Statistics | None, folder: Path
) -> list[Problem]:
    """Report a second process that wrote into the same folder.

    It records everything again, after a pause. Only the npy files are looked at if there are any.
    """
    if npy_records or statistics is None:
        times = np.array([record.time for record in npy_records], dtype=np.int64)
    else:
        times = statistics.time
    sorted_times = np.sort(times)
    pauses = np.flatnonzero(np.diff(sorted_times) > _RERUN_PAUSE)
    if len(pauses) == 0:
        return []
    records = npy_records
    if not records and statistics is not None:
        records = _list_csv_records(statistics)
    run_of = np.searchsorted(sorted_times[pauses + 1], times, side="right").tolist()
    runs: defaultdict[int, set[tuple[str, str, int]]] = defaultdict(set)
    for run, record in zip(run_of, records, strict=True):
        runs[run].add((record.name, record.io, record.slot))
    first_run = runs.pop(0)
    min_repeated = _RERUN_SHARE * len(first_run)
    repeated_runs = [slots for slots in runs.values() if len(slots & first_run) >= min_repeated]
    if not repeated_runs:
        return []
    message = (
        f"the same step was recorded {len(repeated_runs) + 1} times into {folder.name}; "
        "the ops of later recordings have '#2' in their names"
    )
    n_repeated = sum(len(slots & first_run) for slots in repeated_runs)
    return [Problem(".", message, count=n_repeated, weakens=True)]


def _describe_variant(npy_records: list[Record], statistics: Statistics | None) -> str:
    """Return in words which versions of MindSpore write such files."""
    variants = []
    if npy_records:
        variants.append(_describe_npy_variant(npy_records))
    if statistics is not None:
        variants.append(statistics.format_variant)
    return ", ".join(variants)


def _describe_npy_variant(records: list[Record]) -> str:
    if any(record.full_name for record in records):
        return "npy files of before 2.3 ('--' for '/')"
    if any(record.has_dtype_in_name for record in records):
        return "npy files of 2.4 or newer"
    return "npy files of before 2.4"
