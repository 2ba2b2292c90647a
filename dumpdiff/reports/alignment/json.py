"""The result as JSON, for programs, in the form of docs/result.schema.json."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import IO, Any

import pandas as pd

from ... import __version__
from ...model.finding import Cause, Finding
from ...model.result import Baseline, Equivalence, Result, Side
from ...model.trace import Source
from ..formats.json import convert_problem, to_plain, write_document
from .summary import label_sides

#: Major: programs that read the old form fail. Minor: something was added.
#: History:
#:   1.0  first published form
#:   1.1  baseline: the second run of the reference; of a finding side, causes and unexplained
#:   1.2  process of a dump without ranks; rank is its number as before, which --rank takes
#:   1.3  findings of kind constant: tables that training does not change; before, their kind was
#:        parameter
#:   2.0  healed is reconverged, in coverage and as a reason of unmatched; of a finding id, by which
#:        commands take it; paths are absolute
#:   2.1  states: number of values and of ops in each state; uncompared: why values were not
#:        compared; coverage of values; findings of kind isolated; pairs in the states isolated and
#:        reconverged (before, the latter were incomparable). first_divergence is the first finding
#:        that is not isolated;
#:        files_read and files_total of a side; op and weakens of a problem; weaknesses
SCHEMA_VERSION = "2.1"


def to_json(result: Result) -> dict[str, Any]:
    """Return the result as plain dicts, lists, strings, ints, floats, bools and None.

    NaN ("not measured") is None, an infinite error is the string "Infinity" or "-Infinity".
    """
    first = result.first_divergence
    document = {
        "schema_version": SCHEMA_VERSION,
        "dumpdiff_version": __version__,
        "target": convert_side(result.target),
        "reference": convert_side(result.reference),
        "verdict": result.verdict,
        "first_divergence": None if first is None else finding_to_json(first),
        "findings": [finding_to_json(finding) for finding in result.findings],
        "coverage": convert_coverage(result.coverage),
        "states": result.states,
        "uncompared": _count_uncompared(result.uncompared),
        "pairs": _count_pairs(result),
        "unmatched": {
            "target": _list_unmatched(result, "target"),
            "reference": _list_unmatched(result, "reference"),
        },
        "learned": [_convert_equivalence(equivalence) for equivalence in result.learned],
        "noise_floor": result.noise_floor,
        "baseline": None if result.baseline is None else _convert_baseline(result.baseline),
        "notes": result.notes,
        "weaknesses": result.weaknesses,
        "problems": _list_problems(result),
        "details": result.details,
    }
    plain_document: dict[str, Any] = to_plain(document)
    return plain_document


def write(result: Result, stream: IO[bytes]) -> None:
    """Write the result as UTF-8 JSON, indented; the same result gives the same bytes."""
    write_document(to_json(result), stream)


def explanation_to_json(finding: Finding) -> dict[str, Any]:
    """Return the document of one finding, for ``dumpdiff explain``."""
    versions = {"schema_version": SCHEMA_VERSION, "dumpdiff_version": __version__}
    return {**versions, **finding_to_json(finding)}


def finding_to_json(finding: Finding) -> dict[str, Any]:
    """Return one finding as it is in the result's JSON."""
    return {
        "id": finding.id,
        "rank": finding.rank,
        "kind": finding.kind,
        "phase": finding.phase,
        "scope": finding.scope,
        "title": finding.title,
        "target_ops": finding.target_ops,
        "reference_ops": finding.reference_ops,
        "slots": [{"target": slots[0], "reference": slots[1]} for slots in finding.slots],
        "metrics": finding.metrics,
        "tolerance": finding.tolerance,
        "confidence": finding.confidence,
        "evidence": finding.evidence,
        "source": finding.source,
        "side": finding.side,
        "causes": [_convert_cause(cause) for cause in finding.causes],
        "unexplained": finding.unexplained,
    }


def convert_side(side: Side) -> dict[str, Any]:
    """Return one of the two dumps as it is in the result's JSON."""
    return {
        **_convert_source(side.source),
        "ops": side.ops,
        "tensors": side.tensors,
        "files_read": side.files_read,
        "files_total": side.files_total,
    }


def _convert_source(source: Source) -> dict[str, Any]:
    return {
        "path": os.path.abspath(source.path),
        "framework": source.framework,
        "format": source.format,
        "era": source.format_variant,
        "step": source.step,
        "rank": source.number,
        "process": source.process,
        "graph": source.graph,
        "details": source.details,
    }


def _convert_baseline(baseline: Baseline) -> dict[str, Any]:
    return {
        "source": _convert_source(baseline.source),
        "values": baseline.values,
        "estimated": baseline.estimated,
        "median": baseline.median,
        "largest": baseline.largest,
        "largest_op": baseline.largest_op,
        "unusable": baseline.unusable,
    }


def _convert_equivalence(equivalence: Equivalence) -> dict[str, Any]:
    return {
        "target": equivalence.target,
        "reference": equivalence.reference,
        "count": equivalence.count,
    }


def _convert_cause(cause: Cause) -> dict[str, Any]:
    return {
        "name": cause.name,
        "text": cause.text,
        "residual": cause.residual,
        "parameters": cause.parameters,
    }


def convert_coverage(
    coverage: Mapping[str, Mapping[str, Mapping[str, float]]],
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the coverage with its counts, all but the shares, as integers."""
    converted: dict[str, dict[str, dict[str, float]]] = {}
    for side, phases in coverage.items():
        converted[side] = {}
        for phase, figures in phases.items():
            converted[side][phase] = {
                name: figure if name.endswith("share") else int(figure)
                for name, figure in figures.items()
            }
    return converted


def _count_uncompared(uncompared: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the number of values that were not compared, by side, phase, state and reason."""
    names = ("side", "phase", "state", "reason")
    counts = Counter(zip(*(uncompared[name] for name in names), strict=True))
    return [
        {**dict(zip(names, key, strict=True)), "values": count} for key, count in counts.items()
    ]


def _count_pairs(result: Result) -> dict[str, int]:
    counts = result.pairs["state"].value_counts()
    return {str(state): int(count) for state, count in counts.items()}


def _list_unmatched(result: Result, side: str) -> list[dict[Hashable, Any]]:
    rows = result.unmatched[result.unmatched["side"] == side]
    return [dict(record) for record in rows.drop(columns="side").to_dict("records")]


def _list_problems(result: Result) -> list[dict[str, Any]]:
    problems: list[dict[str, Any]] = []
    for side_name, side in label_sides(result):
        for problem in side.problems:
            fields = {**convert_problem(problem), "op": problem.op, "weakens": problem.weakens}
            problems.append({"side": side_name, **fields})
    return problems
