"""The folder of a run's result: the answer about the run, and a folder for each of its tasks."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from ..model.errors import DumpError
from ..model.input_files import read_input_text
from ..model.output_files import is_replaceable, write_output_file
from ..model.run_result import RunResult, TaskResult
from ..model.storage import CONTENT_ERRORS, build_value, convert_scalar, convert_to_plain
from ..reports.outputs import write_file
from .result_folder import COMPLETE, COMPLETE_RUN, PAIRS_CSV, REPORT_HTML, RESULT_JSON, RUN_JSON
from .tasks import TaskReply

TASK_JSON = "task.json"  #: in the folder of a task: what the answer about the run needs of it

#: To be increased when older versions of dumpdiff cannot read the files, or this one older files.
FORMAT = 1


def write_task(folder: Path, reply: TaskReply, digest: str) -> None:
    """Write what a worker returned into the folder of its task. Raises DumpError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # it says that the others are complete: it goes first and comes last
        (folder / TASK_JSON).unlink(missing_ok=True)
        for name, content in reply.files.items():
            write_output_file(folder / name, content)
        document = {"format": FORMAT, "digest": digest, "task": convert_to_plain(reply.result)}
        write_output_file(folder / TASK_JSON, _encode(document))
    except OSError as error:
        raise DumpError(
            f"{error.filename or folder}: cannot be written ({error.strerror})"
        ) from error


def read_finished_task(folder: Path, digest: str, *, has_all_files: bool) -> TaskResult | None:
    """Return the result of a task that an earlier run finished; None if it must be repeated.

    The digest says whether its inputs are the same.
    """
    try:
        document = json.loads(read_input_text(folder / TASK_JSON))
        if document["format"] != FORMAT or document["digest"] != digest:
            return None
        task = build_value(TaskResult, document["task"])
    except (OSError, *CONTENT_ERRORS):
        return None
    names = [COMPLETE]
    if has_all_files:
        names += [RESULT_JSON, PAIRS_CSV, REPORT_HTML]
    is_complete = all((folder / name).is_file() for name in names)
    return task if is_complete and not task.problem else None


def write_run(result: RunResult, folder: Path) -> None:
    """Write the answer about a run next to the folders of its tasks. Raises DumpError."""
    plain_result = convert_to_plain(replace(result, backend=None))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (COMPLETE, RESULT_JSON, PAIRS_CSV):  # of an earlier result of a single task
            if is_replaceable(folder / name):
                (folder / name).unlink()
        text = _encode({"format": FORMAT, "result": plain_result})
        write_output_file(folder / COMPLETE_RUN, text)
        write_file(result, "json", folder / RUN_JSON)
        write_file(result, "html", folder / REPORT_HTML)
    except OSError as error:
        raise DumpError(
            f"{error.filename or folder}: cannot be written ({error.strerror})"
        ) from error


def read_run(folder: Path) -> RunResult:
    """Read what :func:`write_run` wrote. Raises DumpError."""
    file = folder / COMPLETE_RUN
    expected = f"{file}: expected a complete result of a run, as dumpdiff align -o FOLDER writes it"
    try:
        document = json.loads(read_input_text(file))
        if document["format"] != FORMAT:
            raise DumpError(f"{expected}, of format {FORMAT}, found format {document['format']}")
        result: RunResult = build_value(RunResult, document["result"])
    except OSError as error:
        raise DumpError(f"{file}: cannot be read ({error.strerror})") from error
    except CONTENT_ERRORS as error:
        raise DumpError(f"{expected}, found something else") from error
    return result


def copy_tasks(result: RunResult, source: Path, folder: Path) -> None:
    """Copy the folders of all tasks. Raises DumpError."""
    try:
        for task in result.tasks:
            if task.folder and source.absolute() != folder.absolute():
                shutil.copytree(source / task.folder, folder / task.folder, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise DumpError(f"{folder}: cannot be written ({error})") from error


def _encode(document: object) -> bytes:
    return json.dumps(document, default=convert_scalar).encode()
