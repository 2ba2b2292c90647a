"""The pairs as CSV, for spreadsheets: one row per pair of aligned tensors, in the order of the target's execution."""

from __future__ import annotations

from typing import IO, Any

import pandas as pd

from ..result import PAIR_COLUMNS, Result

#: What makes a spreadsheet take a text cell for a formula (OWASP, "CSV Injection"); the apostrophe itself is
#: escaped too, so that dropping one leading apostrophe always gives the recorded text back.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "'")


def write(result: Result, stream: IO[bytes]) -> None:
    """Write every column of PAIR_COLUMNS, then any further column, as UTF-8 with a header row.

    Numbers have the fewest digits that read back as the same float64; NaN (not measured) is an empty cell,
    infinity is ``inf``; shapes are Python tuples. Text that a spreadsheet would run gets a leading apostrophe.
    Lines end with CR LF (RFC 4180), which also makes the writer quote a name that holds either of them.
    """
    more = [column for column in result.pairs.columns if column not in PAIR_COLUMNS]
    table = result.pairs[[*PAIR_COLUMNS, *more]]
    safe = pd.DataFrame({name: _safe(column) for name, column in table.items()}, columns=table.columns)
    safe.to_csv(stream, mode="wb", index=False, lineterminator="\r\n", encoding="utf-8", errors="backslashreplace")


def _safe(column: pd.Series[Any]) -> pd.Series[Any]:
    if pd.api.types.is_numeric_dtype(column.dtype):
        return column
    return column.map(_cell)


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
