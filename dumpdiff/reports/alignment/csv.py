"""The pairs as CSV, for spreadsheets: one row per pair of aligned tensors, in the order of the target's execution."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import IO, Any

import numpy as np
import orjson
import pandas as pd

from ...model.result import PAIR_COLUMNS, Result

#: What makes a spreadsheet take a text cell for a formula (OWASP, "CSV Injection"); the apostrophe itself is
#: escaped too, so that dropping one leading apostrophe always gives the recorded text back.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "'")
_QUOTED = re.compile('[,"\r\n]').search  #: RFC 4180: what puts a cell in quotes
_LINES = 10_000  #: written at once


def write(result: Result, stream: IO[bytes]) -> None:
    """Write every column of PAIR_COLUMNS, then any further column, as UTF-8 with a header row.

    Numbers have the fewest digits that read back as the same float64; NaN (not measured) is an empty cell,
    infinity is ``inf``; shapes are Python tuples. Text that a spreadsheet would run gets a leading apostrophe.
    Lines end with CR LF (RFC 4180).
    """
    names = [
        *PAIR_COLUMNS,
        *(column for column in result.pairs.columns if column not in PAIR_COLUMNS),
    ]
    stream.write(_lines([[_cell(name)] for name in names]))
    for start in range(0, len(result.pairs), _LINES):
        block = result.pairs.iloc[start : start + _LINES]
        stream.write(_lines([_cells(block[name]) for name in names]))


def rows_of(rows: Iterable[Sequence[object]]) -> bytes:
    """Any rows in this project's form of CSV, the header first."""
    return "".join(f"{','.join(map(_cell, row))}\r\n" for row in rows).encode(
        "utf-8", errors="backslashreplace"
    )


def _lines(columns: list[list[str]]) -> bytes:
    rows = map(",".join, zip(*columns, strict=True))
    return "".join(f"{row}\r\n" for row in rows).encode("utf-8", errors="backslashreplace")


def _cells(column: pd.Series[Any]) -> list[str]:
    values = column.to_numpy()
    if values.dtype.kind == "f":
        return _numbers(values.astype(np.float64))
    codes, distinct = pd.factorize(values, use_na_sentinel=False)
    cells = [_cell(value) for value in distinct.tolist()]
    return [cells[code] for code in codes.tolist()]


def _numbers(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[str]:
    """The digits of the JSON writer, several times as fast as repr; NaN and infinity are both its null."""
    text = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY).decode()
    cells = text[1:-1].replace("null", "").split(",")
    for row in np.flatnonzero(np.isinf(values)):
        cells[row] = str(values[row])
    return cells


def _cell(value: Any) -> str:
    if isinstance(value, str):
        text = f"'{value}" if value.startswith(_FORMULA) else value
    else:
        text = "" if pd.isna(value) else str(value)
    return '"' + text.replace('"', '""') + '"' if _QUOTED(text) else text
