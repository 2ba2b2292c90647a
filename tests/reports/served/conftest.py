"""The saved result of the demo, and a server of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

import dumpdiff
from dumpdiff.api.pipeline import compare_dumps
from dumpdiff.api.result_folder import read_saved, restore_inputs
from dumpdiff.comparison import Comparison
from dumpdiff.model.result import Result
from dumpdiff.page_server.application import ServedResult
from dumpdiff.page_server.server import ListeningServer, listen


@pytest.fixture(scope="session")
def saved(dump: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of ``align -o`` of the demo."""
    folder = tmp_path_factory.mktemp("served") / "result"
    dumpdiff.align(dump("demo_mindspore"), dump("demo_pytorch"), output=folder)
    return folder


@pytest.fixture(scope="session")
def served(saved: Path) -> ServedResult:
    result = dumpdiff.load(saved)
    assert isinstance(result, Result)

    def open_dumps(task: str) -> Comparison:
        return compare_dumps(restore_inputs(read_saved(saved / task), None, None, ()), None)

    return ServedResult(result, dumpdiff.load, open_dumps)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def server(served: ServedResult) -> Iterator[ListeningServer]:
    """A server of the demo's result, which runs in a thread."""
    listening = listen(served, 0)
    thread = Thread(target=listening.run)
    thread.start()
    yield listening
    listening.stop()
    thread.join()
