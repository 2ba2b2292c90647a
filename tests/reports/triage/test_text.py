"""The triage in a terminal: the answer in the first line, every stage in one, commands to copy."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from dumpdiff.diagnosis.evidence import STAGES
from dumpdiff.diagnosis.outcome import TriageResult
from dumpdiff.reports.triage import text


def printed(
    triaged: TriageResult, *, width: int = 200, quiet: bool = False, verbose: bool = False
) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    text.write(triaged, console, quiet=quiet, verbose=verbose)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def under(title: str, lines: list[str]) -> list[str]:
    """The lines of a list, or the rows of a table."""
    start = next(i for i, line in enumerate(lines) if line.split("  ")[0] == title)
    length = lines[start:].index("") if "" in lines[start:] else None
    return lines[start + 1 : None if length is None else start + length]


def test_the_first_line_is_the_answer(triaged: TriageResult) -> None:
    first = printed(triaged, width=60, quiet=True)
    assert len(first) == 1
    assert first[0].startswith("triage: the forward pass differs: layers.1.post_attention_norm")


def test_what_it_rests_on_and_what_was_ruled_out_and_by_what(triaged: TriageResult) -> None:
    lines = printed(triaged)
    assert any("behaves as epsilon = 0.01" in line for line in under("because", lines))
    assert [line.split(":")[0] for line in under("ruled out", lines)] == [
        "  data, by data",
        "  weights, by weights",
    ]
    assert "  the optimizer: different rules: learning rate 0.1 against learning rate 0.2" in under(
        "also different", lines
    )


def test_every_stage_has_a_line_in_the_order_of_the_guide(triaged: TriageResult, bare: TriageResult) -> None:
    for found in (triaged, bare):
        rows = [
            row for row in under("stage", printed(found, width=1000)) if not row.startswith("─")
        ]
        assert tuple(row.split()[0] for row in rows) == STAGES
    assert rows[0].split()[:3] == ["settings", "not", "given"]
    assert rows[0].endswith(
        "no settings (YAML, launch script, or log with arguments) of the target and the reference"
    )


def test_commands_stand_alone_and_unbroken(triaged: TriageResult) -> None:
    (command,) = triaged.advice[0].commands
    assert f"    {command}" in printed(triaged, width=40)


def test_what_was_not_given_is_said_once(bare: TriageResult) -> None:
    said = "no training log of the target and the reference"
    assert sum(said in line for line in printed(bare, width=1000)) == 1


def test_with_v_every_stage_says_what_its_own_command_says(triaged: TriageResult) -> None:
    lines = printed(triaged, width=300, verbose=True)
    titles = [line.split()[0] for line in lines if line.endswith("----")]
    assert tuple(titles) == STAGES
    for said in ("first loss", "layers.0.bias", "at most rounds", "differences"):
        assert any(line.strip().startswith(said) for line in lines)


def test_control_characters_are_shown_and_brackets_stay(bare: TriageResult) -> None:
    name = "a\x1b[2J[bold]b\u202e"
    told = replace(bare, decision=replace(bare.decision, headline=name, evidence=(name,)))
    assert printed(told)[0] == "triage: a\\x1b[2J[bold]b\\u202e"
    assert under("because", printed(told)) == ["  a\\x1b[2J[bold]b\\u202e"]
