"""Read ``statistic.csv`` of MindSpore's dumper, of every version.

Columns are found by their names in the header, in any order. Up to 2.2 the statistics are fixed.
From 2.3 on the user chooses them and their order, and rows (not the header) end in a comma. GE
writes ``Input/Output`` instead of ``IO``, and ``MD5 Value``. Numbers are printed by a C++ stream
with its default of 6 significant digits.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...model.dtypes import normalize_dtype
from ...model.errors import DumpError
from ...model.input_files import open_input_text
from ...model.trace import Problem
from ...tensor_files.npy import validate_shape

#: Relative resolution of numbers with 6 significant digits (std::ostream's default precision).
RESOLUTION = 1e-6
_MAX_COUNT_DIGITS = 18  #: of a count that fits into 64 bits
_MAX_HEAD_LINES = 50  #: lines in which the header and the first row must end, to recognize the file

_ALIASES = {"input/output": "io", "nan count": "nan", "md5 value": "md5"}
_COLUMNS = {
    "op type": "kind", "op name": "name", "timestamp": "time", "io": "io", "slot": "slot",
    "data size": "bytes", "data type": "dtype", "shape": "shape", "task id": "task",
    "stream id": "stream", "max value": "max", "min value": "min", "avg value": "mean",
    "l2norm value": "norm", "negative inf count": "negative_inf",
    "positive inf count": "positive_inf", "md5": "md5", "sha1": "sha1", **_ALIASES,
}  # fmt: skip
_REQUIRED_COLUMNS = ("kind", "name", "time", "io", "slot", "bytes", "dtype", "shape")
_STATISTICS = ("max", "min", "mean", "norm")
#: Columns that may differ between equal tensors.
_IDENTITY_COLUMNS = {"kind", "name", "io", "slot", "time", "task", "stream", "shape"}
_WORDS = {
    "true": 1.0,
    "false": 0.0,
    "null": np.nan,
    "": np.nan,
    "-nan": np.nan,
    "-nan(ind)": np.nan,
}
_ABSENT = {"null", ""}
_IO = {"input", "output"}


class Statistics(NamedTuple):
    """The rows of one file, as columns of equal length."""

    kind: list[str]
    name: list[str]  #: encoded op name
    io: list[str]
    slot: list[int]
    time: list[int]  #: microseconds since 1970
    bytes: list[int]  #: -1 if unreadable
    dtype: list[str]
    shape: list[tuple[int, ...] | None]
    max: NDArray[Any]  #: float64, NaN where not recorded
    min: NDArray[Any]
    mean: NDArray[Any]
    norm: NDArray[Any]
    nonfinite: NDArray[Any]  #: int8: 1, 0, or -1 where it is unknown
    hash: list[str]
    #: size, dtype and all statistics as printed; equal tensors are printed the same
    printed: list[tuple[str, ...]]
    format_variant: str
    recorded: frozenset[str]  #: which of max, min, mean, norm the file has


def is_statistic_csv(path: Path) -> bool:
    """Whether the file is a statistic.csv, judged by content.

    It needs every required column, and a first row (if any) that fits them.
    """
    try:
        with open_input_text(path, newline="") as file:
            head_lines = islice(file, _MAX_HEAD_LINES)
            rows = list(islice(csv.reader(head_lines), 2))
    except (OSError, csv.Error):
        return False
    if not rows:
        return False
    positions = _parse_header(rows[0])
    if any(column not in positions for column in _REQUIRED_COLUMNS):
        return False
    return len(rows) == 1 or _make_row_check(positions)(rows[1])


def read_statistic_csv(path: Path) -> tuple[Statistics, list[Problem]]:
    """Return all rows that can be read, and the problems of the others.

    Raises DumpError if no row can be read.
    """
    problems: list[Problem] = []
    rows: list[list[str]] = []
    bad_lines: list[int] = []
    try:
        with open_input_text(path, newline="") as file:
            reader = csv.reader(line.replace("\0", "") if "\0" in line else line for line in file)
            header = next(reader, [])
            positions = _parse_header(header)
            missing_columns = [name for name in _REQUIRED_COLUMNS if name not in positions]
            if missing_columns:
                raise DumpError(
                    f"{path}: no statistic.csv: columns {', '.join(missing_columns)} are missing"
                )
            fits = _make_row_check(positions)
            for row in reader:
                if fits(row):
                    rows.append(row)
                elif row and not _is_header(row, header, positions):
                    bad_lines.append(reader.line_num)
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror}") from error
    except csv.Error as error:
        message = f"reading stopped: {error}"
        problems.append(Problem(path.name, message, len(rows) + 2, weakens=True))
    if not rows:
        raise DumpError(f"{path}: has a header but no row of statistics")
    if bad_lines:
        message = "row does not fit the header"
        problem = Problem(path.name, message, bad_lines[0], len(bad_lines), weakens=True)
        problems.append(problem)
    problems += _find_undefined_norms(rows, positions, path.name)
    return _build_statistics(rows, positions, header), problems


def _find_undefined_norms(
    rows: list[list[str]], positions: dict[str, int], file: str
) -> list[Problem]:
    """Return a problem if a mean or norm is printed as NaN although max and min are finite.

    A sum that overflows is infinite; no finite elements have a NaN as mean or norm.
    """
    sums = [positions[column] for column in ("mean", "norm") if column in positions]
    if "max" not in positions or "min" not in positions:
        return []
    names = []
    for row in rows:
        if any("nan" in row[position].lower() for position in sums):
            extremes = [_parse_number(row[positions[column]].strip()) for column in ("max", "min")]
            if np.isfinite(extremes).all():
                names.append(row[positions["name"]].strip())
    if not names:
        return []
    message = f"mean or norm is NaN although max and min are finite: {names[0]}"
    return [Problem(file, message, count=len(names), op=names[0], weakens=True)]


def _is_header(row: Sequence[str], header: Sequence[str], positions: dict[str, int]) -> bool:
    """Whether a row repeats the header, as it does where another run was appended."""
    return row[0] == header[0] and _parse_header(row) == positions


def _is_count(text: str) -> bool:
    """Whether the text is a number of at least 0 that fits into 64 bits."""
    return text.isdecimal() and len(text) <= _MAX_COUNT_DIGITS


def _parse_header(cells: Sequence[str]) -> dict[str, int]:
    """Return column -> position."""
    positions = {}
    for position, cell in enumerate(cells):
        name = cell.strip().strip("\ufeff").strip('"').lower()
        if name:
            positions[_COLUMNS.get(name, name)] = position
    return positions


def _make_row_check(positions: dict[str, int]) -> Callable[[Sequence[str]], bool]:
    """Return a function that tells whether a row fits the header.

    A row needs as many cells as the header (one more if it is empty), counts, and input or output.
    """
    width = len(positions)
    slot, time, io = positions["slot"], positions["time"], positions["io"]

    def fits(row: Sequence[str]) -> bool:
        has_empty_end = len(row) == width + 1 and not row[-1].strip()
        if len(row) != width and not has_empty_end:
            return False
        if row[io].strip() not in _IO:
            return False
        if not _is_count(row[slot].strip()):
            return False
        return _is_count(row[time].strip())

    return fits


def _build_statistics(
    rows: list[list[str]], positions: dict[str, int], header: Sequence[str]
) -> Statistics:
    table = list(zip(*(row[: len(header)] for row in rows), strict=True))

    @cache
    def get_texts(column: str) -> Sequence[str]:
        if column not in positions:
            return [""] * len(rows)
        return [text.strip() for text in table[positions[column]]]

    statistics = {column: _parse_numbers(get_texts(column)) for column in _STATISTICS}
    is_finite = {
        column: _classify_finite(get_texts(column), statistics[column])
        for column in ("max", "min", "norm")
    }
    count_columns = [name for name in ("nan", "negative_inf", "positive_inf") if name in positions]
    counts = [_parse_numbers(get_texts(column)) for column in count_columns]
    value_positions = sorted(
        position for column, position in positions.items() if column not in _IDENTITY_COLUMNS
    )
    shapes = {text: _parse_shape(text) for text in set(get_texts("shape"))}
    dtypes = {text: normalize_dtype(text) for text in set(get_texts("dtype"))}
    return Statistics(
        kind=list(get_texts("kind")),
        name=list(get_texts("name")),
        io=list(get_texts("io")),
        slot=[int(text) for text in get_texts("slot")],
        time=[int(text) for text in get_texts("time")],
        bytes=[int(text) if _is_count(text) else -1 for text in get_texts("bytes")],
        dtype=[dtypes[text] for text in get_texts("dtype")],
        shape=[shapes[text] for text in get_texts("shape")],
        **statistics,
        nonfinite=_classify_nonfinite(is_finite, counts),
        hash=[md5 or sha1 for md5, sha1 in zip(get_texts("md5"), get_texts("sha1"), strict=True)],
        printed=list(zip(*(table[position] for position in value_positions), strict=True)),
        format_variant=_describe_variant(header, positions),
        recorded=frozenset(column for column in _STATISTICS if column in positions),
    )


def _parse_numbers(texts: Iterable[str]) -> NDArray[Any]:
    texts = list(texts)
    try:
        # accepts nan, inf and -nan; fast, and nearly always sufficient
        return np.array([float(text) for text in texts])
    except ValueError:
        return np.array([_parse_number(text) for text in texts], dtype=np.float64)


def _parse_number(text: str) -> float:
    word = _WORDS.get(text.lower())
    if word is not None:
        return word
    try:
        return float(text)
    except ValueError:
        return np.nan


def _classify_finite(texts: Sequence[str], numbers: NDArray[Any]) -> NDArray[Any]:
    """Return 1 for a finite number, 0 for inf or a printed nan, -1 where nothing was recorded."""
    is_recorded_text = {text: text.lower() not in _ABSENT for text in set(texts)}
    is_recorded = np.array([is_recorded_text[text] for text in texts])
    return np.where(is_recorded, np.isfinite(numbers), -1).astype(np.int8)


def _classify_nonfinite(
    is_finite: dict[str, NDArray[Any]], counts: list[NDArray[Any]]
) -> NDArray[Any]:
    """Return 1 for a tensor with NaN or Inf, 0 for one without, -1 where it is unknown.

    Decided by the counts of NaN and Inf, else by max and min, else by the norm. Up to 2.2, max and
    min ignore NaN and Inf, but the counts are always recorded. Since 2.3, a NaN makes max and min
    NaN.
    """
    high, low, norm = is_finite["max"], is_finite["min"], is_finite["norm"]
    has_nonfinite_limit = (high == 0) | (low == 0)
    has_finite_limits = (high == 1) & (low == 1)
    nonfinite = np.where(has_nonfinite_limit, 1, np.where(has_finite_limits, 0, -1)).astype(np.int8)
    nonfinite = np.where((nonfinite < 0) & (norm >= 0), 1 - norm, nonfinite)
    if counts:
        is_counted = ~np.isnan(counts[0])
        total = np.nansum(counts, axis=0)
        nonfinite[is_counted & (total > 0)] = 1
        if len(counts) == 3:
            nonfinite[is_counted & (total == 0)] = 0
    return nonfinite


def _parse_shape(text: str) -> tuple[int, ...] | None:
    """Return a printed shape as a tuple, None if it is none.

    >>> _parse_shape("(2,8,32)"), _parse_shape("()"), _parse_shape("(5,)"), _parse_shape("unknown")
    ((2, 8, 32), (), (5,), None)
    """
    bracketed = text.strip('"').strip()
    if len(bracketed) < 2:
        return None
    if bracketed[0] not in "([" or bracketed[-1] not in ")]":
        return None
    extents = [extent for extent in bracketed[1:-1].split(",") if extent.strip()]
    try:
        return validate_shape(map(int, extents))
    except ValueError:
        return None


def _describe_variant(header: Sequence[str], positions: dict[str, int]) -> str:
    """Return in words which dumper writes such a header."""
    names = [name.strip().lower() for name in header]
    if "input/output" in names:
        return "statistic.csv of the GE dumper (Input/Output)"
    if "positive zero count" in positions and "norm" not in positions:
        return "statistic.csv up to 2.3.0-rc2 (fixed columns)"
    return "statistic.csv of 2.3 or newer (chosen columns)"
