"""A triage as a JUnit report: the conclusion and every stage are test cases.

What differs has failed, what is inconclusive is an error, and what the case names nothing for was skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO
from xml.etree import ElementTree as ET

from ...diagnosis.evidence import STAGES
from ...diagnosis.outcome import TriageResult
from ...model.stage import Stage
from ..formats.junit import Outcome, build_case, build_suite, set_outcome, write_suites

_CLASS = "dumpdiff.triage"
_ENDS: Mapping[str, Outcome] = {"differ": "failure", "inconclusive": "error"}


def write(triaged: TriageResult, stream: IO[bytes]) -> None:
    """Write the report as UTF-8 XML; the same triage gives the same bytes."""
    stages = {stage.name: stage for stage in triaged.evidence.stages}
    skipped = triaged.evidence.skipped
    cases = [
        _stage(stages[name]) if name in stages else _skipped(name, skipped.get(name, ""))
        for name in STAGES
    ]
    write_suites(
        [build_suite("triage", [_conclusion(triaged)]), build_suite("stages", cases)], stream
    )


def _conclusion(triaged: TriageResult) -> ET.Element:
    decision = triaged.decision
    case = build_case(_CLASS, "conclusion", [decision.headline])
    if decision.verdict in _ENDS:
        advice = [line for one in triaged.advice for line in (f"next: {one.why}", *one.commands)]
        ruled = [f"ruled out: {one.place}, by {one.by}: {one.said}" for one in decision.ruled_out]
        lines = [*decision.evidence, *ruled, *decision.missing, *advice]
        set_outcome(case, _ENDS[decision.verdict], decision.headline, decision.outcome, lines)
    return case


def _stage(stage: Stage) -> ET.Element:
    case = build_case(_CLASS, stage.name, [stage.headline])
    if stage.verdict in _ENDS:
        set_outcome(
            case,
            _ENDS[stage.verdict],
            stage.headline,
            stage.verdict,
            (*stage.evidence, *stage.missing),
        )
    return case


def _skipped(name: str, why: str) -> ET.Element:
    case = build_case(_CLASS, name, ())
    set_outcome(case, "skipped", why or "not given")
    return case
