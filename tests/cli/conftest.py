"""Running a command as a user would, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dumpdiff.cli import main

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """``run("align", a, b, "-q")``: exit_code, stdout and stderr; a crash of the program fails the test."""

    def invoke(*arguments: str | Path | int) -> Result:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert "Traceback" not in result.stderr, result.stderr
        return result

    return invoke
