"""The pairs as CSV: one row per pair of aligned tensors, in the target's execution order."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, repeat
from typing import IO, Any

import numpy as np
import orjson
import pandas as pd

from ...model.arrays import AnyArray, Floats
from ...model.background import Background, can_fork
from ...model.result import PAIR_COLUMNS, Result
from ...model.shared_memory import create_shared_memory
from ..formats.csv import encode_lines, format_cell, format_rows, format_texts

_ROWS_PER_BLOCK = 4_000  #: rows that are formatted and written at once
#: Rows from which on two processes format them: 20,000 take 0.15 s, which is ten times as long as
#: to copy a process.
_MIN_SHARED_ROWS = 20_000


def write(result: Result, stream: IO[bytes]) -> None:
    """Write every column of PAIR_COLUMNS, then any further column, as UTF-8 with a header row.

    Numbers have the fewest digits that read back as the same float64; NaN (not measured) is an
    empty cell, infinity is ``inf``; shapes are Python tuples. Text that a spreadsheet would run
    gets a leading apostrophe. Lines end with CR LF (RFC 4180).
    """
    names = list_columns(result.pairs)
    stream.write(format_rows([names]))
    if len(result.pairs) < _MIN_SHARED_ROWS or not can_fork():
        _write_rows(result.pairs, names, stream)
        return
    middle = len(result.pairs) // 2
    with os.fdopen(create_shared_memory(), "w+b") as later_lines:
        pending = Background(_write_later_rows, result.pairs.iloc[middle:], names, later_lines)
        _write_rows(result.pairs.iloc[:middle], names, stream)
        pending.get_reply()
        later_lines.seek(0)
        shutil.copyfileobj(later_lines, stream)


def _write_rows(pairs: pd.DataFrame, names: Sequence[str], stream: IO[bytes]) -> None:
    for lines in format_blocks(pairs, names):
        stream.write(encode_lines(lines))


def _write_later_rows(pairs: pd.DataFrame, names: Sequence[str], stream: IO[bytes]) -> None:
    """Write rows into a file of their own, which an attempt that failed may have begun."""
    stream.seek(0)
    stream.truncate()
    _write_rows(pairs, names, stream)
    stream.flush()  # in a copy of the process, nothing else does it


def list_columns(pairs: pd.DataFrame) -> list[str]:
    """Return the columns of PAIR_COLUMNS, then any further column of the table."""
    return [*PAIR_COLUMNS, *(name for name in pairs.columns if name not in PAIR_COLUMNS)]


def format_blocks(pairs: pd.DataFrame, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the rows as finished lines, a block of them at a time."""
    for start in range(0, len(pairs), _ROWS_PER_BLOCK):
        block = pairs.iloc[start : start + _ROWS_PER_BLOCK]
        columns = _join_equal_cells([_format_column(block[name]) for name in names], len(block))
        yield [",".join(cells) for cells in zip(*columns, strict=True)]


def _join_equal_cells(columns: Iterable[list[str] | str], n_rows: int) -> list[Iterable[str]]:
    """Return the columns with neighbors that have one cell for all rows as a single column.

    In most tables these are the measures of whole tensors, of which there are none.
    """
    joined_columns: list[Iterable[str]] = []
    for is_single, group in groupby(columns, lambda column: isinstance(column, str)):
        if is_single:
            joined_columns.append(repeat(",".join(map(str, group)), n_rows))
        else:
            joined_columns += group
    return joined_columns


def _format_column(column: pd.Series[Any]) -> list[str] | str:
    """Return the cells of a column, or a single one if all are equal."""
    values = column.to_numpy()
    if values.dtype.kind == "f":
        return "" if np.isnan(values).all() else _format_numbers(values.astype(np.float64))
    if values.dtype.kind == "i":
        return _format_integers(values)
    if values.dtype == object and isinstance(values[0], str):
        texts = values.tolist()
        if texts.count(texts[0]) == len(texts):
            return format_cell(texts[0])
        try:
            return format_texts(texts)
        except TypeError:
            pass  # not only texts
    codes, distinct_values = pd.factorize(values, use_na_sentinel=False)
    cells = [format_cell(value) for value in distinct_values.tolist()]
    if len(cells) == 1:
        return cells[0]
    return [cells[code] for code in codes.tolist()]


def _format_integers(values: AnyArray) -> list[str]:
    """Format whole numbers with the JSON writer."""
    text = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY).decode()
    return text[1:-1].split(",")


def _format_numbers(values: Floats) -> list[str]:
    """Format numbers with the JSON writer, which is several times as fast as repr.

    It writes both NaN and infinity as null.
    """
    text = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY).decode()
    cells = text[1:-1].replace("null", "").split(",")
    for row in np.flatnonzero(np.isinf(values)):
        cells[row] = str(values[row])
    return cells
