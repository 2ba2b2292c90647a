"""The result of a run as Markdown for an issue or a merge request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from ... import __version__
from ...model.formatting import format_number
from ...model.run_result import RunFinding, RunResult, format_place
from ..alignment.markdown import format_first_lines
from ..formats.markdown import (
    format_code,
    format_comment,
    format_details,
    format_prose,
    format_table,
)
from .summary import (
    Matrix,
    build_layer_matrix,
    build_step_matrix,
    fold_matrix,
    format_headline,
    format_reception,
    format_scope,
    get_sign,
    label_matrix,
    list_signs,
    select_matrix,
)

_MAX_FINDINGS = 10  #: findings in the table
_MAX_EXPLAINED = 3  #: findings with all their evidence


def write(result: RunResult, stream: IO[bytes]) -> None:
    """Write the report as UTF-8."""
    stream.write(to_markdown(result).encode("utf-8", errors="backslashreplace"))


def to_markdown(result: RunResult) -> str:
    """Return the report: answer, tables of ranks, findings, evidence, what was not read."""
    return format_comment(_build_sections(result))


def _build_sections(result: RunResult) -> Iterator[str]:
    label, _, answer = format_headline(result).partition(": ")
    yield f"**{label[0].upper()}{label[1:]}:** {format_prose(answer)}"
    first = result.first_divergence
    if first is not None and first.finding.causes:
        cause = first.finding.causes[0]
        yield f"**Why ({format_code(cause.name)}):** {format_prose(cause.text)}"
    rows = [("target", format_code(result.target)), ("reference", format_code(result.reference))]
    yield format_table(("side", "dump"), rows)
    yield format_prose(f"{format_scope(result)}.")
    if len(result.steps) > 1:
        labels = [format_place((rank,), ()) for rank in result.ranks]
        yield _format_matrix("rank", build_step_matrix(result), labels)
    step, phase = select_matrix(result)
    matrix = build_layer_matrix(result, step, phase)
    if matrix.columns:
        labels = [format_place((task.rank,), ()) for task in result.list_tasks(step)]
        yield _format_matrix(label_matrix(step, phase), matrix, labels)
        yield format_code(list_signs())
    if result.findings:
        yield _format_findings(result)
        for finding in result.findings[:_MAX_EXPLAINED]:
            lines = list(map(format_prose, _list_evidence(finding)))
            yield format_details(f"Finding {finding.number}: evidence", format_first_lines(lines))
    for title, sentences in (
        ("Not read", (*result.unpaired, *result.unread)),
        ("Notes", result.notes),
    ):
        if sentences:
            lines = list(map(format_prose, sentences))
            yield format_details(title, format_first_lines(lines))
    yield f"<sub>dumpdiff {__version__}</sub>"


def _format_matrix(corner: str, matrix: Matrix, labels: list[str]) -> str:
    folded_matrix = fold_matrix(matrix, labels)
    rows = []
    for label, cells in folded_matrix.rows:
        signs = [format_code(get_sign(cell)) for cell in cells]
        rows.append((format_prose(label), *signs))
    return format_table((corner, *map(format_code, folded_matrix.columns)), rows)


def _format_findings(result: RunResult) -> str:
    header = ("#", "where", "kind", "finding", "error", "tolerance")
    rows = []
    for finding in result.findings[:_MAX_FINDINGS]:
        metrics = finding.finding.metrics
        rows.append(
            (
                str(finding.number),
                format_prose(finding.place),
                f"{finding.kind}, {format_prose(finding.finding.phase)}",
                format_prose(finding.title),
                format_number(metrics.get("error", float("nan"))),
                format_number(finding.finding.tolerance),
            )
        )
    table = format_table(header, rows, numeric=("#", "error", "tolerance"))
    n_more = len(result.findings) - _MAX_FINDINGS
    return table + (f"\n\n{n_more} more findings." if n_more > 0 else "")


def _list_evidence(finding: RunFinding) -> Iterator[str]:
    yield finding.title
    for reception in finding.receptions:
        yield format_reception(reception)
    yield from finding.evidence
    for cause in finding.finding.causes:
        yield f"explained by {cause.name}: {cause.text}"
