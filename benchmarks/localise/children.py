"""Run actions in children of this process, which has a framework loaded."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path


def run_child(action: Callable[[], None], folder: Path) -> None:
    """Run an action in a child process, which has loaded all that this process has.

    The action writes ``loss.txt`` into the folder; if it does not, there is an ``error.txt``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        with (folder / "output.txt").open("w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            try:
                action()
            except BaseException:
                (folder / "error.txt").write_text(traceback.format_exc())
            os._exit(0)
    os.waitpid(child, 0)
    if not (folder / "loss.txt").exists() and not (folder / "error.txt").exists():
        (folder / "error.txt").write_text("the process ended")
