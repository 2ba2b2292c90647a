"""A triage as a JUnit report: the conclusion and every stage are test cases.

A stage that differs is a failure, an inconclusive one an error, one without input is skipped.
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
_OUTCOMES: Mapping[str, Outcome] = {"differ": "failure", "inconclusive": "error"}


def write(triaged: TriageResult, stream: IO[bytes]) -> None:
    """Write the report as UTF-8 XML; the same triage gives the same bytes."""
    stages = {stage.name: stage for stage in triaged.evidence.stages}
    cases = []
    for name in STAGES:
        if name in stages:
            cases.append(_build_stage_case(stages[name]))
        else:
            reason = triaged.evidence.skipped.get(name, "")
            cases.append(_build_skipped_case(name, reason))
    conclusion = build_suite("triage", [_build_conclusion_case(triaged)])
    write_suites([conclusion, build_suite("stages", cases)], stream)


def _build_conclusion_case(triaged: TriageResult) -> ET.Element:
    decision = triaged.decision
    case = build_case(_CLASS, "conclusion", [decision.headline])
    if decision.verdict in _OUTCOMES:
        lines = list(decision.evidence)
        lines += [f"ruled out: {p.place}, by {p.stage}: {p.summary}" for p in decision.ruled_out]
        lines += decision.missing
        for advice in triaged.advice:
            lines += [f"next: {advice.reason}", *advice.commands]
        outcome = _OUTCOMES[decision.verdict]
        set_outcome(case, outcome, decision.headline, decision.outcome, lines)
    return case


def _build_stage_case(stage: Stage) -> ET.Element:
    case = build_case(_CLASS, stage.name, [stage.headline])
    if stage.verdict in _OUTCOMES:
        lines = (*stage.evidence, *stage.missing)
        set_outcome(case, _OUTCOMES[stage.verdict], stage.headline, stage.verdict, lines)
    return case


def _build_skipped_case(name: str, reason: str) -> ET.Element:
    case = build_case(_CLASS, name, ())
    set_outcome(case, "skipped", reason or "not given")
    return case
