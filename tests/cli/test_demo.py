"""``dumpdiff demo`` unpacks two runs, and every command that it proposes runs there."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from dumpdiff.cli import main
from dumpdiff.cli.demo import COMMANDS


def test_every_proposed_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = CliRunner().invoke(main, ["demo"])
    assert outcome.exit_code == 0
    head, *lines = outcome.stdout.splitlines()
    assert head == "unpacked: dumpdiff_demo; try"
    assert [line.strip() for line in lines[2:]] == list(COMMANDS)
    monkeypatch.chdir("dumpdiff_demo")
    for command in COMMANDS:
        answer = CliRunner().invoke(main, shlex.split(command)[1:])
        assert answer.exit_code in (0, 1, 3, 14), f"{command}\n{answer.output}"


def test_a_folder_with_files_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    outcome = CliRunner().invoke(main, ["demo", str(tmp_path)])
    assert (outcome.exit_code, outcome.stderr) == (
        2,
        f"dumpdiff: {tmp_path}: is not empty; give another folder: dumpdiff demo FOLDER\n",
    )
