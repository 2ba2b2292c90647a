"""Standard streams: closed pipes, closed descriptors and signals end every command in one way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from dumpdiff.cli import main
from dumpdiff.cli.output import open_output
from dumpdiff.model.errors import DumpError

COMMAND = [sys.executable, "-m", "dumpdiff"]
Dump = Callable[[str], Path]


def run_into_closed_pipe(arguments: list[str | Path]) -> subprocess.CompletedProcess[str]:
    reader, writer = os.pipe()
    os.close(reader)
    outcome = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    return outcome


@pytest.mark.parametrize(
    "command",
    [
        ("align", "pt_gpt2", "pt_gpt2"),  # its exit code would be that of a divergence
        ("inspect", "pt_gpt2"),
        ("verify", "pt_gpt2", "--json", "-"),
        ("env", "--shell", "json"),
        ("rules", "--help"),
        ("--help",),
    ],
)
def test_a_closed_pipe_is_141(dump: Dump, command: tuple[str, ...]) -> None:
    arguments = [dump(word) if word == "pt_gpt2" else word for word in command]
    outcome = run_into_closed_pipe(arguments)
    assert outcome.returncode == 141
    assert "dumpdiff:" not in outcome.stderr
    assert "Error" not in outcome.stderr


@pytest.mark.parametrize("closing", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_changes_nothing_but_what_is_printed(dump: Dump, closing: str) -> None:
    script = f'exec "$@" {closing}'
    command = ["sh", "-c", script, "sh", *COMMAND, "inspect", str(dump("pt_gpt2"))]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert bool(outcome.stdout) == (">&-" not in closing.replace("2>&-", ""))


def test_an_error_without_a_stream_for_it_keeps_its_exit_code(tmp_path: Path) -> None:
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *COMMAND, "inspect", str(tmp_path / "no")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2


def test_sigterm_is_like_ctrl_c(tmp_path: Path) -> None:
    script = (
        "import dumpdiff.cli as c, os, signal, sys, time, click\n"
        "from dumpdiff.cli.output import open_output\n"
        "c.COMMANDS['w'] = ('__main__:w', '')\n"
        "@click.command()\n"
        "def w():\n"
        f"    with open_output({str(tmp_path / 'result.json')!r}) as stream:\n"
        "        stream.write(b'half')\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(9)\n"
        "sys.argv = ['dumpdiff', 'w']\n"
        "c.run()"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (outcome.returncode, outcome.stderr) == (128 + signal.SIGINT, "dumpdiff: interrupted\n")
    assert not list(tmp_path.iterdir())


def write_half_and_fail() -> None:
    with open_output("-") as stream:
        stream.write(b'{"half": ')
        raise DumpError("the dump has vanished")


def test_an_error_leaves_no_half_document_on_standard_output(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    with pytest.raises(DumpError):
        write_half_and_fail()
    assert capfdbinary.readouterr().out == b""


def test_a_mistyped_command_gets_a_suggestion() -> None:
    outcome = CliRunner().invoke(main, ["alig", "a", "b"])
    assert outcome.exit_code == 2
    assert "No such command 'alig'. Did you mean 'align'?" in outcome.output
    assert "Did you mean" not in CliRunner().invoke(main, ["xyzzy"]).output
