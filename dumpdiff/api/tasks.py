"""A task: one step of one rank of both runs, compared in whatever process or on whatever host."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from .. import __version__
from ..model.errors import DumpError
from ..model.gc_pause import pause_gc
from ..model.inheritance import Inheritance
from ..model.input_files import iterate_folders
from ..model.result import Result
from ..model.run_result import TaskResult
from ..model.storage import write_result_stream
from ..readers.part_pairs import PartPair
from ..readers.parts import Part
from ..reports import outputs
from ..reports.alignment.summary import format_headline
from ..run_divergence import summarize_task
from .inputs import Inputs
from .result_folder import COMPLETE, PAIRS_CSV, REPORT_HTML, RESULT_JSON

#: File of a task's folder -> the output that it holds. The complete result is always written.
_FILES = {RESULT_JSON: "json", PAIRS_CSV: "csv", REPORT_HTML: "html"}


@dataclass(frozen=True)
class Options:
    """What all tasks of a run have in common. All paths are absolute: a worker may be elsewhere."""

    target: str
    reference: str
    graph: int | None
    baseline: str | None
    rules: tuple[str, ...]
    weights_target: str | None
    weights_reference: str | None
    verify: bool
    min_coverage: float
    explained: tuple[int, ...]
    #: also the files that people and other programs read
    has_all_files: bool = False


@dataclass(frozen=True)
class Task:
    """What a worker needs to compare one step of one rank."""

    pair: PartPair
    options: Options
    folder: str  #: of its result, relative to the folder of the run
    #: what the weights may differ by when the step begins; follows from the step before
    inheritance: Inheritance | None = None


@dataclass(frozen=True)
class TaskReply:
    """What a worker returns: no tensors, the files of the complete result as bytes."""

    result: TaskResult
    files: Mapping[str, bytes]


@pause_gc()
def compare_task(task: Task) -> TaskReply:
    """Compare one step of one rank. A dump that cannot be read is reported in the result."""
    try:
        return _compare(task)
    except DumpError as error:
        return TaskReply(describe_problem(task, str(error)), {})


def describe_problem(task: Task, problem: str) -> TaskResult:
    """Return the result of a task that could not be compared."""
    pair = task.pair
    reference_rank = pair.reference[0].rank_or_process
    return TaskResult(
        step=pair.step,
        rank=pair.rank,
        reference_rank=reference_rank,
        verdict="inconclusive",
        headline=f"could not be compared: {problem}",
        problem=problem,
    )


def _compare(task: Task) -> TaskReply:
    from .result_builder import build_result

    pair, options = task.pair, task.options
    candidates = (list(pair.target), list(pair.reference))
    inputs = Inputs(
        options.target,
        options.reference,
        None,
        None,
        options.graph,
        options.baseline,
        options.rules,
        options.weights_target,
        options.weights_reference,
        options.verify,
        task.inheritance,
    )
    result, dumps = build_result(
        inputs,
        options.min_coverage,
        options.explained,
        None,
        candidates=candidates,
        has_drawings=options.has_all_files,
    )
    headline = format_headline(result)
    summary = summarize_task(result, dumps.comparison, pair.step, pair.rank, headline)
    summary = replace(summary, folder=task.folder, inheritance=task.inheritance)
    return TaskReply(summary, _write_files(result, options))


def _write_files(result: Result, options: Options) -> Mapping[str, bytes]:
    """Return the files of a complete result."""
    stream = io.BytesIO()
    write_result_stream(result, stream)
    files = {COMPLETE: stream.getvalue()}
    if not options.has_all_files:
        return files
    for name, output in _FILES.items():
        stream = io.BytesIO()
        outputs.write(result, output, stream)
        files[name] = stream.getvalue()
    return files


def compute_digest(task: Task) -> str:
    """Return a digest of everything that a task's result depends on.

    Dumps and checkpoints are known by the names, sizes and times of their files, rules by their
    content.
    """
    digest = hashlib.sha256()
    options = asdict(task.options)
    digest.update(json.dumps([__version__, options], sort_keys=True).encode())
    parts = [*task.pair.target, *task.pair.reference]
    for part in parts:
        digest.update(repr(part).encode())
    folders = {_find_folder(part) for part in parts}
    files = [
        task.options.baseline,
        task.options.weights_target,
        task.options.weights_reference,
        *task.options.rules,
    ]
    for path in [*sorted(folders), *(file for file in files if file is not None)]:
        for line in _list_files(Path(path)):
            digest.update(line.encode(errors="backslashreplace"))
    return digest.hexdigest()


def _find_folder(part: Part) -> str:
    """Return the folder of a part: a format's reader opens a folder, or a file with others."""
    return str(part.path if part.path.is_dir() else part.path.parent)


def _list_files(path: Path) -> list[str]:
    """Return name, size and time of a file, or of every file below a folder, in order."""
    if path.is_file():
        files = [path]
    else:
        files = [folder / name for folder, _, names in iterate_folders(path) for name in names]
    lines = []
    for file in sorted(files):
        status = file.stat()
        lines.append(f"{file} {status.st_size} {status.st_mtime_ns}\n")
    return lines
