"""Run a command as a user would, in this process; and a saved result whose dumps were moved."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dumpdiff.cli import main

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """``run("align", a, b, "-q")``: exit_code, stdout and stderr; a crash fails the test."""

    def invoke(*arguments: str | Path | int) -> Result:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert "Traceback" not in result.stderr, result.stderr
        return result

    return invoke


@dataclass(frozen=True)
class MovedResult:
    """A complete result of the demo, and where its dumps are now."""

    folder: Path
    target: Path
    reference: Path

    @property
    def finding_id(self) -> str:
        """The id of its only finding."""
        (finding,) = json.loads((self.folder / "result.json").read_text())["findings"]
        return str(finding["id"])


@pytest.fixture(scope="session")
def moved_result(
    dump: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> MovedResult:
    """The result of ``align -o`` whose dumps were moved. Do not write into it."""
    before, after = (tmp_path_factory.mktemp(name) for name in ("before", "after"))
    for name in ("demo_mindspore", "demo_pytorch"):
        shutil.copytree(dump(name), before / name)
    arguments = ("align", before / "demo_mindspore", before / "demo_pytorch", "-q", "-o", after)
    assert CliRunner().invoke(main, [str(argument) for argument in arguments]).exit_code == 1
    for name in ("demo_mindspore", "demo_pytorch"):
        (before / name).rename(after / name)
    return MovedResult(after, after / "demo_mindspore", after / "demo_pytorch")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What runs in the background of a shell ignores Ctrl-C, and so does what it starts."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)
