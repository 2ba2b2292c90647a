"""The examples of docs/parallel.md are how the output of the commands begins."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from dumpdiff.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "parallel.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"<!-- example: (\S+) (\S+) -->\n```\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("target", "reference", "answer"), EXAMPLES)
def test_the_answer_is_as_shown(
    dump: Callable[[str], Path], target: str, reference: str, answer: str
) -> None:
    outcome = CliRunner().invoke(
        main, ["align", str(dump(target)), str(dump(reference)), "-j", "1"]
    )
    assert outcome.stdout.startswith(f"{answer}\n")
