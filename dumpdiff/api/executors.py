"""Where tasks are run: in this process, in a pool of processes, or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool

from ..model.errors import DumpError
from .processes import open_pool, submit_calls
from .tasks import Task, TaskReply, compare_task, describe_problem

_LOST_WORKER = "its process ended before it replied; out of memory?"
#: How often a task is given to another worker of a cluster after its worker was lost.
_RETRIES = 3
_CONNECTION_TIMEOUT = "10s"  #: for the scheduler to answer

#: Number of the task, and its reply.
Reply = tuple[int, TaskReply]


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
    with open_pool(n_workers) as pool:
        # no other reference to a future: each is forgotten once its reply was given
        futures = zip(
            submit_calls(pool, compare_task, [(tasks[number],) for number in numbers]),
            numbers,
            strict=True,
        )
        yield from _collect_replies(dict(futures))


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
