"""A golden check as a JUnit report: a case for each value that is not as recorded, one for all."""

from __future__ import annotations

from typing import IO

from ...golden_reference import GoldenCheck
from ..formats.junit import Outcome, build_case, build_suite, set_outcome, write_suites
from .blocks import format_difference

_MAX_CASES = 100  #: a CI server shows no more; the JSON has all


def write(check: GoldenCheck, stream: IO[bytes]) -> None:
    """Write the report as UTF-8 XML: a difference is a failure, what is unknown an error."""
    summary = build_case("dumpdiff.golden", "every value is as recorded", [check.headline])
    if check.verdict == "differ":
        set_outcome(summary, "failure", check.headline)
    elif check.verdict == "inconclusive":
        set_outcome(summary, "error", check.headline, "inconclusive")
    cases = [summary]
    for item in check.differences[:_MAX_CASES]:
        case = build_case("dumpdiff.golden", f"{item.op} {item.slot}", [])
        outcome: Outcome = "error" if item.state == "unknown" else "failure"
        set_outcome(case, outcome, format_difference(item), item.state)
        cases.append(case)
    write_suites([build_suite("golden", cases)], stream)
