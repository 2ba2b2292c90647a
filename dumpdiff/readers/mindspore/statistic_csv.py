"""Reads ``statistic.csv``, in every generation of MindSpore's dumper.

The header decides: columns are found by name, in any order. Up to 2.2 the statistics were fixed; from 2.3 on the user
chooses them and their order, and rows (not the header) end in a comma; GE writes ``Input/Output`` for ``IO``
and ``MD5 Value``. Numbers are printed by a C++ stream with its default of 6 significant digits.
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

from ...model.dtypes import normalise
from ...model.errors import DumpError
from ...model.trace import Problem
from ..npy import validate_shape

RESOLUTION = (
    1e-6  #: relative, of numbers with 6 significant digits (std::ostream's default precision)
)

_ALIASES = {"input/output": "io", "nan count": "nan", "md5 value": "md5"}
_COLUMNS = {
    "op type": "kind", "op name": "name", "timestamp": "time", "io": "io", "slot": "slot", "data size": "bytes",
    "data type": "dtype", "shape": "shape", "task id": "task", "stream id": "stream", "max value": "max",
    "min value": "min", "avg value": "mean", "l2norm value": "norm", "negative inf count": "negative_inf",
    "positive inf count": "positive_inf", "md5": "md5", "sha1": "sha1", **_ALIASES,
}  # fmt: skip
_NEEDED = ("kind", "name", "time", "io", "slot", "bytes", "dtype", "shape")
_STATISTICS = ("max", "min", "mean", "norm")
_MAY_DIFFER = {
    "kind",
    "name",
    "io",
    "slot",
    "time",
    "task",
    "stream",
    "shape",
}  #: between equal tensors
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
    nonfinite: NDArray[Any]  #: int8: 1, 0, or -1 where it cannot be told
    hash: list[str]
    printed: list[
        tuple[str, ...]
    ]  #: size, dtype and all statistics as printed: equal tensors print the same
    era: str
    recorded: frozenset[str]  #: which of max, min, mean, norm the file has


def is_statistic_csv(path: Path) -> bool:
    """Judged by content: every column a statistic.csv needs, and a first row (if any) that fits them."""
    try:
        with open(path, newline="", encoding="utf-8", errors="replace") as file:
            rows = list(islice(csv.reader(islice(file, 50)), 2))
    except (OSError, csv.Error):
        return False
    if not rows:
        return False
    at = _header(rows[0])
    if any(column not in at for column in _NEEDED):
        return False
    return len(rows) == 1 or _fitting(at)(rows[1])


def read_statistic_csv(path: Path) -> tuple[Statistics, list[Problem]]:
    """All rows that can be read, and the problems of those that cannot. Raises DumpError if there is not one."""
    problems: list[Problem] = []
    rows: list[list[str]] = []
    bad: list[int] = []
    try:
        with open(path, newline="", encoding="utf-8", errors="replace") as file:
            reader = csv.reader(line.replace("\0", "") if "\0" in line else line for line in file)
            header = next(reader, [])
            at = _header(header)
            missing = [column for column in _NEEDED if column not in at]
            if missing:
                raise DumpError(
                    f"{path}: no statistic.csv: columns {', '.join(missing)} are missing"
                )
            fits = _fitting(at)
            for row in reader:
                if fits(row):
                    rows.append(row)
                elif row and not (
                    row[0] == header[0] and _header(row) == at
                ):  # appended runs repeat the header
                    bad.append(reader.line_num)
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror}") from error
    except csv.Error as error:
        problems.append(Problem(path.name, f"reading stopped: {error}", len(rows) + 2))
    if not rows:
        raise DumpError(f"{path}: has a header but no row of statistics")
    if bad:
        problems.append(Problem(path.name, "row does not fit the header", bad[0], len(bad)))
    return _columns(rows, at, header), problems


def _is_count(text: str) -> bool:
    """A number that fits into 64 bits."""
    return text.isdecimal() and len(text) <= 18


def _header(names: Sequence[str]) -> dict[str, int]:
    said = [name.strip().strip("\ufeff").strip('"').lower() for name in names]
    return {_COLUMNS.get(name, name): at for at, name in enumerate(said) if name}


def _fitting(at: dict[str, int]) -> Callable[[Sequence[str]], bool]:
    """Whether a row has what the header says: as many cells (one more if it is empty), counts, input or output."""
    width, slot, time, io = len(at), at["slot"], at["time"], at["io"]

    def fits(row: Sequence[str]) -> bool:
        return (
            (len(row) == width or (len(row) == width + 1 and not row[-1].strip()))
            and row[io].strip() in _IO
            and _is_count(row[slot].strip())
            and _is_count(row[time].strip())
        )

    return fits


def _columns(rows: list[list[str]], at: dict[str, int], header: Sequence[str]) -> Statistics:
    table = list(zip(*(row[: len(header)] for row in rows), strict=True))

    @cache
    def texts(column: str) -> Sequence[str]:
        return list(map(str.strip, table[at[column]])) if column in at else [""] * len(rows)

    statistics = {column: _numbers(texts(column)) for column in _STATISTICS}
    identity = sorted(at[column] for column in at if column not in _MAY_DIFFER)
    shapes = {text: _shape(text) for text in set(texts("shape"))}
    dtypes = {text: normalise(text) for text in set(texts("dtype"))}
    sizes = [int(text) if _is_count(text) else -1 for text in texts("bytes")]
    return Statistics(
        kind=list(texts("kind")),
        name=list(texts("name")),
        io=list(texts("io")),
        slot=[int(text) for text in texts("slot")],
        time=[int(text) for text in texts("time")],
        bytes=sizes,
        dtype=[dtypes[text] for text in texts("dtype")],
        shape=[shapes[text] for text in texts("shape")],
        **statistics,
        nonfinite=_nonfinite(
            {
                column: _finite(texts(column), statistics[column])
                for column in ("max", "min", "norm")
            },
            [
                _numbers(texts(column))
                for column in ("nan", "negative_inf", "positive_inf")
                if column in at
            ],
        ),
        hash=[md5 or sha1 for md5, sha1 in zip(texts("md5"), texts("sha1"), strict=True)],
        printed=list(zip(*(table[column] for column in identity), strict=True)),
        era=_era(header, at),
        recorded=frozenset(column for column in _STATISTICS if column in at),
    )


def _numbers(texts: Iterable[str]) -> NDArray[Any]:
    texts = list(texts)
    try:
        return np.array(
            list(map(float, texts))
        )  # nan, inf and -nan included; fast, and nearly always right
    except ValueError:
        return np.array([_number(text) for text in texts], dtype=np.float64)


def _number(text: str) -> float:
    word = _WORDS.get(text.lower())
    if word is not None:
        return word
    try:
        return float(text)
    except ValueError:
        return np.nan


def _finite(texts: Sequence[str], numbers: NDArray[Any]) -> NDArray[Any]:
    """1 for a finite number, 0 for inf or a printed nan, -1 where nothing was recorded."""
    absent = {text for text in set(texts) if text.lower() in _ABSENT}
    recorded = np.array([text not in absent for text in texts])
    return np.where(recorded, np.isfinite(numbers), -1).astype(np.int8)


def _nonfinite(finite: dict[str, NDArray[Any]], counts: list[NDArray[Any]]) -> NDArray[Any]:
    """Whether a tensor holds NaN or Inf: by its counts of them, else by max and min, else by the norm.

    Up to 2.2 NaN and Inf were left out of max and min, but the counts were always there; since 2.3 NaN is sticky.
    """
    high, low, norm = finite["max"], finite["min"], finite["norm"]
    told = np.where((high == 0) | (low == 0), 1, np.where((high == 1) & (low == 1), 0, -1)).astype(
        np.int8
    )
    told = np.where((told < 0) & (norm >= 0), 1 - norm, told)
    if counts:
        known = ~np.isnan(counts[0])
        total = np.nansum(counts, axis=0)
        told[known & (total > 0)] = 1
        if len(counts) == 3:
            told[known & (total == 0)] = 0
    return told


def _shape(text: str) -> tuple[int, ...] | None:
    """
    >>> _shape("(2,8,32)"), _shape("()"), _shape("(5,)"), _shape("unknown")
    ((2, 8, 32), (), (5,), None)
    """
    inner = text.strip('"').strip()
    if not (inner[:1] in "([" and inner[-1:] in ")]" and len(inner) >= 2):
        return None
    try:
        return validate_shape(int(size) for size in inner[1:-1].split(",") if size.strip())
    except ValueError:
        return None


def _era(header: Sequence[str], at: dict[str, int]) -> str:
    names = [name.strip().lower() for name in header]
    if "input/output" in names:
        return "statistic.csv of the GE dumper (Input/Output)"
    if "positive zero count" in at and "norm" not in at:
        return "statistic.csv up to 2.3.0-rc2 (fixed columns)"
    return "statistic.csv of 2.3 or newer (chosen columns)"
