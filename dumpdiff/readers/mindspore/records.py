"""What one iteration folder holds, whatever it consists of: npy files, a statistic.csv, or both joined."""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

import numpy as np

from ...model.dtypes import normalise
from ...model.errors import DumpError
from ...model.trace import Problem
from .. import npy
from .file_names import MAPPING, FileName, encode_op_name, parse_file_name, read_mapping
from .statistic_csv import Statistics, read_statistic_csv

CSV = "statistic.csv"
_WHOLE, _BLOCK = (
    192 * 1024,
    16 * 1024,
)  #: bytes: files up to the first are compared whole, larger ones by three blocks
_RERUN_GAP = 1_000_000  #: microseconds; no step pauses that long between two of its files, starting a process takes longer

_BITS = re.compile(r"(?:int|float|complex)([1-9]\d{0,2})$")

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
    content: Hashable = None  #: equal for equal tensors; None if nothing is known of the content
    occurrence: int = 0
    has_dtype_in_name: bool = False  #: the file name tells the dtype
    full_name: str = (
        ""  #: full name with slashes, where the file name lets it be read back (before 2.3)
    )


@dataclass
class Records:
    """All recorded tensors of one iteration."""

    places: dict[Place, Record]
    statistics: Statistics | None
    n_files: int  #: npy files that could be read
    era: str
    problems: list[Problem] = field(default_factory=list)


def is_npy_folder(folder: Path, names: Sequence[str]) -> bool:
    """Judged by content: a name of the dumper (or one that mapping.csv translates), and an .npy file behind it."""
    mapped: dict[str, str] = {}
    if MAPPING in names:
        try:
            mapped = read_mapping(folder)
        except DumpError:
            mapped = {}
    tried = 0
    for name in names:
        if name.endswith(".npy") and parse_file_name(mapped.get(name, name)) and (folder / name).is_file():
            try:
                npy.read_header(folder / name)
            except DumpError:
                tried += 1
                if tried >= 20:
                    return False
            else:
                return True
    return False


def read_records(folder: Path, csv: Path | None, whole_folder: bool = True) -> Records:
    """The records of ``folder``, joined with those of ``csv``. Raises DumpError if there is not one."""
    problems: list[Problem] = []
    from_files = _npy_records(folder, problems) if whole_folder else []
    statistics = None
    from_csv: list[Record] = []
    if csv is not None:
        try:
            statistics, found = read_statistic_csv(csv)
            problems += found
            from_csv = _csv_records(statistics)
        except DumpError as error:
            if not from_files:
                raise
            problems.append(Problem(csv.name, str(error)))
    if not from_files and not from_csv:
        raise DumpError(f"{folder}: not one tensor in it can be read")
    problems += _reruns(from_files or from_csv, folder)
    places = _by_place(from_files)
    for place, record in _by_place(from_csv).items():
        known = places.setdefault(place, record)
        if known is not record:
            known.row = record.row
            known.shape = record.shape if record.shape is not None else known.shape
    return Records(places, statistics, len(from_files), _era(from_files, statistics), problems)


def _npy_records(folder: Path, problems: list[Problem]) -> list[Record]:
    try:
        mapped = read_mapping(folder)
    except DumpError as error:
        mapped = {}
        problems.append(Problem(MAPPING, str(error)))
    records, unknown = [], 0
    with os.scandir(folder) as entries:  # tells files from links without a look at each
        linked = {
            entry.name: entry.is_symlink()
            for entry in entries
            if entry.name.endswith(".npy") and entry.is_file()
        }
    for name in sorted(linked):
        path = os.path.join(folder, name)
        said = parse_file_name(mapped.get(name, name))
        if said is None:
            unknown += 1
            continue
        try:
            if linked[name]:
                npy.resolve_inside(folder, name)
            records.append(_npy_record(path, name, said))
        except DumpError as error:
            problems.append(Problem(name, str(error).removeprefix(f"{path}: ")))
    lost = len(set(mapped) - set(linked))
    if lost:
        problems.append(Problem(MAPPING, "names a file that is not there", count=lost))
    if unknown:
        problems.append(
            Problem(
                ".",
                "an .npy file whose name is not the dumper's and that mapping.csv lacks",
                count=unknown,
            )
        )
    return records


def _npy_record(path: str, name: str, said: FileName) -> Record:
    try:
        with open(path, "rb", buffering=0) as file:
            length = os.fstat(file.fileno()).st_size
            header = npy.read_open_header(file, length, path)
            content = _content(file.fileno(), header, length)
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror}") from error
    dtype = header.dtype
    if normalise(said.dtype) == "bfloat16":  # Ascend converts on write and names the original
        dtype = "bfloat16"
    record = Record(
        said.kind, encode_op_name(said.name), said.io, said.slot, said.time, dtype, header.shape, name
    )
    record.content, record.has_dtype_in_name = content, bool(said.dtype)
    record.full_name = said.name.replace("--", "/") if "--" in said.name else ""
    return record


def _content(file: int, header: npy.Header, length: int) -> Hashable:
    """Equal for equal data whatever the shape: the bytes' hash, of large files that of three blocks."""
    count = header.n_elements * header.itemsize
    start = header.offset
    if count <= _WHOLE:
        return count, hash(os.pread(file, count, start))
    middles = (start, start + (count - _BLOCK) // 2, start + count - _BLOCK)
    return count, *(hash(os.pread(file, _BLOCK, at)) for at in middles)


def compute_content(values: tuple[float, ...] | None, dtype: str) -> Hashable:
    """The content that a file of these values would have; None if the values or the dtype say too little."""
    known = dtype == "bool" or (dtype != "bfloat16" and _BITS.search(dtype))
    if values is None or not known:
        return None
    try:
        data = np.array(values).astype(dtype).tobytes()
    except (TypeError, ValueError, OverflowError):
        return None
    return len(data), hash(data)


def _csv_records(statistics: Statistics) -> list[Record]:
    columns = zip(
        statistics.kind, statistics.name, statistics.io, statistics.slot, statistics.time, statistics.dtype,
        statistics.shape, statistics.printed, strict=True,
    )  # fmt: skip
    encoded = {name: encode_op_name(name) for name in set(statistics.name)}
    return [
        Record(kind, encoded[name], io, slot, time, dtype, shape, "", row, printed)
        for row, (kind, name, io, slot, time, dtype, shape, printed) in enumerate(columns)
    ]


def _by_place(records: list[Record]) -> dict[Place, Record]:
    """Records by place; the same op recorded again (in a loop, or by a second run) is told apart by its occurrence."""
    seen: dict[tuple[str, str, int], int] = {}
    places: dict[Place, Record] = {}
    for record in sorted(records, key=attrgetter("time")):
        slot = (record.name, record.io, record.slot)
        seen[slot] = occurrence = seen.get(slot, -1) + 1
        record.occurrence = occurrence
        places[(*slot, occurrence)] = record
    return places


def _reruns(records: list[Record], folder: Path) -> list[Problem]:
    """A second process that wrote into the same folder: everything is there again after a pause."""
    times = np.array([record.time for record in records], dtype=np.int64)
    ordered = np.sort(times)
    pauses = np.flatnonzero(np.diff(ordered) > _RERUN_GAP)
    if len(pauses) == 0:
        return []
    run_of = np.searchsorted(ordered[pauses + 1], times, side="right").tolist()
    runs: defaultdict[int, set[tuple[str, str, int]]] = defaultdict(set)
    for run, record in zip(run_of, records, strict=True):
        runs[run].add((record.name, record.io, record.slot))
    first = runs[0]
    again = sum(1 for run, slots in runs.items() if run and len(slots & first) >= 0.9 * len(first))
    if not again:
        return []
    return [
        Problem(
            ".",
            f"the same step was recorded {again + 1} times into {folder.name}; its ops are told apart by '#2'",
        )
    ]


def count_elements(record: Record, statistics: Statistics | None) -> int:
    """Number of elements, -1 if unknown."""
    if record.shape is not None:
        return math.prod(record.shape)
    if statistics is None or record.row < 0 or statistics.bytes[record.row] < 0:
        return -1
    if record.dtype == "bool":
        return statistics.bytes[record.row]
    bits = _BITS.search(record.dtype)
    return statistics.bytes[record.row] * 8 // int(bits[1]) if bits else -1


def _npy_era(files: list[Record]) -> str:
    if any(record.full_name for record in files):
        return "npy files of before 2.3 ('--' for '/')"
    return (
        "npy files of 2.4 or newer"
        if any(record.has_dtype_in_name for record in files)
        else "npy files of before 2.4"
    )


def _era(files: list[Record], statistics: Statistics | None) -> str:
    said = []
    if files:
        said.append(_npy_era(files))
    if statistics is not None:
        said.append(statistics.era)
    return ", ".join(said)
