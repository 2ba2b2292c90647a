"""``dumpdiff env``; what its output does in a shell: tests/capture/test_environment.py."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from dumpdiff.capture.environment import FRAMEWORKS
from dumpdiff.capture.shells import SHELLS
from dumpdiff.cli.env import env

from .conftest import Run


def test_prints_for_bash(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    file.write_text('{"common_dump_settings": {"path": "/data"}}')
    lines = run("env", file).stdout.splitlines()
    assert lines[0] == f"export MINDSPORE_DUMP_CONFIG={file};"
    assert "export HCCL_DETERMINISTIC=true;" in lines


def test_options_choose_the_framework_and_more(run: Run) -> None:
    values = json.loads(run("env", "--framework", "pytorch", "--shell", "json", "--seed", 5).stdout)
    assert values["PYTHONHASHSEED"] == "5"
    assert "CUBLAS_WORKSPACE_CONFIG" in values
    assert "export VLOG_v='(10302,10302)';" in run("env", "--also", "VLOG_v").stdout


def test_explains(run: Run) -> None:
    assert (
        "MINDSPORE_DUMP_CONFIG (not set; give the configuration)" in run("env", "--explain").stdout
    )


def test_a_missing_configuration_is_one_line_and_nothing_to_evaluate(
    run: Run, tmp_path: Path
) -> None:
    result = run("env", tmp_path / "none.json")
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)


@pytest.mark.parametrize(
    ("option", "choices"), [("shell", list(SHELLS)), ("framework", list(FRAMEWORKS))]
)
def test_the_choices_are_those_of_the_library(option: str, choices: list[str]) -> None:
    (parameter,) = [parameter for parameter in env.params if parameter.name == option]
    assert isinstance(parameter.type, click.Choice)
    assert list(parameter.type.choices) == choices


def test_other_json_is_no_dump_configuration(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text('{"version": "1.0"}')
    outcome = run("env", file)
    assert outcome.exit_code == 2
    assert "has no common_dump_settings; expected a dump configuration" in outcome.stderr


@pytest.mark.parametrize("shell", ["docker", "slurm"])
def test_a_folder_whose_name_is_a_command_is_refused_where_nothing_quotes_it(
    run: Run, tmp_path: Path, shell: str
) -> None:
    folder = tmp_path / "$(touch${IFS}injected)"
    folder.mkdir()
    (folder / "dump.json").write_text('{"common_dump_settings": {"path": "/data"}}')
    outcome = run("env", folder / "dump.json", "--shell", shell)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
