"""The report about a run that a person reads in a terminal: the answer first, then the evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ...model.formatting import escape_control
from ...model.run_result import RunFinding, RunResult, format_place
from ..alignment.text import (
    ALL,
    COLORS,
    View,
    build_list,
    format_cause,
    format_measure,
    format_source_lines,
    label_line,
)
from ..formats.wrapping import WrappedText
from ..language import translate, use_chosen_language
from ..sentences import translate_sentence
from .first_line import format_first_line
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


@use_chosen_language()
def write(result: RunResult, console: Console, view: View = ALL) -> None:
    """Print the report; the first line is the short answer, unbroken on any console."""
    first_line = Text(format_first_line(result), style=COLORS[result.verdict])
    console.print(first_line, soft_wrap=True)
    if view.quiet:
        return
    console.print()
    console.print(WrappedText(format_headline(result)))
    console.print()
    for side, path in (("target", result.target), ("reference", result.reference)):
        line = Text.assemble((label_line(side), "bold"), escape_control(path))
        console.print(line, soft_wrap=True)
    console.print(Text.assemble((label_line("compared"), "bold"), format_scope(result)))
    for part in _build_parts(result, view):
        console.print()
        console.print(part)


def _build_parts(result: RunResult, view: View) -> Iterator[RenderableType]:
    if len(result.steps) > 1:
        yield _build_matrix("rank", build_step_matrix(result), _list_labels(result))
    step, phase = select_matrix(result)
    layer_matrix = build_layer_matrix(result, step, phase)
    if layer_matrix.columns:
        labels = [format_place((task.rank,), ()) for task in result.list_tasks(step)]
        yield _build_matrix(label_matrix(step, phase), layer_matrix, labels)
        yield Text(list_signs())
    if result.findings:
        yield from _build_findings(result.findings, view)
    left_out = [*result.unpaired, *result.unread]
    if left_out:
        yield build_list(translate("not read"), list(map(translate_sentence, left_out)))
    if result.notes:
        yield build_list(translate("notes"), list(map(translate_sentence, result.notes)))


def _list_labels(result: RunResult) -> list[str]:
    return [format_place((rank,), ()) for rank in result.ranks]


def _build_matrix(corner: str, matrix: Matrix, labels: Sequence[str]) -> Table:
    folded_matrix = fold_matrix(matrix, labels)
    table = _build_table(corner, *folded_matrix.columns)
    for label, cells in folded_matrix.rows:
        table.add_row(label, *map(get_sign, cells))
    return table


def _build_findings(findings: Sequence[RunFinding], view: View) -> Iterator[RenderableType]:
    matching_findings = [
        finding for finding in findings if view.shows(finding.finding.phase, finding.finding.scope)
    ]
    printed_findings = matching_findings[: view.limit]
    for finding in printed_findings:
        measure = format_measure(finding.kind, finding.finding)
        place = f"{translate_sentence(finding.place)}{translate(': ')}"
        heading = WrappedText(f"{finding.number}. {place}{measure}", hanging=4)
        title, *details = map(escape_control, _list_facts(finding, view))
        lines = [WrappedText(line, indent=4, hanging=2) for line in details]
        yield Group(heading, WrappedText(title, "bold", indent=4), *lines)
    if len(printed_findings) < len(findings):
        n_printed, n_all = len(printed_findings), len(findings)
        yield Text(translate("{shown} of {total} findings shown", shown=n_printed, total=n_all))


def _list_facts(finding: RunFinding, view: View) -> list[str]:
    lines = [translate_sentence(finding.title)]
    lines += [format_reception(reception) for reception in finding.receptions]
    task_finding = finding.finding
    if task_finding.scope and task_finding.scope not in finding.title:
        lines.append(translate("scope: {scope}", scope=task_finding.scope))
    for side, ops in (
        ("target", task_finding.target_ops),
        ("reference", task_finding.reference_ops),
    ):
        if ops and ops[-1] not in finding.title:
            lines.append(f"{translate(side)}{translate(': ')}{ops[-1]}")
    if task_finding.source:
        lines.append(format_source_lines(task_finding))
    for cause in task_finding.causes[:1]:
        lines.append(format_cause(translate("why"), cause))
    if view.verbose:
        evidence = translate("; ").join(map(translate_sentence, finding.evidence))
        lines.append(translate("evidence: {evidence}", evidence=evidence))
        lines.append(translate("id: {id}, in {task}", id=finding.id, task=finding.task))
    return lines


def _build_table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(escape_control(column), overflow="fold")
    return table
