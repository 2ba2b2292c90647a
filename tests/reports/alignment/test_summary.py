"""The headline, and how every report formats numbers, shares and names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from results import make_result

from dumpdiff.model.formatting import escape_control, format_number, format_percent
from dumpdiff.model.trace import Source
from dumpdiff.reports.alignment.summary import format_headline, format_source


def test_diverged_names_the_first_divergence() -> None:
    assert format_headline(make_result()) == (
        "first divergence: layers.1.post_norm, "
        "rsqrt (Default/.../Rsqrt-op3) vs Torch.rsqrt.3.forward: "
        "relative L2 3.1e-2, inputs agree to 2e-7"
    )


def test_aligned_says_how_much_was_compared() -> None:
    headline = format_headline(make_result(verdict="aligned", findings=()))
    assert headline == "aligned: 98.1 % of forward, 94 % of backward compared, noise 2.1e-7"


def test_inconclusive_says_why_and_blames_nobody() -> None:
    headline = format_headline(
        make_result(
            verdict="inconclusive", notes=("only 3% of the target's forward ops", "bridged: 2")
        )
    )
    assert headline == "inconclusive: only 3% of the target's forward ops"


def test_nothing_compared_is_said() -> None:
    headline = format_headline(
        make_result(
            verdict="inconclusive", findings=(), coverage={}, notes=(), noise_floor=float("nan")
        )
    )
    assert headline == "inconclusive: nothing compared"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.14e-2, "3.1e-2"),
        (2e-7, "2.0e-7"),
        (1.0, "1.0e0"),
        (0.0, "0"),
        (float("nan"), "-"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_have_two_digits(value: float, text: str) -> None:
    assert format_number(value) == text


@given(st.floats(0, 1, exclude_max=True))
def test_only_everything_is_100_percent(share: float) -> None:
    value = float(format_percent(share).removesuffix(" %"))
    assert value < 100
    assert value == pytest.approx(share * 100, abs=0.11)


@given(st.text())
def test_printable_text_is_one_line_without_control_characters(text: str) -> None:
    assert escape_control(text).isprintable()


def test_an_escape_sequence_in_a_name_stays_visible() -> None:
    assert escape_control("a\x1b[2J") == "a\\x1b[2J"


def test_a_source_is_one_phrase() -> None:
    source = Source("/d", "ptdbg", "6.0, api_stack", "pytorch", step=0, rank=3)
    assert format_source(source) == "pytorch, ptdbg, 6.0, api_stack, step 0, rank 3"
