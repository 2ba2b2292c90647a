"""The result of a run as one self-contained HTML file: ranks by layers, and every task.

A matrix for each step shows its ranks and their layers; arcs next to it lead from the rank where a
divergence begins to the ranks that receive it. Step and rank are selected in the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from ...model.finding import Finding
from ...model.run_result import RunResult, TaskResult, format_place
from ..alignment.html.heat_map import get_ratio_class
from ..language import translate, use_chosen_language
from ..page.renderer import Page, render
from .first_line import format_first_line
from .markdown import to_markdown
from .summary import (
    Cell,
    build_layer_matrix,
    format_headline,
    format_reception,
    format_scope,
    label_matrix,
    label_rank,
    list_phases,
)

_STYLES = ("page.css", "comparison.css", "alignment.css", "run.css")
_SCRIPTS = ("unpack.js", "elements.js", "hash.js", "frame.js", "run.js")
_MAX_FINDINGS = 100  #: of the run that the page holds; the JSON has all of them
_MAX_TASK_FINDINGS = 10  #: of each task
_ROW_HEIGHT = 22  #: of the matrix, in pixels, as comparison.css draws it
_ARC_STEP = 14  #: how much further right the arcs of each next finding go


@dataclass(frozen=True)
class Arc:
    """The way of an error from one rank to another."""

    path: str
    tooltip: str
    task: str  #: id of the receiving task's section


@dataclass(frozen=True)
class MatrixView:
    """The ranks and layers of one step."""

    step: str  #: its number, '' if it has none
    title: str
    columns: tuple[str, ...]
    #: label and rank of the row, task's id, (CSS class, tooltip) of each cell
    rows: tuple[tuple[str, str, str, tuple[tuple[str, str] | None, ...]], ...]
    arcs: tuple[Arc, ...]
    arc_width: int
    height: int


@dataclass(frozen=True)
class TaskView:
    """One task, as a section of the page."""

    id: str
    step: str
    rank: str
    title: str
    task: TaskResult
    findings: tuple[Finding, ...]
    states: tuple[tuple[str, str], ...]  #: phase and side, counts of states


def write(result: RunResult, stream: IO[bytes]) -> None:
    """Write the report; equal results give equal bytes.

    Raises DumpError if the packages that only this report needs are not installed.
    """
    markdown = to_markdown(result)
    with use_chosen_language():
        stream.write(render(build_page(result, markdown)))


def build_served_run_page(result: RunResult) -> Page:
    """Return the report for a server, which has a page for each task, too."""
    return build_page(result, to_markdown(result))


def build_page(result: RunResult, markdown: str) -> Page:
    """Return the page of a run; ``markdown`` is what its button copies."""
    first = result.first_divergence
    first_step = result.steps[0] if first is None else first.step
    first_rank = first.ranks[0] if first is not None and first.ranks else result.ranks[0]
    counts = {
        "aligned": sum(task.verdict == "aligned" for task in result.tasks),
        "diverged": sum(task.verdict == "diverged" for task in result.tasks),
        "inconclusive": sum(
            task.verdict == "inconclusive" and not task.problem for task in result.tasks
        ),
        "not compared": sum(bool(task.problem) for task in result.tasks),
    }
    colon = translate(": ")  # the verdict is before it
    headline = format_headline(result).partition(colon)[2]
    answer = headline
    if result.verdict == "diverged":  # the sentence about it is long
        answer = format_first_line(result).partition(colon)[2]
    context = {
        "result": result,
        "answer": answer,
        "headline": headline,
        "scope": format_scope(result),
        "counts": counts,
        "matrices": list(_view_matrices(result)),
        "tasks": [_view_task(result, task) for task in result.tasks],
        "findings": result.findings[:_MAX_FINDINGS],
        "format_reception": format_reception,
        "left_out": (*result.unpaired, *result.unread),
        "steps": [_number(step) for step in result.steps],
        "ranks": [(_number(rank), label_rank(result, rank)) for rank in result.ranks],
    }
    return Page(
        title=translate(
            "{verdict}: a run of {count} ranks compared",
            verdict=translate(result.verdict),
            count=len(result.ranks),
        ),
        template="run.html",
        context=context,
        tables={},
        data={
            "markdown": markdown,
            "step": _number(first_step),
            "rank": _number(first_rank),
        },
        styles=_STYLES,
        scripts=_SCRIPTS,
    )


def _number(number: int | None) -> str:
    return "" if number is None else str(number)


def _name_task(step: int | None, rank: int | None) -> str:
    return f"task-{_number(step)}-{_number(rank)}"


def _view_matrices(result: RunResult) -> Iterator[MatrixView]:
    """Yield the matrices of all phases of all steps; arcs are drawn next to the first of a step."""
    for step in result.steps:
        for number, phase in enumerate(list_phases(result, step)):
            yield _view_matrix(result, step, phase, has_arcs=number == 0)


def _view_matrix(result: RunResult, step: int | None, phase: str, *, has_arcs: bool) -> MatrixView:
    matrix = build_layer_matrix(result, step, phase)
    tasks = list(result.list_tasks(step))
    rows = []
    for task, (label, cells) in zip(tasks, matrix.rows, strict=True):
        cell_views = tuple(_view_cell(cell) for cell in cells)
        rows.append((label, _number(task.rank), _name_task(step, task.rank), cell_views))
    arcs = tuple(_draw_arcs(result, step, [task.rank for task in tasks])) if has_arcs else ()
    n_findings = sum(
        finding.step == step and bool(finding.receptions) for finding in result.findings
    )
    return MatrixView(
        step=_number(step),
        title=label_matrix(step, phase),
        columns=matrix.columns,
        rows=tuple(rows),
        arcs=arcs,
        arc_width=_ARC_STEP * (n_findings + 2),
        height=_ROW_HEIGHT * len(rows),
    )


def _view_cell(cell: Cell | None) -> tuple[str, str] | None:
    if cell is None:
        return None
    css_class = "none" if cell.state == "not compared" else get_ratio_class(cell.ratio)
    if cell.state == "introduced":
        css_class += " first"
    return css_class, cell.tooltip


def _draw_arcs(result: RunResult, step: int | None, ranks: list[int | None]) -> Iterator[Arc]:
    """Yield a curve from the rank of each finding to every rank that receives it."""
    depth = 1
    for finding in result.findings:
        if finding.step != step or not finding.receptions or not finding.ranks:
            continue
        depth += 1
        start = (ranks.index(finding.ranks[0]) + 0.5) * _ROW_HEIGHT
        bend = depth * _ARC_STEP
        for reception in finding.receptions:
            for rank in reception.ranks:
                end = (ranks.index(rank) + 0.5) * _ROW_HEIGHT
                path = f"M0 {start:g}C{bend} {start:g} {bend} {end:g} 5 {end:g}"
                group = f" of {reception.group}" if reception.group else ""
                tooltip = translate(
                    "rank {rank} receives finding {number} from rank {origin} through {exchange}",
                    rank=rank,
                    number=finding.number,
                    origin=finding.ranks[0],
                    exchange=f"{reception.kind}{group}: {reception.op}",
                )
                yield Arc(path, tooltip, _name_task(step, rank))


def _view_task(result: RunResult, task: TaskResult) -> TaskView:
    states = []
    for side, phases in task.states.items():
        for phase, units in phases.items():
            counts = translate(", ").join(
                f"{count} {translate(state)}" for state, count in units["values"].items()
            )
            if counts:
                phase_word, side_word = translate(phase), translate(side)
                heading = translate(
                    "{phase} values of the {side}", phase=phase_word, side=side_word
                )
                states.append((heading, counts))
    place = format_place((), (task.step,))
    title = translate(", ").join(filter(None, (label_rank(result, task.rank), place)))
    return TaskView(
        id=_name_task(task.step, task.rank),
        step=_number(task.step),
        rank=_number(task.rank),
        title=title,
        task=task,
        findings=task.findings[:_MAX_TASK_FINDINGS],
        states=tuple(states),
    )
