"""Numbers and names as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.model.formatting import escape_control, format_number, format_percent


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.14e-2, "3.1e-2"),
        (1.0, "1.0e0"),
        (9.99e9, "1.0e10"),
        (-2.5e-7, "-2.5e-7"),
        (0.0, "0"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "-"),
    ],
)
def test_a_number_has_two_significant_digits(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (0.57, "57 %"),
        (0.98215, "98.2 %"),
        (0.9999999, "99.9 %"),
        (1.0, "100 %"),
        (math.nan, "-"),
    ],
)
def test_a_share_is_rounded_down_to_tenths_of_a_percent(share: float, text: str) -> None:
    assert format_percent(share) == text


@given(st.floats(0, 1, exclude_max=True))
def test_only_everything_is_100_percent(share: float) -> None:
    assert format_percent(share) != "100 %"


@given(st.integers(0, 1000))
def test_tenths_of_a_percent_are_exact(tenths: int) -> None:
    assert format_percent(tenths / 1000) == f"{tenths / 10:g} %"


def test_control_characters_are_escaped() -> None:
    assert escape_control("a\x1b[2Jb\n") == "a\\x1b[2Jb\\n"
    assert escape_control("right\u202eleft") == "right\\u202eleft"


@given(st.text())
def test_escaped_text_is_printable_and_printable_text_stays(text: str) -> None:
    escaped = escape_control(text)
    assert escaped.isprintable()
    assert escape_control(escaped) == escaped
    if text.isprintable():
        assert escaped == text
