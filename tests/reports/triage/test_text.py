"""The triage in a terminal: the answer in the first line, every stage in one, commands to copy."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from dumpdiff.diagnosis.evidence import STAGES
from dumpdiff.diagnosis.outcome import TriageResult
from dumpdiff.reports.alignment.first_line import MAX_LENGTH
from dumpdiff.reports.triage import text


def print_report(
    triaged: TriageResult, *, width: int = 200, quiet: bool = False, verbose: bool = False
) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    text.write(triaged, console, quiet=quiet, verbose=verbose)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def select_lines(title: str, lines: list[str]) -> list[str]:
    """Return the lines of a list, or the rows of a table."""
    start = next(i for i, line in enumerate(lines) if line.split("  ")[0] == title)
    length = lines[start:].index("") if "" in lines[start:] else None
    return lines[start + 1 : None if length is None else start + length]


def test_the_first_line_is_the_answer(triaged: TriageResult) -> None:
    first = print_report(triaged, width=60, quiet=True)
    assert len(first) == 1
    head = "triage: the forward pass differs (and 1 more): "
    assert first[0].startswith(head)
    assert "_attention_norm: epsilon, target is wrong" in first[0]
    assert len(first[0]) <= MAX_LENGTH


def test_the_evidence_and_what_was_ruled_out(triaged: TriageResult) -> None:
    lines = print_report(triaged)
    assert any("behaves as epsilon = 0.01" in line for line in select_lines("because", lines))
    assert [line.split(":")[0] for line in select_lines("ruled out", lines)] == [
        "  weights, by weights",
        "  backward, by norms",
    ]
    assert (
        "  the data: agrees as far as it was read: token ids: the same 2 samples of 16 tokens,"
        " bit for bit, on 1 of 8 ranks"
    ) in select_lines("not known", lines)


def test_every_stage_has_a_line_in_the_order_of_the_guide(
    triaged: TriageResult, weights_only: TriageResult
) -> None:
    for result in (triaged, weights_only):
        rows = [
            row
            for row in select_lines("stage", print_report(result, width=1000))
            if not row.startswith("─")
        ]
        assert tuple(row.split()[0] for row in rows) == STAGES
    assert rows[0].split()[:3] == ["settings", "not", "given"]
    assert rows[0].endswith(
        "no settings (YAML, launch script, or log with arguments) of the target and the reference"
    )


def test_commands_stand_alone_and_unbroken(triaged: TriageResult) -> None:
    (command,) = triaged.advice[0].commands
    assert f"    {command}" in print_report(triaged, width=40)


def test_a_stage_without_input_is_reported_once(weights_only: TriageResult) -> None:
    reason = "no training log of the target and the reference"
    assert sum(reason in line for line in print_report(weights_only, width=1000)) == 1


def test_verbose_prints_every_stage_as_its_own_command_does(triaged: TriageResult) -> None:
    lines = print_report(triaged, width=300, verbose=True)
    titles = [line.split()[0] for line in lines if line.endswith("----")]
    assert tuple(titles) == STAGES
    for start in ("first loss", "layers.0.bias", "at most rounds", "differences"):
        assert any(line.strip().startswith(start) for line in lines)


def test_control_characters_are_shown_and_brackets_stay(weights_only: TriageResult) -> None:
    name = "a\x1b[2J[bold]b\u202e"
    hostile_triage = replace(
        weights_only, decision=replace(weights_only.decision, headline=name, evidence=(name,))
    )
    assert print_report(hostile_triage)[0] == "triage: a\\x1b[2J[bold]b\\u202e"
    assert select_lines("because", print_report(hostile_triage)) == ["  a\\x1b[2J[bold]b\\u202e"]
