"""The headline, and how every report formats numbers, shares and names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from results import ALIGNED_STATES, COVERAGE, FINDING, STATES, make_result

from dumpdiff.model.formatting import escape_control, format_number, format_percent
from dumpdiff.model.trace import Source
from dumpdiff.reports.alignment.summary import format_headline, format_source


def test_diverged_names_the_first_divergence() -> None:
    assert format_headline(make_result()) == (
        "first divergence: layers.1.post_norm, "
        "rsqrt (Default/.../Rsqrt-op3) vs Torch.rsqrt.3.forward: "
        "relative L2 3.1e-2, inputs agree to 2e-7"
    )


def test_aligned_names_the_compared_share_of_both_sides_lowest_first() -> None:
    headline = format_headline(make_result(verdict="aligned", findings=(), states=ALIGNED_STATES))
    assert headline == (
        "aligned: values compared: forward 83.3 % (target), 99.3 % (reference); noise 2.1e-7"
    )


def test_equal_shares_are_one_number() -> None:
    coverage = {"target": COVERAGE["reference"], "reference": COVERAGE["reference"]}
    states = {"target": ALIGNED_STATES["reference"], "reference": ALIGNED_STATES["reference"]}
    result = make_result(verdict="aligned", findings=(), states=states, coverage=coverage)
    assert format_headline(result) == "aligned: values compared: forward 99.3 %; noise 2.1e-7"


def test_a_phase_that_one_side_did_not_record_is_named() -> None:
    states = {**ALIGNED_STATES, "reference": STATES["reference"]}
    headline = format_headline(make_result(verdict="aligned", findings=(), states=states))
    assert "; backward only recorded by the reference; " in headline


def test_compared_values_beyond_tolerance_are_in_the_headline_of_aligned() -> None:
    """12 values of the target reconverged without a partner; 3 more have one and differ from it."""
    forward = {
        **ALIGNED_STATES["target"]["forward"],
        "values": {"agreeing": 147, "reconverged": 15, "unpaired": 18},
    }
    states = {**ALIGNED_STATES, "target": {"forward": forward}}
    headline = format_headline(make_result(verdict="aligned", findings=(), states=states))
    assert headline.endswith("; compared values beyond tolerance: 3 reconverged; noise 2.1e-7")


def test_an_isolated_difference_is_no_first_divergence() -> None:
    isolated = replace(FINDING, kind="isolated")
    note = "1 value differs without consequence: x; check the records"
    result = make_result(verdict="inconclusive", findings=(isolated,), notes=(note,))
    assert result.first_divergence is None
    assert format_headline(result) == f"inconclusive: {note}"


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
            verdict="inconclusive",
            findings=(),
            coverage={},
            states={},
            notes=(),
            noise_floor=float("nan"),
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
