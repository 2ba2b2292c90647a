"""CSV for spreadsheets: RFC 4180, UTF-8, and no cell that a spreadsheet would run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

#: What makes a spreadsheet take a text cell for a formula (OWASP, "CSV Injection"). The apostrophe
#: itself is escaped too, so that removing one leading apostrophe always gives the recorded text.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "'")
_QUOTED = ',"\r\n'  #: RFC 4180: what puts a cell in quotes
_NEEDS_QUOTES = re.compile(f"[{_QUOTED}]").search


def format_rows(rows: Iterable[Sequence[object]]) -> bytes:
    """Format rows of any values as CSV; lines end with CR LF."""
    return encode_lines(",".join(map(format_cell, row)) for row in rows)


def encode_lines(lines: Iterable[str]) -> bytes:
    """Return lines of finished cells as UTF-8; lines end with CR LF."""
    text = "\r\n".join((*lines, ""))
    return text.encode("utf-8", errors="backslashreplace")


def format_texts(texts: Sequence[str]) -> list[str]:
    """Format cells of text. Raises TypeError if one of them is no text.

    Most columns have nothing to escape, which one look at all different cells shows.
    """
    distinct_texts = set(texts)
    joined_texts = "\0".join(distinct_texts)
    # single characters are found many times as fast as patterns
    has_quoted = any(character in joined_texts for character in _QUOTED)
    if has_quoted or not {text[:1] for text in distinct_texts}.isdisjoint(_FORMULA_STARTS):
        return [format_cell(text) for text in texts]
    return list(texts)


def format_cell(value: Any) -> str:
    """Format one cell.

    A missing value is ''; text that looks like a formula gets a leading apostrophe.
    """
    if isinstance(value, str):
        text = f"'{value}" if value.startswith(_FORMULA_STARTS) else value
    elif pd.isna(value):
        text = ""
    else:
        text = str(value)
    if _NEEDS_QUOTES(text):
        return '"' + text.replace('"', '""') + '"'
    return text
