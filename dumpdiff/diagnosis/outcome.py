"""A whole triage: what was given, what each stage found, what follows, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass

from .advice import Advice, advise
from .case import Case
from .decision import Decision, decide
from .evidence import Evidence


@dataclass(frozen=True)
class TriageResult:
    """What ``dumpdiff triage`` has to say."""

    case: Case
    evidence: Evidence
    decision: Decision
    advice: tuple[Advice, ...]


def conclude(case: Case, evidence: Evidence) -> TriageResult:
    """The conclusion from what the stages found."""
    decision = decide(case, evidence)
    return TriageResult(case, evidence, decision, advise(case, evidence, decision))
