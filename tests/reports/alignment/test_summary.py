"""The headline and the small change of every report: numbers, shares, names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from results import make

from dumpdiff.model.formatting import number, percent, printable
from dumpdiff.model.trace import Source
from dumpdiff.reports.alignment.summary import format_source, format_headline


def test_diverged_names_the_first_divergence() -> None:
    assert format_headline(make()) == (
        "first divergence: layers.1.post_norm, rsqrt (Default/.../Rsqrt-op3) vs Torch.rsqrt.3.forward: "
        "relative L2 3.1e-2, inputs agree to 2e-7"
    )


def test_aligned_says_how_much_was_compared() -> None:
    said = format_headline(make(verdict="aligned", findings=()))
    assert said == "aligned: 98.1 % of forward, 94 % of backward compared, noise 2.1e-7"


def test_inconclusive_says_why_and_blames_nobody() -> None:
    said = format_headline(
        make(verdict="inconclusive", notes=("only 3% of the target's forward ops", "bridged: 2"))
    )
    assert said == "inconclusive: only 3% of the target's forward ops"


def test_nothing_compared_is_said() -> None:
    said = format_headline(
        make(verdict="inconclusive", findings=(), coverage={}, notes=(), noise_floor=float("nan"))
    )
    assert said == "inconclusive: nothing compared"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (3.14e-2, "3.1e-2"),
        (2e-7, "2.0e-7"),
        (1.0, "1.0e0"),
        (0.0, "0"),
        (float("nan"), "-"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_have_two_digits(value: float, said: str) -> None:
    assert number(value) == said


@given(st.floats(0, 1, exclude_max=True))
def test_only_everything_is_100_percent(share: float) -> None:
    said = float(percent(share).removesuffix(" %"))
    assert said < 100
    assert said == pytest.approx(share * 100, abs=0.11)


@given(st.text())
def test_printable_text_is_one_line_without_control_characters(text: str) -> None:
    assert printable(text).isprintable()


def test_an_escape_sequence_in_a_name_stays_visible() -> None:
    assert printable("a\x1b[2J") == "a\\x1b[2J"


def test_a_source_is_one_phrase() -> None:
    source = Source("/d", "ptdbg", "6.0, api_stack", "pytorch", step=0, rank=3)
    assert format_source(source) == "pytorch, ptdbg, 6.0, api_stack, step 0, rank 3"
