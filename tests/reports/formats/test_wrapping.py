"""Long names are broken where a reader expects it, and nothing is lost."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from dumpdiff.reports.formats.wrapping import WrappedText, wrap_names

NAME = (
    "Default/network-WithLoss/backbone-Llama/layers-CellList/0-Decoder/input_norm-RMSNorm/Add-op12"
)


def test_a_name_is_broken_after_a_slash() -> None:
    assert wrap_names(f"add ({NAME}) vs Tensor.__add__.12.forward", 60) == [
        "add (Default/network-WithLoss/backbone-Llama/",
        "layers-CellList/0-Decoder/input_norm-RMSNorm/Add-op12) vs",
        "Tensor.__add__.12.forward",
    ]


def test_a_name_is_broken_after_a_dot_but_a_number_is_not() -> None:
    assert wrap_names("Module.model.layers.0.attention.Linear.forward differs by 4.3e-3", 30) == [
        "Module.model.layers.0.",
        "attention.Linear.forward",
        "differs by 4.3e-3",
    ]


def test_a_short_word_is_never_broken() -> None:
    assert wrap_names("epsilon 0.01 in model.py:22 of x", 14) == [
        "epsilon 0.01",
        "in model.py:22",
        "of x",
    ]


def test_chinese_is_broken_by_its_width() -> None:
    assert wrap_names("第一个出现差异的算子", 8) == ["第一个出", "现差异的", "算子"]


@given(st.text("ab/.- \n字", max_size=80), st.integers(2, 30))
def test_every_line_fits_and_no_character_is_lost(text: str, width: int) -> None:
    lines = wrap_names(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@pytest.mark.parametrize("width", [40, 60])
def test_a_cell_of_a_table_is_broken_in_the_same_way(width: int) -> None:
    stream = io.StringIO()
    table = Table("op", "count")
    table.add_row(WrappedText(NAME), "12")
    Console(file=stream, width=width).print(table)
    cells = [line.split("│")[1].strip() for line in stream.getvalue().splitlines()[3:-1]]
    assert "".join(cells) == NAME
    assert all(cell.endswith("/") for cell in cells[:-1])
