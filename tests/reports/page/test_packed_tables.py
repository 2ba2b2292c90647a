"""Packed tables can be read back as the browser reads them."""

from __future__ import annotations

import gzip
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.reports.page.packed_tables import Table, pack

FORMS = {"number": "<f4", "integer": "<i4", "text": "<u4"}


def unpack(packed: bytes) -> tuple[dict[str, dict[str, list[Any]]], Any]:
    """Return the tables and the data, read as ``packed_tables`` describes."""
    content = gzip.decompress(packed)
    (length,) = struct.unpack_from("<I", content)
    header = json.loads(content[4 : 4 + length])
    offset, tables = 4 + length, {}
    for name, table in header["tables"].items():
        columns = {}
        for key, kind in table["columns"].items():
            values = np.frombuffer(content, FORMS[kind], table["rows"], offset)
            columns[key] = (
                [header["strings"][code] for code in values] if kind == "text" else values.tolist()
            )
            offset += 4 * table["rows"]
        tables[name] = columns
    assert offset == len(content)
    return tables, header["data"]


def test_columns_come_back() -> None:
    table: Table = {
        "error": np.array([0.5, np.nan, np.inf]),
        "rank": [1, -2, 3],
        "op": ["add", "mul", "add"],
    }
    tables, data = unpack(pack({"pairs": table, "none": {"op": []}}, {"title": "a"}))
    assert tables["pairs"]["rank"] == [1, -2, 3]
    assert tables["pairs"]["op"] == ["add", "mul", "add"]
    assert tables["pairs"]["error"] == pytest.approx([0.5, np.nan, np.inf], nan_ok=True)
    assert tables["none"] == {"op": []}
    assert data == {"title": "a"}


def test_what_a_cell_may_hold() -> None:
    cells = [(2, 16, 32), (), None, float("nan"), "a\x1b[2J\u202eb", "\udc80"]
    tables, _ = unpack(pack({"t": {"cell": np.array([*cells, None], dtype=object)[:-1]}}, {}))
    assert tables["t"]["cell"] == ["2 x 16 x 32", "scalar", "", "", "a\\x1b[2J\\u202eb", "\\udc80"]


def test_what_float32_cannot_hold_is_infinite() -> None:
    tables, _ = unpack(pack({"t": {"max": [1e300, -1e300, 1e-300]}}, {}))
    assert tables["t"]["max"] == [np.inf, -np.inf, 0.0]


def test_columns_of_one_table_are_of_one_length() -> None:
    with pytest.raises(ValueError, match="columns of table t differ in length"):
        pack({"t": {"a": [1.0], "b": [1.0, 2.0]}}, {})


@given(st.lists(st.text(st.characters(categories=["L", "N", "P", "S"]))))
def test_any_text_comes_back(texts: list[str]) -> None:
    tables, _ = unpack(pack({"t": {"op": np.array([*texts, None], dtype=object)[:-1]}}, {}))
    assert tables["t"]["op"] == texts


def test_equal_tables_give_equal_text() -> None:
    assert pack({"t": {"op": ["a", "b"]}}, {"n": 1}) == pack({"t": {"op": ["a", "b"]}}, {"n": 1})
