"""The result of a triage: the case, what each stage found, the conclusion, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass

from .advice import Advice, advise
from .case import Case
from .decision import Decision, decide
from .evidence import Evidence


@dataclass(frozen=True)
class TriageResult:
    """The result of ``dumpdiff triage``."""

    case: Case
    evidence: Evidence
    decision: Decision
    advice: tuple[Advice, ...]


def conclude(case: Case, evidence: Evidence) -> TriageResult:
    """Return the conclusion from what the stages found."""
    decision = decide(evidence)
    return TriageResult(case, evidence, decision, advise(case, evidence, decision))
