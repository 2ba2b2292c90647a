"""The check of a run as Markdown, for a comment."""

from __future__ import annotations

from typing import IO

from ... import __version__
from ...invariants import INVARIANTS, RunCheck
from ..formats.markdown import (
    format_code,
    format_comment,
    format_details,
    format_list,
    format_prose,
    format_table,
)
from .blocks import format_violation_place

_MAX_ROWS = 20  #: violations in the table


def write(check: RunCheck, stream: IO[bytes]) -> None:
    """Write the report as UTF-8."""
    stream.write(to_markdown(check).encode("utf-8", errors="backslashreplace"))


def to_markdown(check: RunCheck) -> str:
    """Return the answer, the violations, and, folded, what was checked and what was not."""
    sections = [f"**Check {check.verdict}: {format_prose(check.headline)}**"]
    rows = []
    for item in check.violations[:_MAX_ROWS]:
        place = format_violation_place(item)
        rows.append((item.invariant, place, format_code(item.op), format_prose(item.message)))
    if rows:
        sections.append(format_table(("invariant", "rank", "op", "what contradicts"), rows))
    checked_rows = [
        (INVARIANTS[item.name], str(item.checked), str(len(item.violations)))
        for item in check.checks
        if item.checked
    ]
    if checked_rows:
        table = format_table(("invariant", "checked", "violations"), checked_rows)
        sections.append(format_details("Checked", table))
    if check.missing:
        sections.append(format_details("Not checked", format_list(check.missing)))
    sections.append(f"<sub>dumpdiff {__version__}</sub>")
    return format_comment(sections)
