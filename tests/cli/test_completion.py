"""A shell gets commands, options, choices, and files for everything else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from dumpdiff.cli import main

ASK = "import sys; sys.argv = ['dumpdiff']; from dumpdiff.cli import run; run()"


def complete(words: str) -> list[str]:
    """Return what bash is told for the last word."""
    variables = {
        "_DUMPDIFF_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    answer = subprocess.run(
        [sys.executable, "-c", ASK],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | variables,
    )
    return answer.stdout.split()


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("dumpdiff al", ["plain,align"]),
        ("dumpdiff align --jun", ["plain,--junit"]),
        ("dumpdiff snippet lo", ["plain,local-norm", "plain,load-grads"]),
        ("dumpdiff align some", ["file,some"]),
        ("dumpdiff align --json out", ["file,out"]),
        ("dumpdiff align --nothing", []),
    ],
)
def test_completions(words: str, completions: list[str]) -> None:
    assert complete(words) == completions


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", "complete -o nosort -F _dumpdiff_completion dumpdiff"),
        ("zsh", "compdef _dumpdiff_completion dumpdiff"),
        ("fish", 'complete --no-files --command dumpdiff --arguments "(_dumpdiff_completion)"'),
    ],
)
def test_the_script_of_each_shell(shell: str, line: str) -> None:
    outcome = CliRunner().invoke(main, ["completion", shell])
    assert outcome.exit_code == 0
    assert line in outcome.stdout
    assert f"_DUMPDIFF_COMPLETE={shell}_complete" in outcome.stdout


def test_bash_accepts_the_script() -> None:
    script = CliRunner().invoke(main, ["completion", "bash"]).stdout
    command = ["bash", "-c", f"{script}\ncomplete -p dumpdiff"]
    outcome = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "-F _dumpdiff_completion dumpdiff" in outcome.stdout
