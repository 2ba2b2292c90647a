"""Rules for configurations, as data, and violations of them."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ...model.formatting import escape_control

Severity = Literal["error", "writes nothing", "ignored"]

#: Severity -> consequence for the run, worst first.
SEVERITIES: dict[Severity, str] = {
    "error": "MindSpore stops the training with an exception",
    "writes nothing": "the training runs, but the dump is empty or the named part of it is missing",
    "ignored": "the training runs, but MindSpore does not do what the file says",
}


class Violation(NamedTuple):
    """A rule that one file breaks."""

    rule: str  #: the id of the rule
    field: str  #: ``section.field``, ``section``, or '' for the file as a whole
    severity: Severity
    message: str  #: what is wrong and what to write instead

    def __str__(self) -> str:
        place = f"{self.field}: " if self.field else ""
        return escape_control(f"{self.severity}: {place}{self.message} [{self.rule}]")


class Rule(NamedTuple):
    """One rule of the format."""

    id: str
    severity: Severity
    statement: str  #: the rule itself, in one sentence
    source: str = "run"  #: the evidence for it, one of :data:`fields.SOURCES`
    #: message of MindSpore 2.10 for a violation, without values; '' if there is none
    framework: str = ""

    def build_violation(self, field: str, message: str) -> Violation:
        """Return a violation of this rule at a field."""
        return Violation(self.id, field, self.severity, message)
