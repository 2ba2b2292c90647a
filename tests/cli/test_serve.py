"""``dumpdiff serve``: a server that a user starts and ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from results import make_result

from dumpdiff.model.storage import write_result

from .conftest import Run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A complete result."""
    write_result(make_result(), tmp_path / "complete.npz")
    return tmp_path


@pytest.mark.usefixtures("interruptible")
def test_the_address_answers_until_it_is_interrupted(folder: Path) -> None:
    command = [sys.executable, "-m", "dumpdiff", "serve", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(f"serving {folder} at http://127.0.0.1:")
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(line.split(" at ")[1].split()[0]) as answer:
            assert b"dumpdiff" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0


def test_a_port_that_is_taken_is_an_error(run: Run, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        result = run("serve", folder, "--port", port)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"dumpdiff: port {port}: cannot be used (Address already in")


@pytest.mark.parametrize("make", [lambda path: path, lambda path: path / "none"])
def test_without_a_result_there_is_nothing_to_serve(
    run: Run, tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    result = run("serve", make(tmp_path))
    assert result.exit_code == 2
    assert "dumpdiff align -o" in result.stderr
