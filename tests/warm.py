"""Run scripts in a process that has already imported their framework.

The import takes longer than most recordings. ``python warm.py MODULE...`` imports the modules, then
forks for every line that it reads: a JSON list of a file for the output, the script and its
arguments. It answers with the exit code. Nothing is computed before a fork, so scripts do not
affect each other.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path


class Warm:
    """A process that has imported a framework; it starts with the first script and ends with us."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._server: subprocess.Popen[str] | None = None

    def run(self, script: Path, *arguments: str) -> tuple[int, str]:
        """Exit code of a script, and what it printed, errors too."""
        if self._server is None:
            command = [sys.executable, __file__, *self._modules]
            self._server = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.NamedTemporaryFile("r", errors="replace") as output:
            print(
                json.dumps([output.name, str(script), *arguments]),
                file=self._server.stdin,
                flush=True,
            )
            answer = self._server.stdout.readline()
            return int(
                answer or 1
            ), output.read() if answer else f"cannot import {', '.join(self._modules)}"


def _serve(modules: list[str]) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what modules print when they are imported is no answer
    for module in modules:
        import_module(module)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(*json.loads(line))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, file=answers, flush=True)


def _run(output: str, script: str, *arguments: str) -> None:
    """Run a script and end the process, also after an exception; this never returns."""
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    _serve(sys.argv[1:])
