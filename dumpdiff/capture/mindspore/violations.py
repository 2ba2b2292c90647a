"""What can be wrong with a configuration: the rules as data, and what is said of a file that breaks one."""

from __future__ import annotations

from typing import Literal, NamedTuple

#: How bad it is, worst first, and what that means for the run.
SEVERITIES = {
    "error": "MindSpore stops the training with an exception",
    "writes nothing": "the training runs and there is no dump, or the named part of it is missing",
    "ignored": "the training runs and MindSpore does something else than the file says",
}
Severity = Literal["error", "writes nothing", "ignored"]


class Rule(NamedTuple):
    """One rule of the format."""

    id: str
    severity: Severity
    says: str  #: the rule itself
    framework: str  #: what MindSpore 2.10 says when it is broken; '' if nothing


class Violation(NamedTuple):
    """A rule broken by one file."""

    rule: str  #: the id of one of RULES
    field: str  #: ``section.field``, ``section``, or '' for the file as a whole
    severity: Severity
    message: str  #: what is wrong and what to write instead

    def __str__(self) -> str:
        place = f"{self.field}: " if self.field else ""
        return f"{self.severity}: {place}{self.message} [{self.rule}]"


RULES: dict[str, Rule] = {}


def broken(rule: str, field: str, message: str) -> Violation:
    """The violation of a rule; its severity is the rule's."""
    return Violation(rule, field, RULES[rule].severity, message)
