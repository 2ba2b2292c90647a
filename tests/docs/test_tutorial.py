"""docs/tutorial.md does what it says: its commands are run as they stand, and say what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_MARK = "=== next command ==="


def steps(text: str) -> list[tuple[str, list[str]]]:
    """(command, lines that it is said to print) of every console block, in order."""
    found: list[tuple[str, list[str]]] = []
    for line in "".join(_BLOCK.findall(text)).splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def matches(expected: list[str], printed: str) -> bool:
    """Whether the lines are printed in this order.

    '...' stands for anything, and wrapping does not count. Each fragment is searched after the
    one before it, which takes linear time; a regular expression takes hours if one is missing.
    """
    remaining = " ".join(printed.split())
    for line in expected:
        for fragment in " ".join(line.split()).split("..."):
            position = remaining.find(fragment)
            if position < 0:
                return False
            remaining = remaining[position + len(fragment) :]
    return True


@pytest.mark.record
def test_the_tutorial_runs_from_statistics_to_the_cause(tmp_path: Path) -> None:
    for folder in ("docs", "fixtures"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    wanted = steps((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"))
    script = "\n".join(f"{command}\necho; echo {_MARK}" for command, _ in wanted)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", "-c", f"exec 2>&1\n{script}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
    )
    outputs = run.stdout.split(_MARK)[:-1]
    for (command, expected), printed in zip(wanted, outputs, strict=True):
        assert matches(expected, printed), f"$ {command}\nsaid\n{printed}\nnot\n" + "\n".join(
            expected
        )


def test_the_steps_are_commands_and_what_they_print() -> None:
    text = (
        "a\n```console\n$ one\nsays\n...\n$ two\n```\nb\n```console\n$ three\n```\n```\n$ no\n```\n"
    )
    assert steps(text) == [("one", ["says", "..."]), ("two", []), ("three", [])]


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        (["a", "b"], "a\nx\nb", True),
        (["b", "a"], "a\nb", False),
        (["loss 5.7..."], "w\nloss 5.7123", True),
        (["loss 5.7..."], "loss 5x7", False),
        (["one two"], "one\n  two", True),
        ([], "anything", True),
    ],
)
def test_lines_are_looked_for_in_order(expected: list[str], printed: str, same: bool) -> None:
    assert matches(expected, printed) == same
