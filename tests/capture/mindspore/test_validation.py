"""What is said of configurations, held against what MindSpore 2.10 really does with them on CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dumpdiff.capture.mindspore import RULES, Violation, check_file

from .cases import CASES, CPU, EMPTY, IGNORED, NAMES, REFUSED, Case
from .conftest import Outcome

RULE = {rule.id: rule for rule in RULES}
BY_NAME = [pytest.param(case, id=case.name) for case in CASES]


def found(case: Case, folder: Path) -> Violation:
    """The violation that a case is about."""
    (violation,) = [
        violation
        for violation in check_file(case.write(folder), CPU, names=NAMES)
        if violation.rule == case.rule
    ]
    return violation


@pytest.mark.parametrize("case", BY_NAME)
def test_every_violation_names_its_field_and_what_to_do(case: Case, tmp_path: Path) -> None:
    violation = found(case, tmp_path)
    assert violation.field == case.field
    assert case.message in violation.message
    assert "\n" not in str(violation)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in REFUSED])
def test_what_mindspore_refuses_is_an_error(case: Case, tmp_path: Path) -> None:
    assert found(case, tmp_path).severity == "error"


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in EMPTY])
def test_what_mindspore_answers_with_an_empty_dump_writes_nothing(
    case: Case, tmp_path: Path
) -> None:
    assert found(case, tmp_path).severity == "writes nothing"


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in IGNORED])
def test_what_mindspore_passes_over_is_ignored(case: Case, tmp_path: Path) -> None:
    assert found(case, tmp_path).severity == "ignored"


@pytest.mark.record
@pytest.mark.parametrize("case", BY_NAME)
def test_mindspore_does_what_the_severity_says(case: Case, tried: Callable[[str], Outcome]) -> None:
    outcome = tried(case.name)
    assert (outcome.refused, len(outcome.files)) == (case.files is None, case.files or 0), (
        outcome.said
    )


@pytest.mark.record
@pytest.mark.parametrize("case", BY_NAME)
def test_mindspore_reports_the_recorded_message(
    case: Case, tried: Callable[[str], Outcome]
) -> None:
    assert RULE[case.rule].framework in tried(case.name).said
