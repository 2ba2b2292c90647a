"""The answer about two dumps as short JSON, in the form of docs/brief.schema.json."""

from __future__ import annotations

from typing import IO, Any

from ... import __version__
from ...model.result import Result
from ...model.verdict import EXIT_CODES
from ..formats.brief import (
    SCHEMA_VERSION,
    convert_finding,
    fit,
    list_first,
    list_next_commands,
    select_first,
    shorten,
)
from ..formats.json import write_document
from .first_line import format_first_line, list_lowest_shares


def write(result: Result, stream: IO[bytes]) -> None:
    """Write the answer as UTF-8 JSON."""
    write_document(to_brief(result), stream)


def to_brief(result: Result) -> dict[str, Any]:
    """Return the answer as plain values, of at most 8 kB at any size of the dumps."""
    return fit(
        {
            "brief_schema_version": SCHEMA_VERSION,
            "dumpdiff_version": __version__,
            "target": shorten(result.target.source.path),
            "reference": shorten(result.reference.source.path),
            "verdict": result.verdict,
            "exit_code": EXIT_CODES[result.verdict],
            "first_line": format_first_line(result),
            "n_findings": len(result.findings),
            "findings": [convert_finding(finding) for finding in select_first(result.findings)],
            "compared": list_lowest_shares(result),
            "n_pairs": len(result.pairs),
            "differing": dict(result.count_differing_values()),
            "n_problems": len(result.target.problems) + len(result.reference.problems),
            "weaknesses": list_first(result.weaknesses),
            "n_notes": len(result.notes),
            "notes": list_first(result.notes),
            "next": list_next_commands(result.verdict, result.first_divergence),
        }
    )
