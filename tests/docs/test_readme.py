"""Every command that the README shows runs as printed on the demo, and its example is what it
prints.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import dumpdiff
from dumpdiff.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
_SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_DEMO_OUTPUT = re.compile(r"<!-- demo: begin -->\n```\n(.*?)```\n<!-- demo: end -->", re.DOTALL)

_EXAMPLE_WIDTH = 126  #: columns of the terminal that the README shows

#: aligned or written 0, diverged or differ 1, inconclusive 3, the place of a mismatch 11 to 19; 2
#: and 70 would be a wrong command or a bug.
SUCCESS = {0, 1, 3, *range(11, 20)}


def shown_commands() -> list[str]:
    return "".join(_SHELL_BLOCK.findall(README)).splitlines()


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert "Traceback" not in result.stderr, result.stderr
    return result


def test_every_command_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the unpacked demo is there, as after an installation from a wheel."""
    monkeypatch.chdir(tmp_path)
    commands = shown_commands()
    assert commands[:2] == ["dumpdiff demo", "cd dumpdiff_demo"]
    assert len(commands) == 15
    for command in commands:
        program, *arguments = shlex.split(command)
        if program == "cd":
            monkeypatch.chdir(arguments[0])
            continue
        assert program == "dumpdiff", command
        outcome = run(*arguments)
        assert outcome.exit_code in SUCCESS, f"{command}\n{outcome.output}"


def test_the_example_is_what_the_demo_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = _DEMO_OUTPUT.search(README)
    assert shown is not None
    monkeypatch.chdir(dumpdiff.demo(tmp_path / "runs"))
    monkeypatch.setenv("COLUMNS", str(_EXAMPLE_WIDTH))
    printed = run("align", "mindformers/dump", "megatron/dump").stdout
    assert printed.splitlines() == shown[1].splitlines()


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target
