"""The command itself: quick to start, and every way to stop has its exit code and one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from dumpdiff import __version__, cli
from dumpdiff.model.errors import DumpError

HEAVY = {"numpy", "pandas", "scipy", "networkx", "rich", "yaml", "torch", "mindspore", "msprobe"}


def list_loaded_modules(*arguments: str) -> set[str]:
    """Top-level modules that are imported when the command has run with these arguments."""
    script = (
        "import json, sys\nfrom dumpdiff.cli import main\n"
        f"main({list(arguments)!r}, standalone_mode=False)\n"
        "print(json.dumps(list(sys.modules)), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {module.split(".")[0] for module in json.loads(run.stderr)}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["align", "--help"], ["inspect", "--help"]]
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    assert not list_loaded_modules(*arguments) & HEAVY


def test_help_of_the_group_imports_no_command() -> None:
    script = (
        "import sys\nfrom dumpdiff.cli import main\nmain(['--help'], standalone_mode=False)\n"
        "print(*[m for m in sys.modules if m.startswith('dumpdiff.')], file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(run.stderr.split()) == {
        "dumpdiff.cli",
        "dumpdiff.model",
        "dumpdiff.model.errors",
        "dumpdiff.model.formatting",
        "dumpdiff.model.verdict",
    }


def test_help_names_every_command() -> None:
    help_text = CliRunner().invoke(cli.main, ["--help"]).output
    assert all(
        name in help_text and about in help_text for name, (_, about) in cli.COMMANDS.items()
    )


def test_every_command_is_in_one_section_of_the_help() -> None:
    names = [name for section in cli.SECTIONS.values() for name in section]
    assert sorted(names) == sorted(cli.COMMANDS)


def test_help_says_where_its_pages_are() -> None:
    last_line = CliRunner().invoke(cli.main, ["--help"]).output.splitlines()[-1]
    assert (Path(last_line) / "index.md").is_file()


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_exists_and_has_help(name: str) -> None:
    run = CliRunner().invoke(cli.main, [name, "--help"])
    assert run.exit_code == 0, run.output
    assert "Usage:" in run.output
    assert (cli.find_documentation() / cli.PAGES[name]).is_file()
    assert run.output.endswith(f"  More: docs/{cli.PAGES[name]}\n")


def test_version() -> None:
    assert __version__ in CliRunner().invoke(cli.main, ["--version"]).output


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseException]]:
    """A command ``stop`` that raises the exception put into this list."""
    raised: list[BaseException] = []

    @click.command()
    def stop() -> None:
        raise raised[0]

    monkeypatch.setitem(cli.COMMANDS, "stop", (f"{__name__}:stop", "Stops."))
    monkeypatch.setattr(sys.modules[__name__], "stop", stop, raising=False)
    return raised


def run_stop() -> Result:
    return CliRunner().invoke(cli.main, ["stop"])


def test_a_dump_error_is_one_line_and_2(stopping: list[BaseException]) -> None:
    stopping.append(DumpError("a/b:\nno\x1b[2J such dump"))
    run = run_stop()
    assert (run.exit_code, run.stderr, run.stdout) == (
        2,
        "dumpdiff: a/b: no\\x1b[2J such dump\n",
        "",
    )


def test_a_system_error_names_the_file_and_is_2(stopping: list[BaseException]) -> None:
    stopping.append(PermissionError(13, "Permission denied", "dump.json"))
    run = run_stop()
    assert (run.exit_code, run.stderr) == (2, "dumpdiff: dump.json: Permission denied\n")


def test_a_bug_keeps_its_traceback_and_is_not_taken_for_a_divergence(
    stopping: list[BaseException],
) -> None:
    stopping.append(ZeroDivisionError("division by zero"))
    run = run_stop()
    assert run.exit_code == 70
    assert "Traceback (most recent call last)" in run.stderr
    assert "ZeroDivisionError: division by zero" in run.stderr


def test_an_interrupt_is_130(stopping: list[BaseException]) -> None:
    stopping.append(KeyboardInterrupt())
    run = run_stop()
    assert (run.exit_code, run.stderr) == (130, "dumpdiff: interrupted\n")


def test_a_usage_error_is_2(stopping: list[BaseException]) -> None:
    stopping.append(click.UsageError("not so"))
    assert run_stop().exit_code == 2


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_in_the_shell_is_130_without_traceback() -> None:
    script = "import dumpdiff.cli as c, os, signal, time, click\n" + (
        "c.COMMANDS['w'] = ('__main__:w', '')\n"
        "def wait():\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(9)\n"
        "w = click.command()(wait)\n"
        "c.main(['w'])"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (128 + signal.SIGINT, "dumpdiff: interrupted\n")


def test_a_closed_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    script = "import dumpdiff.cli as c, click\n" + (
        "c.COMMANDS['w'] = ('__main__:w', '')\n"
        "w = click.command()(lambda: print('x' * 10))\n"
        "c.main(['w'])"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (run.returncode, run.stderr) == (128 + signal.SIGPIPE, "")
