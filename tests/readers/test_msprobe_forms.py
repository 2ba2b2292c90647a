"""Entries of msprobe's dump.json that differ only in what was measured have one form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dumpdiff.readers.msprobe.entries import Entries, collect_entries
from dumpdiff.readers.msprobe.forms import parse_measurements

FORWARD = "Functional.relu.{}.forward"


def make_entry(high: float, dtype: str = "torch.float32", **fields: Any) -> dict[str, Any]:
    record = {"type": "torch.Tensor", "dtype": dtype, "shape": [2], "Max": high, "Min": -1.0}
    return {"input_args": [{**record, **fields}], "output": [record]}


def print_block(entries: dict[str, Any]) -> bytes:
    """Return entries as msprobe prints them inside of ``data``."""
    text = json.dumps({"data": entries}, indent=1)
    return text[text.index("\n  ") : text.rindex("\n }")].encode()


def list_numbers(entries: Entries) -> list[list[float]]:
    return entries.measurements.get_statistics().numbers[:, :2].tolist()


def test_calls_that_differ_in_numbers_have_one_form():
    data = {FORWARD.format(number): make_entry(number) for number in range(3)}
    entries = collect_entries({}, [print_block(data)])
    assert entries.forms == [0, 0, 0]
    assert entries.first_measurements == [0, 2, 4]
    assert list_numbers(entries) == [[number, -1] for number in (0, 0, 1, 1, 2, 2)]


def test_another_dtype_is_another_form():
    data = {FORWARD.format(0): make_entry(1.0), FORWARD.format(1): make_entry(1.0, "torch.int8")}
    assert collect_entries({}, [print_block(data)]).forms == [0, 1]


@pytest.mark.parametrize(
    "unusual_entry",
    [{}, None, make_entry(3.0, note='a "Max": b'), make_entry(3.0, extra={"Min": 4})],
    ids=["empty", "null", "quotes", "nested object"],
)
def test_a_block_with_an_unusual_entry_is_parsed_as_a_whole(unusual_entry: Any):
    data = {FORWARD.format(0): make_entry(1.0), FORWARD.format(1): unusual_entry}
    entries = collect_entries({}, [print_block(data)])
    assert FORWARD.format(0) in entries.ids
    assert len(entries.measurements) == 0  # all numbers are those of the forms


def test_what_decides_the_form_must_not_follow_the_measurements():
    with pytest.raises(ValueError, match="other values follow"):
        parse_measurements([b'1.0, "dtype": "torch.int8"'])
