"""A triage for an issue or a merge request: the conclusion, what to do next, every stage in a line, the rest folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

from ... import __version__
from ...diagnosis.outcome import Triaged
from ..formats.markdown import block, comment, details, items, prose, shortened, table
from ..stages.sections import SPOKEN, Lines, Part
from .sections import Section, conclusion, overview, sections

_SHOWN = 10  # rows of a table, and lines of a list
_LINE = 240  # characters of what a stage found


def write(triaged: Triaged, stream: IO[bytes]) -> None:
    """Write the report as UTF-8."""
    stream.write(to_markdown(triaged).encode("utf-8", errors="backslashreplace"))


def to_markdown(triaged: Triaged) -> str:
    """The report, short enough for one comment. Names from dumps and paths are code, so that they do nothing."""
    return comment(_parts(triaged))


def _parts(triaged: Triaged) -> Iterator[str]:
    decision = triaged.decision
    answer, _, said = decision.headline.partition(": ")
    yield f"**{prose(answer[:1].upper() + answer[1:])}{':' if said else ''}** {prose(said)}".rstrip()
    for advice in triaged.advice:
        yield f"Next: {prose(advice.why)}"
        if advice.commands:
            yield block(advice.commands)
    yield table(
        ("stage", "", "what it found"), [_state(row) for row in overview(triaged.evidence).rows]
    )
    for part in conclusion(triaged):
        yield details(part.title.capitalize(), _lines(part))
    for section in sections(triaged.evidence):
        if section.stage.verdict != "agree" and section.parts:
            yield details(
                f"{section.stage.name.capitalize()}: {SPOKEN[section.stage.verdict]}",
                _section(section),
            )
    yield f"<sub>dumpdiff {__version__}</sub>"


def _section(section: Section) -> str:
    sides = zip(("target", "reference"), section.sides or (), strict=False)
    compared = [items(f"{role}: {prose(said)}" for role, said in sides)] if section.sides else []
    return "\n\n".join([*compared, *map(_part, section.parts)])


def _state(row: Sequence[str]) -> tuple[str, ...]:
    """One stage; of what differs the state is bold."""
    name, state, said = row
    return (
        name,
        f"**{state}**" if state == SPOKEN["differ"] else state,
        prose(shortened(said, _LINE)),
    )


def _part(part: Part) -> str:
    if isinstance(part, Lines):
        return f"{prose(part.title)}:\n\n{_lines(part)}"
    rows = [tuple(prose(cell) for cell in row) for row in part.rows[:_SHOWN]]
    return table((prose(part.title), *part.columns), rows) + _more(part.rows)


def _lines(part: Lines) -> str:
    return items(map(prose, part.lines[:_SHOWN])) + _more(part.lines)


def _more(all_: Sequence[object]) -> str:
    return f"\n\n{len(all_) - _SHOWN} more." if len(all_) > _SHOWN else ""
