"""docs/dump-config.md is what the code says."""

from __future__ import annotations

from pathlib import Path

from dumpdiff.capture.environment import VARIABLES
from dumpdiff.capture.handbook import table, text
from dumpdiff.capture.mindspore import RULES
from dumpdiff.capture.mindspore.fields import FIELDS, SOURCES
from dumpdiff.capture.msprobe import fields as msprobe_fields

from .mindspore.cases import CASES

PAGE = Path(__file__).parents[2] / "docs" / "dump-config.md"


def test_the_page_is_what_the_code_writes() -> None:
    advice = "run: python -m dumpdiff.capture.handbook > docs/dump-config.md"
    assert PAGE.read_text(encoding="utf-8") == text(), advice


def test_every_field_rule_and_variable_has_a_row() -> None:
    rows = [line for line in text().splitlines() if line.startswith("| `")]
    for field in FIELDS:
        assert any(row.startswith(f"| `{field.section}`<br>`{field.name}` |") for row in rows)
    for name in (*(rule.id for rule in RULES), *(variable.name for variable in VARIABLES)):
        assert sum(row.startswith(f"| `{name}` |") for row in rows) == 1


def test_every_field_of_msprobe_has_a_row() -> None:
    rows = text().splitlines()
    for field in msprobe_fields.FIELDS:
        assert (
            sum(
                row.startswith(f"| `{field.section and '<task>.'}{field.name}` | {field.what} |")
                for row in rows
            )
            == 1
        )


def test_a_rule_counts_as_run_if_it_was() -> None:
    assert {rule.id for rule in RULES if rule.source == "run"} == {case.rule for case in CASES}
    assert {known.source for known in (*RULES, *FIELDS)} <= set(SOURCES)


def test_a_bar_does_not_end_a_cell() -> None:
    assert table(("a", "b"), [("0|1", "c")]) == "| a | b |\n| --- | --- |\n| 0\\|1 | c |\n"
