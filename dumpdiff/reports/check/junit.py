"""The check of a run as a JUnit report: a case for each invariant."""

from __future__ import annotations

from typing import IO

from ...invariants import INVARIANTS, RunCheck
from ..formats.junit import build_case, build_suite, set_outcome, write_suites
from .blocks import format_violation


def write(check: RunCheck, stream: IO[bytes]) -> None:
    """Write the report as UTF-8 XML: violations are failures, what was not checked is skipped."""
    cases = []
    for item in check.checks:
        lines = [f"{item.checked} checked"]
        lines += [f"{count} not checked: {reason}" for reason, count in item.unchecked.items()]
        case = build_case("dumpdiff.check", INVARIANTS[item.name], lines)
        violations = item.violations
        if violations:
            details = [format_violation(violation) for violation in violations]
            set_outcome(case, "failure", details[0], item.name, details)
        elif not item.checked:
            set_outcome(case, "skipped", "nothing could be checked")
        cases.append(case)
    if check.verdict == "inconclusive":
        case = build_case("dumpdiff.check", "ranks could be compared", check.missing)
        set_outcome(case, "error", check.headline, "inconclusive", check.missing)
        cases.append(case)
    write_suites([build_suite("check", cases)], stream)
