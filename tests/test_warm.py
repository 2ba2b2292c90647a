"""A script that runs in a process which has imported a framework is a script like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
from warm import Warm


@pytest.fixture
def warm() -> Warm:
    return Warm("decimal")


def written(folder: Path, text: str) -> Path:
    script = folder / "script.py"
    script.write_text(text)
    return script


def test_modules_are_there_already_and_a_script_sees_its_arguments(
    warm: Warm, tmp_path: Path
) -> None:
    script = written(
        tmp_path, "import sys\nprint('decimal' in sys.modules, __name__, sys.argv[1:], sys.path[0])"
    )
    assert warm.run(script, "--steps", "4") == (0, f"True __main__ ['--steps', '4'] {tmp_path}\n")


def test_what_a_script_does_to_a_module_the_next_does_not_see(warm: Warm, tmp_path: Path) -> None:
    script = written(
        tmp_path, "import decimal\nprint(decimal.getcontext().prec)\ndecimal.getcontext().prec += 1"
    )
    assert warm.run(script) == warm.run(script)


@pytest.mark.parametrize(
    ("text", "code", "expected_output"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", -9, ""),
        (
            "import sys\nprint('out', flush=True)\nprint('error', file=sys.stderr)",
            0,
            "out\nerror\n",
        ),
    ],
)
def test_a_run_returns_the_exit_code_and_the_output_of_the_script(
    warm: Warm, tmp_path: Path, text: str, code: int, expected_output: str
) -> None:
    assert warm.run(written(tmp_path, text)) == (code, expected_output)


def test_an_exception_is_told_with_its_line(warm: Warm, tmp_path: Path) -> None:
    code, output = warm.run(written(tmp_path, "\n\n1 / 0"))
    assert code == 1
    assert "line 3" in output
    assert "ZeroDivisionError" in output


def test_a_module_that_is_not_installed_is_told(tmp_path: Path) -> None:
    assert Warm("no_such_framework").run(written(tmp_path, "")) == (
        1,
        "cannot import no_such_framework",
    )
