"""The generated pages of docs/ are up to date, and complete."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from capture.mindspore.cases import CASES

from dumpdiff.capture.environment import VARIABLES
from dumpdiff.capture.mindspore import RULES
from dumpdiff.capture.mindspore.fields import FIELDS, SOURCES
from dumpdiff.capture.msprobe import fields as msprobe_fields

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS / "generate"))

import commands  # noqa: E402
import dump_config  # noqa: E402
from tables import format_table  # noqa: E402


@pytest.mark.parametrize(
    ("page", "generator"), [("dump-config", dump_config), ("commands", commands)]
)
def test_the_page_is_up_to_date(page: str, generator: ModuleType) -> None:
    content = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    assert content == generator.build_page(), "run: make reference"


def test_every_field_rule_and_variable_has_a_row() -> None:
    rows = [line for line in dump_config.build_page().splitlines() if line.startswith("| `")]
    for field in FIELDS:
        assert any(row.startswith(f"| `{field.section}`<br>`{field.name}` |") for row in rows)
    for name in (*(rule.id for rule in RULES), *(variable.name for variable in VARIABLES)):
        assert sum(row.startswith(f"| `{name}` |") for row in rows) == 1


def test_every_field_of_msprobe_has_a_row() -> None:
    rows = dump_config.build_page().splitlines()
    for field in msprobe_fields.FIELDS:
        assert (
            sum(
                row.startswith(f"| `{field.section and '<task>.'}{field.name}` | {field.meaning} |")
                for row in rows
            )
            == 1
        )


def test_a_rule_counts_as_run_if_it_was() -> None:
    assert {rule.id for rule in RULES if rule.source == "run"} == {case.rule for case in CASES}
    assert {known.source for known in (*RULES, *FIELDS)} <= set(SOURCES)


def test_a_bar_does_not_end_a_cell() -> None:
    assert format_table(("a", "b"), [("0|1", "c")]) == "| a | b |\n| --- | --- |\n| 0\\|1 | c |\n"
