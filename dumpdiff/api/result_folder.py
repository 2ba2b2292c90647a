"""Results on disk: the complete folder of ``align -o``, and the inputs of a saved comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..model.background import Background
from ..model.errors import DumpError
from ..model.output_files import is_replaceable
from ..model.result import Result
from ..model.saved_result import SavedResult, read_saved_result
from ..model.storage import read_result, write_result
from ..reports.outputs import write_file
from .inputs import Inputs, PathLike

#: Files of a complete result: for programs, for spreadsheets, for dumpdiff itself, for people.
RESULT_JSON, PAIRS_CSV, COMPLETE, REPORT_HTML = RESULT_FILES = (
    "result.json",
    "pairs.csv",
    "complete.npz",
    "report.html",
)
#: Of a result of several steps or ranks: for programs, for dumpdiff itself.
RUN_FILES = RUN_JSON, COMPLETE_RUN = ("run.json", "complete_run.json")


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder holds the result of several steps or ranks."""
    return (folder / COMPLETE_RUN).is_file()


def save_folder(result: Result, folder: Path) -> None:
    """Write the complete result into ``folder``, which is created if absent.

    Raises DumpError that names the file if it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in RUN_FILES:  # of an earlier result of several steps or ranks
            if is_replaceable(folder / name):
                (folder / name).unlink()
    except OSError as error:
        raise DumpError(f"{folder}: cannot be made ({error.strerror})") from error
    page = Background(write_file, result, "html", folder / REPORT_HTML)
    write_result(result, folder / COMPLETE)
    write_file(result, "json", folder / RESULT_JSON)
    write_file(result, "csv", folder / PAIRS_CSV)
    page.get_reply()


def load_folder(folder: Path) -> Result:
    """Read a complete result. Raises DumpError if there is none in the folder."""
    return read_result(folder / COMPLETE)


def read_saved(result: PathLike) -> SavedResult:
    """Read the inputs of a saved result from a folder or a JSON file. Raises DumpError."""
    path = Path(result)
    return read_saved_result(path / RESULT_JSON if path.is_dir() else path)


def restore_inputs(
    saved: SavedResult,
    target: PathLike | None,
    reference: PathLike | None,
    rules: Sequence[PathLike],
) -> Inputs:
    """Return the inputs of a saved result.

    Its dumps may have moved to ``target`` and ``reference``. Raises DumpError that names a missing
    dump, and the option that specifies its new place.
    """
    paths = []
    for side, given_path, saved_path in (
        ("target", target, saved.target),
        ("reference", reference, saved.reference),
    ):
        path = saved_path if given_path is None else given_path
        if not Path(path).exists():
            raise DumpError(
                f"{path}: the {side} dump is missing; say where it is now with --{side} PATH"
            )
        paths.append(path)
    return Inputs(
        paths[0],
        paths[1],
        saved.step,
        saved.rank,
        saved.graph,
        saved.baseline,
        (*saved.rules, *rules),
        saved.weights_target,
        saved.weights_reference,
        saved.verify,
        narrowed=saved.narrowed,
    )
