"""The command serve: the pages of a saved result, with the values of every pair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..comparison import Comparison
from ..model.errors import DumpError
from ..model.result import Result
from .inputs import PathLike
from .pipeline import compare_dumps
from .result_folder import read_saved, restore_inputs
from .saved_results import load, load_single


def serve(
    result: PathLike,
    *,
    port: int = 0,
    target: PathLike | None = None,
    reference: PathLike | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the pages of a saved result on this machine, until it is interrupted.

    The pages are those of ``report``. In addition, they show values, histogram and difference map
    of every pair: the dumps are read again when the first one is opened. The result of a run has a
    page for each step of each rank.

    Parameters
    ----------
    result
        Folder that ``align -o`` wrote.
    port
        Port to listen on; default: a free one.
    target, reference
        Where the dumps are now; default: where they were.
    ready
        Called with the address, which holds a secret token, once the server listens.

    Raises
    ------
    DumpError
        If the result cannot be read, or the port is taken.
    """
    from ..page_server.application import ServedResult
    from ..page_server.server import listen

    folder = Path(result)
    if not folder.is_dir():
        raise DumpError(f"{folder}: expected the folder that dumpdiff align -o wrote")

    def load_task(task: str) -> Result:
        return load_single(folder / task)

    def open_dumps(task: str) -> Comparison:
        saved = read_saved(folder / task)
        return compare_dumps(restore_inputs(saved, target, reference, ()), None)

    server = listen(ServedResult(load(folder), load_task, open_dumps), port)
    if ready is not None:
        ready(server.address)
    server.run()
