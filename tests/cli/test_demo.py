"""``dumpdiff demo`` unpacks two runs, and proposes commands to try on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dumpdiff.cli import main
from dumpdiff.cli.demo import COMMANDS

README = Path(__file__).parents[2] / "README.md"


def test_every_proposed_command_is_one_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``tests/docs/test_readme.py`` runs those."""
    monkeypatch.chdir(tmp_path)
    outcome = CliRunner().invoke(main, ["demo"])
    assert outcome.exit_code == 0
    head, *lines = outcome.stdout.splitlines()
    assert head == "unpacked: dumpdiff_demo; try"
    assert [line.strip() for line in lines[2:]] == list(COMMANDS)
    assert {*COMMANDS} <= {*README.read_text(encoding="utf-8").splitlines()}


def test_a_folder_with_files_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    outcome = CliRunner().invoke(main, ["demo", str(tmp_path)])
    assert (outcome.exit_code, outcome.stderr) == (
        2,
        f"dumpdiff: {tmp_path}: is not empty; give another folder: dumpdiff demo FOLDER\n",
    )
