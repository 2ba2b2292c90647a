"""``dumpdiff.align`` on a real Dask cluster of two processes, one of which is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dumpdiff
from dumpdiff.model.errors import DumpError

distributed = pytest.importorskip("distributed")


@pytest.fixture
def cluster() -> Iterator[Any]:
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options, silence_logs="CRITICAL") as cluster:
        yield cluster


def kill_worker_on_progress(cluster: Any) -> Callable[[str, float], None]:
    """Return a progress callback that kills a worker when the first task is finished."""
    with distributed.Client(cluster) as client:
        processes = list(client.run(os.getpid).values())

    def report(activity: str, share: float) -> None:
        if 0 < share < 1 and processes:
            os.kill(processes.pop(), signal.SIGKILL)
            processes.clear()

    return report


def test_a_lost_worker_does_not_change_the_answer(cluster: Any, dump: Callable[[str], Path]):
    dumps = dump("parallel_pt_tp2_dp2"), dump("parallel_pt_tp2_dp2")
    expected = dumpdiff.align(*dumps, jobs=1)

    run = dumpdiff.align(
        *dumps,
        scheduler=cluster.scheduler_address,
        progress=kill_worker_on_progress(cluster),
    )

    assert run.to_json() == expected.to_json()
    assert all(not task.problem for task in run.tasks)


def test_no_scheduler_is_an_error_of_one_line(dump: Callable[[str], Path]):
    folder = dump("parallel_pt_tp2")

    with pytest.raises(DumpError, match="no scheduler answers there"):
        dumpdiff.align(folder, folder, scheduler="tcp://127.0.0.1:1")
