"""Where tasks are run: in this process, in a pool of processes, or on a Dask cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import ModuleType

from ..model.errors import DumpError
from .tasks import Task, TaskReply, compare_task, describe_problem

#: Each worker computes in one thread: the pool already uses every core.
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
_LOST_WORKER = "its process ended before it replied; out of memory?"
#: How often a task is given to another worker of a cluster after its worker was lost.
_RETRIES = 3
_CONNECTION_TIMEOUT = "10s"  #: for the scheduler to answer

#: Number of the task, and its reply.
Reply = tuple[int, TaskReply]


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def run_tasks(tasks: Sequence[Task], jobs: int, scheduler: str | None) -> Iterator[Reply]:
    """Run tasks and yield their replies as they come.

    With one job they run in this process, one after the other. Raises DumpError if the cluster
    cannot be used.
    """
    if scheduler is not None:
        yield from _run_on_cluster(tasks, scheduler)
    elif jobs == 1 or len(tasks) == 1:
        for number, task in enumerate(tasks):
            yield number, compare_task(task)
    else:
        yield from _run_in_processes(tasks, jobs)


def _run_in_processes(tasks: Sequence[Task], jobs: int) -> Iterator[Reply]:
    """Run tasks in a pool of processes.

    A process that the system ends breaks its pool. The remaining tasks then go to a smaller pool;
    what ends the last single process is the task that it was given.
    """
    remaining = list(range(len(tasks)))
    while remaining:
        n_workers = min(jobs, len(remaining))
        is_broken = False
        for number, reply in _run_in_pool(tasks, remaining, n_workers):
            if reply is None:
                is_broken = True
                break
            remaining.remove(number)
            yield number, reply
        if is_broken and n_workers == 1:
            number = remaining.pop(0)
            yield number, TaskReply(describe_problem(tasks[number], _LOST_WORKER), {})
        elif is_broken:
            jobs = max(1, n_workers // 2)


def _run_in_pool(
    tasks: Sequence[Task], numbers: Sequence[int], n_workers: int
) -> Iterator[tuple[int, TaskReply | None]]:
    """Run tasks in a pool; yield None for a reply when the pool breaks."""
    children = set(multiprocessing.active_children())
    # no fork: the library may be used in a process with threads
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(n_workers, mp_context=context, initializer=_ignore_interrupts)
    try:
        with _prepare_children():
            futures = {pool.submit(compare_task, tasks[number]): number for number in numbers}
        yield from _collect_replies(futures)
        pool.shutdown()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - children:
            child.terminate()
        raise


def _collect_replies(
    futures: dict[Future[TaskReply], int],
) -> Iterator[tuple[int, TaskReply | None]]:
    """Yield replies as they come, and forget them: they hold the files of the results."""
    while futures:
        finished, _ = wait(futures, return_when=FIRST_COMPLETED)
        for future in finished:
            number = futures.pop(future)
            try:
                reply = future.result()
            except BrokenProcessPool:
                yield number, None
                return
            del future
            yield number, reply
        finished.clear()


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


def _run_on_cluster(tasks: Sequence[Task], scheduler: str) -> Iterator[Reply]:
    """Run tasks on a Dask cluster; a task whose worker is lost goes to another one."""
    try:
        from distributed import (  # type: ignore[import-not-found, unused-ignore]
            Client,
            as_completed,
        )
    except ImportError:
        raise DumpError("a cluster needs distributed: pip install 'dumpdiff[cluster]'") from None
    try:
        client = Client(scheduler, timeout=_CONNECTION_TIMEOUT)
    except (OSError, ValueError) as error:
        raise DumpError(f"{scheduler}: no scheduler answers there ({error})") from error
    with client:
        numbers = {}
        pending = as_completed()
        for number, task in enumerate(tasks):
            future = client.submit(compare_task, task, retries=_RETRIES, pure=False)
            numbers[future.key] = number
            pending.add(future)
        for future in pending:
            number = numbers[future.key]
            if future.status == "finished":
                yield number, future.result()
            else:
                problem = f"its worker failed: {future.exception()}"
                yield number, TaskReply(describe_problem(tasks[number], problem), {})
            future.release()
