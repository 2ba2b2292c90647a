"""Calls that a copy of this process makes while this process goes on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar

from .shared_memory import create_shared_memory, read_value, write_value

_Reply = TypeVar("_Reply")


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def is_worker() -> bool:
    """Return whether this process was started by another one, which divides the cores."""
    return multiprocessing.parent_process() is not None


def can_fork() -> bool:
    """Return whether a copy of this process can work while this one goes on.

    A copy has only the thread that made it, so other threads could have left locks behind that
    nobody opens. The thread that redraws a progress bar has none that a computation needs.
    """
    if sys.platform != "linux" or is_worker() or count_cores() < 2:
        return False
    threads = [thread for thread in threading.enumerate() if not _redraws_terminal(thread)]
    return threads == [threading.main_thread()]


def _redraws_terminal(thread: threading.Thread) -> bool:
    return type(thread).__module__ == "rich.live"


class Background(Generic[_Reply]):
    """A call that a copy of this process makes meanwhile, if it can be copied.

    A copy has all tables of this process without any transfer; only its reply is
    handed over.
    """

    def __init__(self, function: Callable[..., _Reply], *arguments: Any) -> None:
        self._function, self._arguments = function, arguments
        self._process = -1
        if can_fork():
            self._start()

    def _start(self) -> None:
        self._memory = create_shared_memory()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 counts the threads of the BLAS, too
            self._process = os.fork()
        if self._process == 0:
            self._answer()

    def _answer(self) -> NoReturn:
        """Make the call in the copy and leave the reply, nothing if it fails."""
        exit_code = 1
        try:
            write_value(self._memory, self._function(*self._arguments))
            exit_code = 0
        finally:
            os._exit(exit_code)  # without what this process does when it ends

    def get_reply(self) -> _Reply:
        """Return what the function returns, or raise what it raises. To be called once.

        If the copy failed, or the system ended it, the call is made here.
        """
        if self._process >= 0:
            process, self._process = self._process, -1
            _, status = os.waitpid(process, 0)
            try:
                if status == 0:
                    reply: _Reply = read_value(self._memory)
                    return reply
            finally:
                os.close(self._memory)
        return self._function(*self._arguments)

    def __del__(self) -> None:
        """End the copy if nobody asked for its reply, because something else failed."""
        if self._process > 0:
            os.close(self._memory)
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
