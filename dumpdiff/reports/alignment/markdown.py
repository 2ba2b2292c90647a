"""The result as Markdown for an issue or a merge request: short, with the evidence folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

from ... import __version__
from ...model.finding import Finding
from ...model.formatting import format_number, format_percent
from ...model.result import Result, Side
from ..formats.markdown import (
    format_code,
    format_comment,
    format_details,
    format_list,
    format_prose,
    format_table,
)
from .state_counts import (
    format_pair,
    list_occurring_states,
    list_reasons,
    list_state_rows,
)
from .summary import format_differing_values, format_headline, format_source, label_sides

_MAX_FINDINGS = 10  #: findings in the table
_MAX_EXPLAINED = 3  #: findings with all their evidence
_MAX_LINES = 10  #: notes, problems, and lines of evidence


def write(result: Result, stream: IO[bytes]) -> None:
    """Write the report as UTF-8."""
    stream.write(to_markdown(result).encode("utf-8", errors="backslashreplace"))


def to_markdown(result: Result) -> str:
    """Return the report: answer, dumps, findings, evidence, states, problems while reading.

    Names from the dumps are code, so that they mention nobody, link nowhere and break no table.
    """
    return format_comment(_build_sections(result))


def _build_sections(result: Result) -> Iterator[str]:
    label, _, answer = format_headline(result).partition(": ")
    yield f"**{label[0].upper()}{label[1:]}:** {format_prose(answer)}"
    first = result.first_divergence
    if first is not None and first.causes:
        cause = first.causes[0]
        yield f"**Why ({format_code(cause.name)}):** {format_prose(cause.text)}"
    yield _format_dumps(result)
    if result.findings:
        if result.verdict == "inconclusive" and result.first_divergence is not None:
            yield "The divergences are listed, but too little was compared to rely on them."
        yield _format_findings(result.findings)
        for finding in result.findings[:_MAX_EXPLAINED]:
            evidence = format_first_lines(tuple(_list_evidence(finding)))
            yield format_details(f"Finding {finding.rank}: evidence", evidence)
    yield format_details("What was compared", _format_states(result))
    if result.notes:
        yield format_details("Notes", format_first_lines(list(map(format_prose, result.notes))))
    problems = []
    for side_name, side in label_sides(result):
        problems += [f"{side_name}: {format_prose(str(problem))}" for problem in side.problems]
    if problems:
        yield format_details("Problems found while reading", format_first_lines(problems))
    yield f"<sub>dumpdiff {__version__}</sub>"


def _format_dumps(result: Result) -> str:
    rows = [(side_name, _format_dump(side)) for side_name, side in label_sides(result)]
    if result.baseline is not None:
        source, spread = result.baseline.source, format_number(result.baseline.largest)
        description = f"{format_prose(format_source(source))}: spread up to {spread}"
        rows.append(("baseline", f"{description}, {format_code(source.path)}"))
    return format_table(("side", "dump"), rows)


def _format_dump(side: Side) -> str:
    source = format_prose(format_source(side.source))
    return f"{source}: {side.ops} ops, {side.tensors} tensors, {format_code(side.source.path)}"


def _format_findings(findings: Sequence[Finding]) -> str:
    header = ("#", "kind", "module", "target", "reference", "error", "tolerance", "confidence")
    rows = [_format_row(finding) for finding in findings[:_MAX_FINDINGS]]
    table = format_table(header, rows, numeric=("#", "error", "tolerance", "confidence"))
    n_more = len(findings) - _MAX_FINDINGS
    return table + (f"\n\n{n_more} more findings." if n_more > 0 else "")


def _format_row(finding: Finding) -> tuple[str, ...]:
    error = format_number(finding.metrics.get("error", float("nan")))
    side = "" if finding.side in ("", "unknown") else f" (wrong side: {finding.side})"
    return (
        str(finding.rank),
        f"{finding.kind}, {format_prose(finding.phase)}{side}",
        format_code(finding.scope),
        _format_ends(finding.target_ops),
        _format_ends(finding.reference_ops),
        error,
        format_number(finding.tolerance),
        f"{finding.confidence * 100:.0f} %",
    )


def _format_ends(ops: Sequence[str]) -> str:
    """Return the op where values diverge; for a region also the op where it begins."""
    if len(ops) < 2:
        return format_code(ops[0]) if ops else "-"
    return f"{format_code(ops[0])} to {format_code(ops[-1])}"


def _list_evidence(finding: Finding) -> Iterator[str]:
    yield format_prose(finding.title)
    if finding.slots:
        slots = [f"{format_code(target)} vs {format_code(ref)}" for target, ref in finding.slots]
        yield f"diverges in {', '.join(slots)}"
    if finding.source:
        places = []
        for side_name, place in finding.source.items():
            places.append(f"{format_code(place)} ({format_prose(side_name)})")
        yield f"called from {', '.join(places)}"
    if finding.metrics:
        metrics = []
        for name, value in finding.metrics.items():
            metrics.append(f"{name.replace('_', ' ')} {format_number(value)}")
        yield ", ".join(metrics)
    yield from map(format_prose, finding.evidence)
    yield f"id {format_code(finding.id)}"
    for cause in finding.causes:
        yield f"explained by {format_code(cause.name)}: {format_prose(cause.text)}"
    if finding.unexplained:
        yield f"not explained: {format_prose(finding.unexplained)}"


def _format_states(result: Result) -> str:
    """Return the states of all values and ops, and why some were not compared."""
    rows = list_state_rows(result)
    states = list_occurring_states(rows)
    state_rows = []
    for row in rows:
        shares = " / ".join(map(format_percent, row.shares))
        counts = [format_pair(row.counts[state]) for state in states]
        state_rows.append((f"{row.phase} {row.unit}", shares, *counts))
    header = ("target / reference", "compared", *states)
    sections = [format_table(header, state_rows, numeric=header[1:])]
    differing_values = result.count_differing_values()
    if differing_values:
        sections.append(f"{format_differing_values(differing_values).capitalize()}.")
    reason_rows = []
    for reason in list_reasons(result.uncompared, result.unmatched):
        counts = [format_pair(reason.values), format_pair(reason.ops)]
        reason_rows.append((format_prose(reason.reason), *counts))
    if reason_rows:
        reason_header = ("not compared, target / reference", "values", "ops")
        sections.append(format_table(reason_header, reason_rows, numeric=reason_header[1:]))
    return "\n\n".join(sections)


def format_first_lines(lines: Sequence[str]) -> str:
    """Return a list of the first lines, which are Markdown already."""
    n_more = len(lines) - _MAX_LINES
    return format_list([*lines[:_MAX_LINES], *([f"{n_more} more"] if n_more > 0 else [])])
