"""Tables packed for the page: columns of four-byte numbers and one table of strings, compressed, as text.

What is packed is, little endian: the length of the header (uint32), the header (JSON, padded with blanks to a multiple
of four), then the columns one after the other. ``static/unpack.js`` is the other half.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...model.formatting import printable

#: float columns become float32 (a report shows six digits at most), integers int32, text codes into the strings.
Column: TypeAlias = "npt.ArrayLike | pd.Series[Any]"
Table: TypeAlias = Mapping[str, Column]


def pack(tables: Mapping[str, Table], data: Mapping[str, Any]) -> str:
    """The tables and further plain ``data`` as base64 of gzip; equal input gives equal text.

    Control characters in names are escaped, so that a script may show any string as text.
    """
    strings: dict[str, int] = {}
    blocks: list[bytes] = []
    layout: dict[str, dict[str, Any]] = {}
    for name, table in tables.items():
        columns = {key: _column(values, strings) for key, values in table.items()}
        rows = {len(values) for values in columns.values()}
        if len(rows) != 1:
            raise ValueError(f"columns of table {name} differ in length: {sorted(rows)}")
        layout[name] = {
            "rows": rows.pop(),
            "columns": {key: _KINDS[v.dtype.str] for key, v in columns.items()},
        }
        blocks.extend(values.tobytes() for values in columns.values())
    header = {"tables": layout, "strings": list(strings), "data": data}
    text = json.dumps(header, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8"
    )
    text += b" " * (-len(text) % 4)
    whole = b"".join((len(text).to_bytes(4, "little"), text, *blocks))
    return base64.b64encode(gzip.compress(whole, 6, mtime=0)).decode("ascii")


_KINDS = {"<f4": "number", "<i4": "integer", "<u4": "text"}


def _column(values: Column, strings: dict[str, int]) -> npt.NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # beyond float32 is infinite enough for a report
            return array.astype("<f4")
    if array.dtype.kind in "iub":
        return array.astype("<i4")
    codes, distinct = pd.factorize(array.astype(object), use_na_sentinel=False)
    known = [strings.setdefault(text, len(strings)) for text in map(_text, distinct.tolist())]
    return np.asarray(known, dtype="<u4")[codes] if known else np.empty(0, dtype="<u4")


def _text(value: Any) -> str:
    """A cell as a person reads it: a shape without its brackets, nothing for what is unknown."""
    if isinstance(value, tuple):
        return " x ".join(map(str, value)) or "scalar"
    return "" if pd.isna(value) else printable(str(value))
