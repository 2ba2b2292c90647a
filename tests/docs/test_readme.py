"""Every command that the README shows runs on what is shipped, and its example is what the demo
prints.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dumpdiff.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
_SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_DEMO_OUTPUT = re.compile(r"<!-- demo: begin -->\n```\n(.*?)```\n<!-- demo: end -->", re.DOTALL)

_EXAMPLE_WIDTH = 126  #: columns of the terminal that the README shows

#: aligned or written 0, diverged or differ 1, inconclusive 3; 2 and 70 would be a wrong command
#: or a bug.
SUCCESS = {0, 1, 3}


def shown_commands() -> list[str]:
    lines = "".join(_SHELL_BLOCK.findall(README)).splitlines()
    return [line for line in lines if line.startswith("dumpdiff ")]


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert "Traceback" not in result.stderr, result.stderr
    return result


@pytest.fixture
def checkout(tmp_path: Path, dump: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like the checkout after ``make demo``, to write into."""
    (tmp_path / ".demo").mkdir()
    for name in ("demo_mindspore", "demo_pytorch"):
        (tmp_path / ".demo" / name).symlink_to(dump(name))
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_runs(checkout: Path) -> None:
    commands = shown_commands()
    assert len(commands) > 5
    for command in commands:
        _, *arguments = shlex.split(command)
        outcome = run(*arguments)
        assert outcome.exit_code in SUCCESS, f"{command}\n{outcome.output}"


def test_the_example_is_what_the_demo_prints(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = _DEMO_OUTPUT.search(README)
    assert shown is not None
    monkeypatch.setenv("COLUMNS", str(_EXAMPLE_WIDTH))
    printed = run("align", ".demo/demo_mindspore", ".demo/demo_pytorch").stdout
    lines = [line.rstrip() for line in printed.splitlines()]
    expected = shown[1].splitlines()
    assert lines[: len(expected)] == expected


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target
