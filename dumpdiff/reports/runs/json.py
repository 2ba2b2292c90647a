"""The result of a run as JSON, for programs, in the form of docs/run.schema.json."""

from __future__ import annotations

import os
from typing import IO, Any

from ... import __version__
from ...model.run_result import LayerState, Reception, RunFinding, RunResult, TaskResult
from ..alignment.json import convert_coverage, convert_side, finding_to_json
from ..formats.json import convert_problem, to_plain, write_document
from .summary import format_headline

#: Major: programs that read the old form fail. Minor: something was added.
#: History:
#:   1.0  first published form
SCHEMA_VERSION = "1.0"


def to_json(result: RunResult) -> dict[str, Any]:
    """Return the result as plain dicts, lists, strings, ints, floats, bools and None.

    NaN ("not measured") is None, an infinite error is the string "Infinity" or "-Infinity".
    """
    first = result.first_divergence
    document = {
        "run_schema_version": SCHEMA_VERSION,
        "dumpdiff_version": __version__,
        "target": os.path.abspath(result.target),
        "reference": os.path.abspath(result.reference),
        "verdict": result.verdict,
        "headline": format_headline(result),
        "first_divergence": None if first is None else _convert_finding(first),
        "findings": [_convert_finding(finding) for finding in result.findings],
        "steps": result.steps,
        "ranks": result.ranks,
        "coordinates": result.coordinates,
        "tasks": [_convert_task(task) for task in result.tasks],
        "unpaired": result.unpaired,
        "unread": result.unread,
        "notes": result.notes,
        "details": result.details,
    }
    plain_document: dict[str, Any] = to_plain(document)
    return plain_document


def write(result: RunResult, stream: IO[bytes]) -> None:
    """Write the result as UTF-8 JSON, indented; the same result gives the same bytes."""
    write_document(to_json(result), stream)


def _convert_finding(finding: RunFinding) -> dict[str, Any]:
    return {
        "number": finding.number,
        "id": finding.id,
        "kind": finding.kind,
        "step": finding.step,
        "steps": finding.steps,
        "ranks": finding.ranks,
        "place": finding.place,
        "title": finding.title,
        "ops": finding.ops,
        "receptions": [_convert_reception(reception) for reception in finding.receptions],
        "evidence": finding.evidence,
        "task": finding.task,
        "finding": finding_to_json(finding.finding),
    }


def _convert_reception(reception: Reception) -> dict[str, Any]:
    return {
        "ranks": reception.ranks,
        "kind": reception.kind,
        "group": reception.group,
        "op": reception.op,
    }


def _convert_task(task: TaskResult) -> dict[str, Any]:
    return {
        "step": task.step,
        "rank": task.rank,
        "reference_rank": task.reference_rank,
        "verdict": task.verdict,
        "headline": task.headline,
        "problem": task.problem,
        "folder": task.folder,
        "target": None if task.target is None else convert_side(task.target),
        "reference": None if task.reference is None else convert_side(task.reference),
        "findings": [finding_to_json(finding) for finding in task.findings],
        "n_findings": task.n_findings,
        "coverage": convert_coverage(task.coverage),
        "states": task.states,
        "layers": [_convert_layer(layer) for layer in task.layers],
        "notes": task.notes,
        "weaknesses": task.weaknesses,
        "problems": _list_problems(task),
    }


def _convert_layer(layer: LayerState) -> dict[str, Any]:
    return {
        "phase": layer.phase,
        "layer": layer.layer,
        "state": layer.state,
        "ratio": layer.ratio,
        "values": layer.values,
        "differing": layer.differing,
    }


def _list_problems(task: TaskResult) -> list[dict[str, Any]]:
    problems: list[dict[str, Any]] = []
    for side_name, side in (("target", task.target), ("reference", task.reference)):
        if side is None:
            continue
        for problem in side.problems:
            fields = {**convert_problem(problem), "op": problem.op, "weakens": problem.weakens}
            problems.append({"side": side_name, **fields})
    return problems
