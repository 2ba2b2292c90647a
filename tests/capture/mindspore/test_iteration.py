"""Which steps a text selects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.capture.mindspore.iteration import find_bad_characters, parse_iterations

NUMBER = st.integers(0, 40)
RANGE = st.tuples(NUMBER, NUMBER).map(sorted).map(lambda ends: f"{ends[0]}-{ends[1]}")
TEXT = st.lists(st.one_of(NUMBER.map(str), RANGE), min_size=1, max_size=4).map("|".join)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("0", {0}),
        ("007", {7}),
        ("5-8", {5, 6, 7, 8}),
        ("0|2-3", {0, 2, 3}),
        ("3-3", {3}),
        ("all", set(range(12))),
    ],
)
def test_selects(text: str, steps: set[int]) -> None:
    assert {step for step in range(12) if step in parse_iterations(text)} == steps


@pytest.mark.parametrize("text", ["5-", "-5", "3-1", "|", "-", "0-1-2", "4294967296"])
def test_selects_nothing_and_says_why(text: str) -> None:
    found = parse_iterations(text)
    assert not found.ranges
    assert all(why for _, why in found.unreachable_parts)


@given(TEXT)
def test_the_last_step_is_the_largest_number(text: str) -> None:
    assert find_bad_characters(text) == ""
    assert parse_iterations(text).last == max(
        int(number) for number in text.replace("|", "-").split("-")
    )


@given(st.text(alphabet="0123456789-|", max_size=12))
def test_every_part_either_selects_a_step_or_is_dead(text: str) -> None:
    found = parse_iterations(text)
    assert len(found.ranges) + len(found.unreachable_parts) == text.count("|") + 1
    assert all(first in found and last in found for first, last in found.ranges)


def test_bad_characters_are_named_once() -> None:
    assert find_bad_characters("0, 1, 2") == ", "
    assert find_bad_characters("all") == ""
