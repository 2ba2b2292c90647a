"""A triage for an issue or a merge request: the conclusion, what to do next, every stage in a line, the rest folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

from ... import __version__
from ...diagnosis.outcome import TriageResult
from ..formats.markdown import (
    format_comment,
    format_details,
    format_list,
    format_prose,
    format_shell_block,
    format_table,
    shorten,
)
from ..stages.sections import Block, ListBlock
from .sections import Section, build_conclusion, build_overview, build_sections

_SHOWN = 10  # rows of a table, and lines of a list
_LINE = 240  # characters of what a stage found


def write(triaged: TriageResult, stream: IO[bytes]) -> None:
    """Write the report as UTF-8."""
    stream.write(to_markdown(triaged).encode("utf-8", errors="backslashreplace"))


def to_markdown(triaged: TriageResult) -> str:
    """The report, short enough for one comment. Names from dumps and paths are code, so that they do nothing."""
    return format_comment(_parts(triaged))


def _parts(triaged: TriageResult) -> Iterator[str]:
    decision = triaged.decision
    answer, _, said = decision.headline.partition(": ")
    yield f"**{format_prose(answer[:1].upper() + answer[1:])}{':' if said else ''}** {format_prose(said)}".rstrip()
    for advice in triaged.advice:
        yield f"Next: {format_prose(advice.why)}"
        if advice.commands:
            yield format_shell_block(advice.commands)
    yield format_table(
        ("stage", "", "what it found"),
        [_state(row) for row in build_overview(triaged.evidence).rows],
    )
    for part in build_conclusion(triaged):
        yield format_details(part.title.capitalize(), _lines(part))
    for section in build_sections(triaged.evidence):
        if section.stage.verdict != "agree" and section.parts:
            yield format_details(
                f"{section.stage.name.capitalize()}: {section.stage.verdict}",
                _section(section),
            )
    yield f"<sub>dumpdiff {__version__}</sub>"


def _section(section: Section) -> str:
    sides = zip(("target", "reference"), section.sides or (), strict=False)
    compared = (
        [format_list(f"{role}: {format_prose(said)}" for role, said in sides)]
        if section.sides
        else []
    )
    return "\n\n".join([*compared, *map(_part, section.parts)])


def _state(row: Sequence[str]) -> tuple[str, ...]:
    """One stage; of what differs the state is bold."""
    name, state, said = row
    return (
        name,
        f"**{state}**" if state == "differ" else state,
        format_prose(shorten(said, _LINE)),
    )


def _part(part: Block) -> str:
    if isinstance(part, ListBlock):
        return f"{format_prose(part.title)}:\n\n{_lines(part)}"
    rows = [tuple(format_prose(cell) for cell in row) for row in part.rows[:_SHOWN]]
    return format_table((format_prose(part.title), *part.columns), rows) + _more(part.rows)


def _lines(part: ListBlock) -> str:
    return format_list(map(format_prose, part.lines[:_SHOWN])) + _more(part.lines)


def _more(all_: Sequence[object]) -> str:
    return f"\n\n{len(all_) - _SHOWN} more." if len(all_) > _SHOWN else ""
