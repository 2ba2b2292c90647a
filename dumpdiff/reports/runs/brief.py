"""The answer about a run of many ranks as short JSON, in the form of docs/brief.schema.json."""

from __future__ import annotations

from typing import IO, Any

from ... import __version__
from ...model.run_result import RunFinding, RunResult
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
from .first_line import count_problems, format_first_line
from .summary import list_lowest_shares


def write(result: RunResult, stream: IO[bytes]) -> None:
    """Write the answer as UTF-8 JSON."""
    write_document(to_brief(result), stream)


def to_brief(result: RunResult) -> dict[str, Any]:
    """Return the answer as plain values, of at most 8 kB at any number of ranks."""
    first = result.first_divergence
    left_out = (*result.unpaired, *result.unread)
    weaknesses = dict.fromkeys(weakness for task in result.tasks for weakness in task.weaknesses)
    return fit(
        {
            "brief_schema_version": SCHEMA_VERSION,
            "dumpdiff_version": __version__,
            "target": shorten(result.target),
            "reference": shorten(result.reference),
            "verdict": result.verdict,
            "exit_code": EXIT_CODES[result.verdict],
            "first_line": format_first_line(result),
            "n_findings": len(result.findings),
            "findings": [_convert_finding(finding) for finding in select_first(result.findings)],
            "compared": list_lowest_shares(result),
            "n_ranks": len(result.ranks),
            "n_steps": len(result.steps),
            "n_problems": count_problems(result),
            "weaknesses": list_first(weaknesses),
            "n_notes": len(left_out) + len(result.notes),
            "notes": list_first((*left_out, *result.notes)),
            "next": list_next_commands(result.verdict, None if first is None else first.finding),
        }
    )


def _convert_finding(finding: RunFinding) -> dict[str, Any]:
    place = {"rank": finding.number, "kind": finding.kind, "place": shorten(finding.place)}
    return {**convert_finding(finding.finding), **place}
