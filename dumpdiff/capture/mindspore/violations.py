"""What can be wrong with a configuration: a rule as data, and what is said of a file that breaks one."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ...model.formatting import escape_control

Severity = Literal["error", "writes nothing", "ignored"]

#: How bad it is, worst first, and what it means for the run.
SEVERITIES: dict[Severity, str] = {
    "error": "MindSpore stops the training with an exception",
    "writes nothing": "the training runs, and the dump is empty or the named part of it is missing",
    "ignored": "the training runs, and MindSpore does something else than the file says",
}


class Violation(NamedTuple):
    """A rule broken by one file."""

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
    source: str = "run"  #: how it is known, one of :data:`fields.SOURCES`
    framework: str = (
        ""  #: what MindSpore 2.10 says when it is broken, without the values; '' if it says nothing
    )

    def build_violation(self, field: str, message: str) -> Violation:
        """The violation of this rule at a field."""
        return Violation(self.id, field, self.severity, message)
