"""Worker processes: each starts anew, computes in one thread and leaves Ctrl-C to its parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

_Reply = TypeVar("_Reply")

#: Each worker computes in one thread: the pool already uses every core.
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)


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
