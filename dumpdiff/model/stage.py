"""The outcome of one stage of a triage, in the same form for all stages."""

from __future__ import annotations

from dataclasses import dataclass

from .verdict import Verdict


@dataclass(frozen=True)
class Stage:
    """The outcome of one stage."""

    name: str  #: settings, checklist, logs, ...
    verdict: Verdict
    headline: str  #: one line for a person, without the verdict
    evidence: tuple[str, ...] = ()  #: what the headline rests on, most important first
    missing: tuple[str, ...] = ()  #: what could not be compared, and why
