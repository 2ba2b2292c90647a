"""Worker processes: pools that start anew, and copies of this process for a single call.

Those of a pool compute in one thread each and leave Ctrl-C to their parent.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Generic, NoReturn, TypeVar

_Reply = TypeVar("_Reply")

#: Each worker computes in one thread: the pool already uses every core.
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)


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

    A copy has all tables of this process without any transfer; only its reply is sent.
    """

    def __init__(self, function: Callable[..., _Reply], *arguments: Any) -> None:
        self._function, self._arguments = function, arguments
        self._process = self._reply_file = -1
        if can_fork():
            self._start()

    def _start(self) -> None:
        self._reply_file, output = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 counts the threads of the BLAS, too
            self._process = os.fork()
        if self._process == 0:
            self._answer(output)
        os.close(output)

    def _answer(self, output: int) -> NoReturn:
        """Make the call in the copy and send the reply, nothing if it fails."""
        exit_code = 1
        try:
            reply = self._function(*self._arguments)
            with os.fdopen(output, "wb") as file:
                pickle.dump(reply, file, protocol=pickle.HIGHEST_PROTOCOL)
            exit_code = 0
        finally:
            os._exit(exit_code)  # without what this process does when it ends

    def get_reply(self) -> _Reply:
        """Return what the function returns, or raise what it raises. To be called once.

        If the copy failed, or the system ended it, the call is made here.
        """
        if self._process >= 0:
            with os.fdopen(self._reply_file, "rb") as file:
                data = file.read()
            _, status = os.waitpid(self._process, 0)
            if status == 0:
                reply: _Reply = pickle.loads(data)
                return reply
        return self._function(*self._arguments)


@contextmanager
def open_pool(n_workers: int) -> Iterator[ProcessPoolExecutor]:
    """Give the body a pool of processes. If the body fails, what they work on is ended, too."""
    children = set(multiprocessing.active_children())
    # no fork: the library may be used in a process with threads
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(n_workers, mp_context=context, initializer=_ignore_interrupts)
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - children:
            child.terminate()
        raise


def submit_calls(
    pool: ProcessPoolExecutor,
    function: Callable[..., _Reply],
    calls: Sequence[tuple[Any, ...]],
) -> list[Future[_Reply]]:
    """Have a pool call a function with each of these arguments; the first call starts workers."""
    with _prepare_children():
        return [pool.submit(function, *arguments) for arguments in calls]


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the main process, which ends all workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _prepare_children() -> Iterator[None]:
    """Give child processes one thread each, and keep them from importing the user's script.

    A spawned process imports the main module again, which would run a script that calls
    ``dumpdiff.align`` without a guard a second time. The workers need nothing of it.
    """
    saved_variables = {name: os.environ.get(name) for name in _ONE_THREAD}
    main_module = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ.update(_ONE_THREAD)
    try:
        yield
    finally:
        sys.modules["__main__"] = main_module
        for name, value in saved_variables.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
