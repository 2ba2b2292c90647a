"""``dumpdiff snippet``; the code itself is run in tests/capture/test_snippets.py."""

from __future__ import annotations

import re

import click
import pytest

from dumpdiff.capture.snippets import FRAMEWORKS, GRAFT, KINDS, build_snippet
from dumpdiff.cli.snippet import snippet

from .conftest import Run


@pytest.mark.parametrize("kind", KINDS)
def test_prints_the_code_alone(kind: str, run: Run) -> None:
    options = ["--seed", 3, "--rank", 7, "--folder", "/data/g", "--config", "c.json"]
    result = run("snippet", kind, "--framework", "megatron", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == build_snippet(
        kind, "megatron", seed=3, rank=7, folder="/data/g", config="c.json"
    )


def test_the_framework_is_required(run: Run) -> None:
    result = run("snippet", "seed")
    assert result.exit_code == 2
    assert "--framework" in result.stderr


@pytest.mark.parametrize(
    ("parameter", "choices"), [("kind", [*KINDS, GRAFT]), ("framework", list(FRAMEWORKS))]
)
def test_the_choices_are_those_of_the_library(parameter: str, choices: list[str]) -> None:
    (option,) = [option for option in snippet.params if option.name == parameter]
    assert isinstance(option.type, click.Choice)
    assert sorted(option.type.choices) == sorted(choices)


def test_help_explains_the_kinds(run: Run) -> None:
    help_text = run("snippet", "-h").stdout
    for kind, summary in KINDS.items():
        assert re.search(rf"  {kind} +{re.escape(summary)}\n", help_text)


def test_a_graft_needs_a_result_and_no_other_kind_takes_one(run: Run) -> None:
    outcome = run("snippet", "graft")
    assert outcome.exit_code == 2
    assert "graft needs RESULT" in outcome.stderr
    outcome = run("snippet", "seed", "result", "--framework", "pytorch")
    assert outcome.exit_code == 2
    assert "seed takes no RESULT" in outcome.stderr
