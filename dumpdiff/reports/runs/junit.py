"""The result of a run as a JUnit report: a suite for each rank, with a case for each layer.

Findings of the run are failed cases of the ranks that have them. Layers that differ as a
consequence are skipped cases, layers that agree are passed cases. A task that is inconclusive, or
that could not be compared, is an error.
"""

from __future__ import annotations

from typing import IO
from xml.etree import ElementTree as ET

from ...model.formatting import format_number
from ...model.run_result import LayerState, RunFinding, RunResult, TaskResult, format_place
from ...model.verdict import AGREEING, DIFFERING_STATES, RECONVERGED
from ..formats.junit import build_case, build_suite, set_outcome, write_suites
from .summary import format_headline, format_reception, label_rank


def write(result: RunResult, stream: IO[bytes]) -> None:
    """Write the report as UTF-8 XML; the same result gives the same bytes."""
    suites = [_build_run_suite(result)]
    suites += [_build_rank_suite(result, rank) for rank in result.ranks]
    write_suites(suites, stream)


def _build_run_suite(result: RunResult) -> ET.Element:
    """Return one case: whether every rank and step could be compared."""
    lines = [f"target: {result.target}", f"reference: {result.reference}"]
    lines += [*result.unpaired, *result.unread, *result.notes]
    case = build_case("dumpdiff", "everything could be compared", lines)
    if result.verdict == "inconclusive":
        set_outcome(case, "error", format_headline(result), "inconclusive", result.notes)
    return build_suite("run", [case])


def _build_rank_suite(result: RunResult, rank: int | None) -> ET.Element:
    cases = []
    for task in result.tasks:
        if task.rank != rank:
            continue
        cases.append(_build_task_case(task))
        findings = [finding for finding in result.findings if _is_of_task(finding, task)]
        cases += [_build_finding_case(finding, task) for finding in findings]
        cases += [_build_layer_case(layer, task) for layer in task.layers]
    return build_suite(label_rank(result, rank), cases)


def _is_of_task(finding: RunFinding, task: TaskResult) -> bool:
    has_rank = task.rank in finding.ranks or (task.rank is None and not finding.ranks)
    return has_rank and finding.step == task.step


def _get_class_name(task: TaskResult, phase: str = "") -> str:
    words = ["dumpdiff"]
    for label, number in (("rank", task.rank), ("step", task.step)):
        if number is not None:
            words.append(f"{label}{number}")
    return ".".join([*words, phase] if phase else words)


def _build_task_case(task: TaskResult) -> ET.Element:
    case = build_case(_get_class_name(task), f"{task.place} was compared", [task.headline])
    if task.problem:
        set_outcome(case, "error", task.problem, "not compared")
    elif task.verdict == "inconclusive":
        set_outcome(case, "error", task.headline, "inconclusive", task.notes)
    return case


def _build_finding_case(finding: RunFinding, task: TaskResult) -> ET.Element:
    case = build_case(_get_class_name(task, finding.finding.phase), finding.title, ())
    lines = [
        f"finding {finding.number}, {finding.place}",
        *(format_reception(reception) for reception in finding.receptions),
        *(f"{name} {format_number(value)}" for name, value in finding.finding.metrics.items()),
        *finding.evidence,
        *(f"why ({cause.name}): {cause.text}" for cause in finding.finding.causes),
    ]
    set_outcome(case, "failure", finding.title, finding.kind, lines)
    return case


def _build_layer_case(layer: LayerState, task: TaskResult) -> ET.Element:
    summary = (
        f"{layer.differing} of {layer.values} values differ; "
        f"largest error {format_number(layer.ratio)} x tolerance"
    )
    name = layer.layer or "outside of layers"
    case = build_case(_get_class_name(task, layer.phase), name, [summary])
    if layer.state in DIFFERING_STATES:
        place = format_place((task.rank,), (task.step,))
        set_outcome(case, "skipped", f"differs, see the findings of {place}: {summary}")
    elif layer.state not in (AGREEING, RECONVERGED):
        set_outcome(case, "skipped", f"nothing could be compared: {summary}")
    return case
