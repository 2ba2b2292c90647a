"""The report in a terminal: answer first, names in full; filters never change the answer."""

from __future__ import annotations

import io
import itertools
import re

import pytest
from results import (
    ALIGNED_STATES,
    BASELINE,
    RECONVERGED,
    RSQRT,
    STATES,
    make_result,
    make_unmatched,
)
from rich.console import Console

from dumpdiff.model.result import Result
from dumpdiff.reports.alignment import text as report
from dumpdiff.reports.alignment.first_line import format_first_line


def print_report(result: Result, width: int = 160, terminal: bool = False, **view: object) -> str:
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width,
        force_terminal=terminal,
        highlight=False,
        markup=False,
        emoji=False,
    )
    report.write(result, console, report.View(**view))  # type: ignore[arg-type]
    return stream.getvalue()


@pytest.mark.parametrize("width", [20, 80, 200])
@pytest.mark.parametrize("verdict", ["aligned", "diverged", "inconclusive"])
def test_the_first_line_is_the_verdict_however_narrow(verdict: str, width: int) -> None:
    result = make_result(verdict=verdict)
    assert print_report(result, width).splitlines()[0] == format_first_line(result)


def test_quiet_prints_the_first_line_alone() -> None:
    assert print_report(make_result(), quiet=True) == format_first_line(make_result()) + "\n"


def test_each_side_has_a_line_however_narrow_the_terminal() -> None:
    lines = print_report(make_result(), width=40).splitlines()
    assert lines[2] == (
        "target     mindspore, npy and graph, step 0, rank 0, graph 0: "
        "477 ops, 2430 tensors, /data/ms_dump"
    )
    assert (
        lines[3]
        == "reference  pytorch, ptdbg, 6.0, api_stack, step 0: 297 ops, 1004 tensors, /data/pt_dump"
    )


def test_color_only_on_a_terminal() -> None:
    assert "\x1b[" not in print_report(make_result())
    assert "\x1b[1;31mdiverged: layers.1.post_norm: error 3.1e-2" in print_report(
        make_result(), terminal=True
    )


def test_names_are_given_in_full() -> None:
    assert RSQRT in print_report(make_result(), width=200)


def test_brackets_in_a_name_are_no_markup() -> None:
    output = print_report(make_result(notes=("[red]op[/red] [0]",)))
    assert "[red]op[/red] [0]" in output


def test_an_escape_sequence_in_a_dump_does_not_reach_the_terminal() -> None:
    assert "\x1b" not in print_report(make_result(notes=("\x1b[2J",), findings=()))


def test_a_region_shows_its_ends_and_verbose_all_of_it() -> None:
    assert "g1, ... 3 more ..., g5" in print_report(make_result())
    assert "g1, g2, g3, g4, g5" in print_report(make_result(), verbose=True)


def read_rows(output: str, title: str) -> list[list[str]]:
    """Return the cells of the rows of the table with this title, which are apart by two blanks."""
    lines = [line.rstrip() for line in output.splitlines()]
    start = next(number for number, line in enumerate(lines) if line.startswith(title))
    table = itertools.takewhile(bool, [lines[start], *lines[start + 2 :]])
    return [re.split(" {2,}", line) for line in table]


def test_the_states_of_all_values_and_ops_are_counted_for_both_sides() -> None:
    assert read_rows(print_report(make_result()), "target / reference") == [
        ["target / reference", "compared", "introduced", "propagated", "agreeing", "reconverged",
         "incomparable", "unpaired"],
        ["forward values", "83.3 % / 99.3 %", "1 / 1", "9 / 9", "140 / 140", "12 / 0", "18 / 1"],
        ["forward ops", "82.9 % / 98.1 %", "1 / 1", "19 / 11", "180 / 150", "7 / 0", "34 / 3"],
        ["backward values", "- / 93.7 %", "0 / 120", "0 / 2", "0 / 6"],
        ["backward ops", "- / 93.9 %", "0 / 124", "0 / 2", "0 / 6"],
    ]  # fmt: skip


def test_a_phase_that_is_not_asked_for_has_no_counts() -> None:
    rows = read_rows(print_report(make_result(), phase="backward"), "target / reference")
    assert [row[0] for row in rows[1:]] == ["backward values", "backward ops"]


def test_the_table_of_states_fits_into_a_narrow_terminal() -> None:
    output = print_report(make_result(states=ALIGNED_STATES), width=80)
    assert read_rows(output, "target / reference")[1:] == [
        ["forward values", "83.3 % / 99.3 %", "150 / 150", "12 / 0", "18 / 1"],
        ["forward ops", "82.9 % / 98.1 %", "200 / 162", "7 / 0", "34 / 3"],
    ]


def test_why_values_and_ops_were_not_compared_is_one_table() -> None:
    assert read_rows(print_report(make_result()), "not compared") == [
        ["not compared, target / reference", "values", "ops"],
        ["dead end", "18 / 1", "0 / 1"],
        ["an equivalent decomposition", "12 / 0"],
        ["reconverged", "2 / 0"],
    ]


def test_compared_values_that_reconverged_are_counted_whatever_the_verdict() -> None:
    target = {"forward": {**STATES["target"]["forward"], "values": {"reconverged": 14}}}
    output = print_report(make_result(states={**STATES, "target": target}))
    assert "compared values beyond tolerance: 1 introduced, 9 propagated, 2 reconverged" in output
    assert "beyond tolerance" not in print_report(make_result())


def test_what_was_not_compared_is_listed_with_verbose() -> None:
    output = print_report(make_result(), verbose=True)
    assert "Default/Cast-op2" not in print_report(make_result())
    assert ["target", "Default/Cast-op2", "Cast", "forward", "layers.1", "reconverged"] in (
        read_rows(output, "ops not compared")
    )
    values = read_rows(output, "values not compared")
    assert values[1] == [
        "target", "Default/Cast-op0", "output.0", "forward", "layers.0", *RECONVERGED
    ]  # fmt: skip
    assert values[11] == ["target", "... 20 more, --limit 30 shows them"]
    assert values[-1][:2] == ["reference", "Tensor.to.0.forward"]


def test_a_scope_chooses_what_was_not_compared() -> None:
    rows = read_rows(print_report(make_result(), scope="layers.0"), "not compared")
    assert rows[1:] == [["an equivalent decomposition", "12 / 0"], ["reconverged", "1 / 0"]]
    assert "not compared" not in print_report(make_result(), scope="layers.7")


def test_learned_equivalences_only_with_verbose() -> None:
    assert "Sigmoid, Mul" not in print_report(make_result())
    assert ["Sigmoid,", "Mul", "Functional.silu", "4"] in [
        x.split() for x in print_report(make_result(), verbose=True).splitlines()
    ]


def test_the_first_problems_are_shown_and_all_with_verbose() -> None:
    assert "statistic.csv:2: cell 2 is no number" in print_report(make_result())
    assert "... 2 more, -v shows them" in print_report(make_result())
    assert "statistic.csv:4: cell 4 is no number" in print_report(make_result(), verbose=True)


@pytest.mark.parametrize(
    ("view", "message"),
    [
        ({"limit": 1}, "1 of 2 findings shown, 1 are beyond --limit 1"),
        ({"phase": "backward"}, "1 of 2 findings shown, 1 are of another phase or scope"),
        ({"scope": "layers.0.*"}, "1 of 2 findings shown, 1 are of another phase or scope"),
        ({"phase": "optimizer"}, "0 of 2 findings shown, 2 are of another phase or scope"),
    ],
)
def test_a_filter_reports_what_it_hides_and_keeps_the_verdict(
    view: dict[str, object], message: str
) -> None:
    output = print_report(make_result(), **view)
    assert message in output
    assert output.splitlines()[0] == format_first_line(make_result())


def test_the_limit_holds_for_unmatched_ops_of_each_side_too() -> None:
    many = make_unmatched(
        *(("target", f"op{n}", "Cast", "forward", "", "reconverged") for n in range(12))
    )
    output = print_report(make_result(unmatched=many), verbose=True)
    assert "op9" in output
    assert "op10" not in output
    assert "... 2 more, --limit 12 shows them" in output


def test_evidence_and_metrics_with_verbose() -> None:
    output = print_report(make_result(), verbose=True)
    assert "evidence: input values agree; role learned from layers.0" in output
    assert "relative_l2 3.1e-2" in output
    assert "cosine -" in output


def test_a_baseline_is_one_line() -> None:
    (line,) = [
        line
        for line in print_report(make_result(baseline=BASELINE)).splitlines()
        if line.startswith("baseline")
    ]
    assert (
        "spread of 310 values, median 1.2e-7, largest 4.0e-6 (Functional.linear.3.forward)" in line
    )
    assert "/data/again" in line
