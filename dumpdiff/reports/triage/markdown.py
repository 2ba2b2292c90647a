"""A triage as Markdown: conclusion, what to do next, every stage in one line, the rest folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

from ... import __version__
from ...diagnosis.outcome import TriageResult
from ..formats.blocks import Block, ListBlock
from ..formats.markdown import (
    format_comment,
    format_details,
    format_list,
    format_prose,
    format_shell_block,
    format_table,
    shorten,
)
from .sections import Section, build_conclusion, build_overview, build_sections

_MAX_ITEMS = 10  #: rows of a table, and lines of a list
_MAX_SUMMARY = 240  #: characters of a stage's headline


def write(triaged: TriageResult, stream: IO[bytes]) -> None:
    """Write the report as UTF-8."""
    stream.write(to_markdown(triaged).encode("utf-8", errors="backslashreplace"))


def to_markdown(triaged: TriageResult) -> str:
    """Return the report, short enough for one comment.

    Names from dumps and paths are code, so that they have no effect.
    """
    return format_comment(_build_parts(triaged))


def _build_parts(triaged: TriageResult) -> Iterator[str]:
    yield _format_headline(triaged.decision.headline)
    for advice in triaged.advice:
        yield f"Next: {format_prose(advice.reason)}"
        if advice.commands:
            yield format_shell_block(advice.commands)
    rows = [_format_stage(*row) for row in build_overview(triaged.evidence).rows]
    yield format_table(("stage", "", "what it found"), rows)
    for block in build_conclusion(triaged):
        yield format_details(block.title.capitalize(), _format_lines(block))
    for section in build_sections(triaged.evidence):
        stage = section.stage
        if stage.verdict != "agree" and section.blocks:
            summary = f"{stage.name.capitalize()}: {stage.verdict}"
            yield format_details(summary, _format_section(section))
    yield f"<sub>dumpdiff {__version__}</sub>"


def _format_headline(headline: str) -> str:
    answer, colon, explanation = headline.partition(": ")
    capitalized_answer = answer[:1].upper() + answer[1:]
    bold = f"**{format_prose(capitalized_answer)}{colon.strip()}**"
    return f"{bold} {format_prose(explanation)}".rstrip()


def _format_stage(name: str, state: str, summary: str) -> tuple[str, str, str]:
    """Return the cells of one stage; 'differ' is bold."""
    state_cell = f"**{state}**" if state == "differ" else state
    return name, state_cell, format_prose(shorten(summary, _MAX_SUMMARY))


def _format_section(section: Section) -> str:
    parts = []
    if section.sides:
        target, reference = map(format_prose, section.sides)
        parts.append(format_list([f"target: {target}", f"reference: {reference}"]))
    parts += map(_format_block, section.blocks)
    return "\n\n".join(parts)


def _format_block(block: Block) -> str:
    if isinstance(block, ListBlock):
        return f"{format_prose(block.title)}:\n\n{_format_lines(block)}"
    rows = [tuple(map(format_prose, row)) for row in block.rows[:_MAX_ITEMS]]
    return format_table((format_prose(block.title), *block.columns), rows) + _count_more(block.rows)


def _format_lines(block: ListBlock) -> str:
    lines = map(format_prose, block.lines[:_MAX_ITEMS])
    return format_list(lines) + _count_more(block.lines)


def _count_more(items: Sequence[object]) -> str:
    return f"\n\n{len(items) - _MAX_ITEMS} more." if len(items) > _MAX_ITEMS else ""
