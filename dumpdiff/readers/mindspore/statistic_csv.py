"""Read ``statistic.csv`` of MindSpore's dumper, of every version.

Columns are found by their names in the header, in any order. Up to 2.2 the statistics are fixed.
From 2.3 on the user chooses them and their order, and rows (not the header) end in a comma. GE
writes ``Input/Output`` instead of ``IO``, and ``MD5 Value``. Numbers are printed by a C++ stream
with its default of 6 significant digits.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...model.arrays import AnyArray, Floats, Ints, Objects
from ...model.dtypes import normalize_dtype
from ...model.errors import DumpError
from ...model.input_files import open_input_text, read_input_bytes
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
_IDENTITY_COLUMNS = {"kind", "name", "io", "slot", "time", "shape"}
_UNUSED_COLUMNS = {"task", "stream"}
_REPEATED_COLUMNS = ("kind", "io", "bytes", "dtype", "shape")  #: required texts of few words
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

    kind: Objects
    name: Objects  #: encoded op name
    io: Objects
    slot: Ints
    time: Ints  #: microseconds since 1970
    bytes: Ints  #: -1 if unreadable
    dtype: Objects
    shape: Objects  #: tuples of ints, None where unknown
    max: NDArray[Any]  #: float64, NaN where not recorded
    min: NDArray[Any]
    mean: NDArray[Any]
    norm: NDArray[Any]
    nonfinite: NDArray[Any]  #: int8: 1, 0, or -1 where it is unknown
    hash: Objects
    #: columns of size, dtype and all statistics as printed, or as the bits of the numbers; equal
    #: tensors have the same
    contents: tuple[AnyArray, ...]
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
    try:
        with open_input_text(path, newline="") as file:
            header: list[str] = next(_read_rows(file), [])
            positions = _parse_header(header)
            missing_columns = [name for name in _REQUIRED_COLUMNS if name not in positions]
            if missing_columns:
                raise DumpError(
                    f"{path}: no statistic.csv: columns {', '.join(missing_columns)} are missing"
                )
        table = _read_clean_table(path, header, positions)
        if table is None:
            table = _read_table_by_row(path, positions, header, problems)
    except (OSError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DumpError(f"{path}: cannot be read: {reason}") from error
    if table is None:
        raise DumpError(f"{path}: has a header but no row of statistics")
    columns = {
        column: table[position]
        for column, position in sorted(positions.items(), key=itemgetter(1))
        if column not in _UNUSED_COLUMNS
    }
    columns["name"] = _strip_texts(columns["name"])
    not_recorded = np.full(len(columns["name"]), np.nan)
    numbers = {
        column: _parse_numbers(columns[column]) if column in columns else not_recorded.copy()
        for column in _STATISTICS
    }
    problems += _find_undefined_norms(columns, numbers, path.name)
    return _build_statistics(columns, numbers, header), problems


def _read_rows(file: Iterable[str]) -> Any:
    """Return a reader of the rows of a file without its NUL characters."""
    return csv.reader(line.replace("\0", "") if "\0" in line else line for line in file)


def _read_clean_table(
    path: Path, header: Sequence[str], positions: dict[str, int]
) -> dict[int, AnyArray] | None:
    """Return position -> column of a file whose rows all fit its header, None of any other file.

    pandas' parser is ten times as fast as a loop over the rows, but cannot say which rows it
    misread. So this is given up at anything unusual. Statistics are numbers if all of them are
    printed as numbers other than NaN, else text.
    """
    data = read_input_bytes(path)
    n_rows = data.count(b"\n") + (not data.endswith(b"\n")) - 1
    width = len(positions)
    if n_rows < 1 or len(header) != width or b"\0" in data or b"\r" in data:
        return None
    unused = [positions[column] for column in _UNUSED_COLUMNS if column in positions]
    # the last column is empty: rows may end in a comma
    dtypes: dict[int, Any] = {
        position: object for position in range(width + 1) if position not in unused
    }
    dtypes |= {positions[column]: np.int64 for column in ("slot", "time")}
    dtypes |= {positions[column]: "category" for column in _REPEATED_COLUMNS}
    number_dtypes = {positions[column]: np.float64 for column in _STATISTICS if column in positions}
    frame = _parse_table(data, dtypes | number_dtypes)
    if frame is None:
        frame = _parse_table(data, dtypes)
    if frame is None or len(frame) != n_rows:
        return None
    columns: dict[int, Any] = {}
    for position, dtype in dtypes.items():
        values = frame[position]
        columns[position] = values.array if dtype == "category" else values.to_numpy()
    return columns if _fits_header(columns, positions) else None


def _parse_table(data: bytes, dtypes: Mapping[int, Any]) -> pd.DataFrame | None:
    """Return these columns of a file, None if they do not have these dtypes."""
    try:
        return pd.read_csv(
            io.BytesIO(data),
            header=None,
            skiprows=1,
            names=range(max(dtypes) + 1),
            usecols=list(dtypes),
            index_col=False,
            dtype=dtypes,
            low_memory=False,
            na_filter=False,
            on_bad_lines="error",
            float_precision="round_trip",  # others differ from Python's in the last bit
        )
    except (ValueError, OverflowError, pd.errors.ParserError):
        return None


def _fits_header(columns: Mapping[int, AnyArray], positions: dict[str, int]) -> bool:
    """Return whether all rows fit the header, judged as :func:`_make_row_check` does."""
    width = len(positions)
    # a row without its last cells looks like one whose last cells are empty
    if width - 1 not in columns:
        return False
    last_column = columns[width - 1]
    if last_column.dtype != np.float64 and (last_column == "").any():
        return False
    if any(text.strip() for text in pd.unique(columns[width])):
        return False
    if any(text.strip() not in _IO for text in pd.unique(columns[positions["io"]])):
        return False
    for column in ("slot", "time"):
        numbers = columns[positions[column]]
        if numbers.min() < 0 or numbers.max() >= 10**_MAX_COUNT_DIGITS:
            return False
    return True


def _read_table_by_row(
    path: Path, positions: dict[str, int], header: Sequence[str], problems: list[Problem]
) -> dict[int, AnyArray] | None:
    """Return position -> column of the rows that fit the header, None if there is none.

    Problems of the others are added to ``problems``. Raises OSError.
    """
    rows: list[list[str]] = []
    bad_lines: list[int] = []
    fits = _make_row_check(positions)
    with open_input_text(path, newline="") as file:
        reader = _read_rows(file)
        try:
            next(reader)
            for row in reader:
                if fits(row):
                    rows.append(row)
                elif row and not _is_header(row, header, positions):
                    bad_lines.append(reader.line_num)
        except csv.Error as error:
            message = f"reading stopped: {error}"
            problems.append(Problem(path.name, message, len(rows) + 2, weakens=True))
    if rows and bad_lines:
        message = "row does not fit the header"
        problem = Problem(path.name, message, bad_lines[0], len(bad_lines), weakens=True)
        problems.append(problem)
    if not rows:
        return None
    table: dict[int, AnyArray] = {}
    for position, texts in enumerate(zip(*(row[: len(header)] for row in rows), strict=True)):
        is_count = position in (positions["slot"], positions["time"])
        table[position] = np.array(texts, dtype=np.int64 if is_count else object)
    return table


def _find_undefined_norms(
    columns: Mapping[str, AnyArray], statistics: Mapping[str, Floats], file: str
) -> list[Problem]:
    """Return a problem if a mean or norm is printed as NaN although max and min are finite.

    A sum that overflows is infinite; no finite elements have a NaN as mean or norm.
    """
    has_limits = np.isfinite(statistics["max"]) & np.isfinite(statistics["min"])
    bad_rows: set[int] = set()
    for column in ("mean", "norm"):
        if column in columns:
            # few rows: most sums are numbers
            for row in np.flatnonzero(has_limits & np.isnan(statistics[column])).tolist():
                if "nan" in columns[column][row].lower():  # text, where any is no number
                    bad_rows.add(row)
    if not bad_rows:
        return []
    name = columns["name"][min(bad_rows)]
    message = f"mean or norm is NaN although max and min are finite: {name}"
    return [Problem(file, message, count=len(bad_rows), op=name, weakens=True)]


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
    columns: Mapping[str, AnyArray], numbers: Mapping[str, Floats], header: Sequence[str]
) -> Statistics:
    n_rows = len(columns["name"])
    is_finite = {
        column: _classify_finite(columns.get(column), numbers[column])
        for column in ("max", "min", "norm")
    }
    count_columns = [name for name in ("nan", "negative_inf", "positive_inf") if name in columns]
    counts = [_parse_numbers(columns[column]) for column in count_columns]
    no_texts: Objects = np.full(n_rows, "", dtype=object)
    md5, sha1 = (
        _strip_texts(columns[column]) if column in columns else no_texts
        for column in ("md5", "sha1")
    )
    return Statistics(
        kind=_strip_texts(columns["kind"]),
        name=columns["name"],
        io=_strip_texts(columns["io"]),
        slot=columns["slot"],
        time=columns["time"],
        bytes=_map_texts(columns["bytes"], _parse_size).astype(np.int64),
        dtype=_map_texts(columns["dtype"], _normalize_printed_dtype),
        shape=_map_texts(columns["shape"], _parse_shape),
        **numbers,
        nonfinite=_classify_nonfinite(is_finite, counts),
        hash=np.where(md5 != "", md5, sha1),
        contents=_list_contents(columns),
        format_variant=_describe_variant(header, columns),
        recorded=frozenset(column for column in _STATISTICS if column in columns),
    )


def _list_contents(columns: Mapping[str, AnyArray]) -> tuple[AnyArray, ...]:
    """Return the columns by which equal tensors are recognized, texts first."""
    contents = [values for column, values in columns.items() if column not in _IDENTITY_COLUMNS]
    texts = [np.asarray(values, dtype=object) for values in contents if values.dtype != np.float64]
    bits = [values.view(np.int64) for values in contents if values.dtype == np.float64]
    return (*texts, *bits)


def _normalize_printed_dtype(text: str) -> str:
    return normalize_dtype(text.strip())


def _strip_texts(texts: AnyArray) -> Objects:
    return _map_texts(texts, str.strip)


def _parse_size(text: str) -> int:
    stripped_text = text.strip()
    return int(stripped_text) if _is_count(stripped_text) else -1


def _map_texts(texts: AnyArray | pd.Categorical, function: Callable[[str], Any]) -> Objects:
    """Return the function of every text; it is called once for each different one."""
    if isinstance(texts, pd.Categorical):
        codes, words = texts.codes, texts.categories
    else:
        codes, words = pd.factorize(texts)
    mapped: Objects = _build_objects([function(word) for word in words])[codes]
    return mapped


def _build_objects(values: Sequence[Any]) -> Objects:
    """Return an array of Python objects, also of tuples."""
    return np.fromiter(values, dtype=object, count=len(values))


def _parse_numbers(texts: AnyArray) -> Floats:
    if texts.dtype == np.float64:
        return texts
    try:
        # accepts nan, inf and -nan; fast, and nearly always sufficient
        return texts.astype(np.float64)
    except ValueError:
        return np.array([_parse_number(text.strip()) for text in texts.tolist()], dtype=np.float64)


def _parse_number(text: str) -> float:
    word = _WORDS.get(text.lower())
    if word is not None:
        return word
    try:
        return float(text)
    except ValueError:
        return np.nan


def _classify_finite(texts: AnyArray | None, numbers: Floats) -> NDArray[np.int8]:
    """Return 1 for a finite number, 0 for inf or a printed nan, -1 where nothing was recorded."""
    classes = np.isfinite(numbers).astype(np.int8)
    if texts is None:
        return np.full(len(numbers), -1, dtype=np.int8)
    for row in np.flatnonzero(np.isnan(numbers)).tolist():
        if texts[row].strip().lower() in _ABSENT:
            classes[row] = -1
    return classes


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
    bracketed = text.strip().strip('"').strip()
    if len(bracketed) < 2:
        return None
    if bracketed[0] not in "([" or bracketed[-1] not in ")]":
        return None
    extents = [extent for extent in bracketed[1:-1].split(",") if extent.strip()]
    try:
        return validate_shape(map(int, extents))
    except ValueError:
        return None


def _describe_variant(header: Sequence[str], columns: Collection[str]) -> str:
    """Return in words which dumper writes such a header."""
    names = [name.strip().lower() for name in header]
    if "input/output" in names:
        return "statistic.csv of the GE dumper (Input/Output)"
    if "positive zero count" in columns and "norm" not in columns:
        return "statistic.csv up to 2.3.0-rc2 (fixed columns)"
    return "statistic.csv of 2.3 or newer (chosen columns)"
