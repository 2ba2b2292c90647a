"""What every stage of a triage has to say, in one shape, so that stages can be joined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: agree: nothing was found that could make the runs part; differ: something was; unclear: too little is known.
Verdict = Literal["agree", "differ", "unclear"]


@dataclass(frozen=True)
class Stage:
    """The outcome of one stage."""

    name: str  #: settings, checklist, logs, ...
    verdict: Verdict
    headline: str  #: one line for a person, without the verdict
    evidence: tuple[str, ...] = ()  #: what the headline rests on, most telling first
    missing: tuple[str, ...] = ()  #: what could not be looked at, and why
