"""``dumpdiff.align`` on many ranks and steps: its tasks, and the answer about the run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ..model.background import count_cores
from ..model.errors import DumpError
from ..model.result import Result
from ..model.run_result import RunResult, TaskResult
from ..readers.part_pairs import PartPair, PartPairs
from ..readers.parts import Part
from ..run_divergence import find_inheritance, locate_run
from .executors import run_tasks
from .inputs import Inputs, PathLike
from .layouts import describe_unrecorded_ranks
from .progress import Progress, report_progress
from .run_backend import RunFolder
from .run_folder import read_finished_task, write_run, write_task
from .tasks import Options, Task, compute_digest


@dataclass(frozen=True)
class Execution:
    """Where the tasks of a run are compared, and where their results go."""

    jobs: int | None = None  #: processes; None: one for each core
    scheduler: str | None = None  #: address of a Dask scheduler
    output: PathLike | None = None


def align_run(
    inputs: Inputs,
    pairs: PartPairs,
    min_coverage: float,
    explained: Collection[int],
    execution: Execution,
    load_single: Callable[[Path], Result],
    progress: Progress | None,
) -> RunResult:
    """Compare all pairs of parts, each as a task, and return the answer about the run.

    ``load_single`` loads the complete result of a task from its folder. With an output folder, a
    task that an earlier call finished there with the same inputs is not
    repeated. Raises DumpError if not a single task can be compared.
    """
    is_kept = execution.output is not None
    temporary = None if is_kept else TemporaryDirectory(prefix="dumpdiff-")
    folder = Path(str(execution.output) if temporary is None else temporary.name)
    options = _build_options(inputs, min_coverage, explained, has_all_files=is_kept)
    tasks = [_build_task(pair, options) for pair in pairs.pairs]
    digests = [compute_digest(task) if is_kept else "" for task in tasks]
    results: dict[int, TaskResult] = {}
    for number, (task, digest) in enumerate(zip(tasks, digests, strict=True)):
        finished_result = None
        if is_kept:
            finished_result = read_finished_task(folder / task.folder, digest, has_all_files=True)
        if finished_result is not None:
            results[number] = finished_result

    def compare(open_tasks: Mapping[int, Task]) -> None:
        open_numbers = list(open_tasks)
        jobs = execution.jobs or count_cores()
        replies = run_tasks(list(open_tasks.values()), jobs, execution.scheduler)
        _report_tasks(progress, len(results), len(tasks))
        for open_number, reply in replies:
            number = open_numbers[open_number]
            if not reply.result.problem:
                write_task(folder / tasks[number].folder, reply, digests[number])
            results[number] = reply.result
            _report_tasks(progress, len(results), len(tasks))

    compare({number: task for number, task in enumerate(tasks) if number not in results})
    for step in dict.fromkeys(task.pair.step for task in tasks):
        compare(_list_repetitions(tasks, results, step))
    ordered_results = [results[number] for number in range(len(tasks))]
    if all(result.problem for result in ordered_results):
        raise DumpError(ordered_results[0].problem)
    named_ranks = {rank for result in ordered_results for rank in result.named_ranks}
    missing_ranks = tuple(sorted(named_ranks - pairs.recorded_ranks))
    unread = pairs.unread
    if missing_ranks:
        unread = (*unread, describe_unrecorded_ranks(missing_ranks))
    result = locate_run(
        str(inputs.target),
        str(inputs.reference),
        ordered_results,
        unread=unread,
        unpaired=pairs.unpaired,
        details={"min_coverage": min_coverage, "rules": list(options.rules)},
    )
    result = replace(result, backend=RunFolder(folder, load_single, temporary))
    if is_kept:
        write_run(result, folder)
    return result


def _list_repetitions(
    tasks: Sequence[Task], results: Mapping[int, TaskResult], step: int | None
) -> dict[int, Task]:
    """Return the tasks of a step to compare again, with what the step before left as noise."""
    repetitions = {}
    for number, task in enumerate(tasks):
        if task.pair.step != step:
            continue
        inheritance = find_inheritance(results[number], list(results.values()))
        if inheritance != results[number].inheritance:
            repetitions[number] = replace(task, inheritance=inheritance)
    return repetitions


def _report_tasks(progress: Progress | None, finished: int, total: int) -> None:
    report_progress(progress, f"comparing {total} tasks, {finished} done", finished / total)


def _build_options(
    inputs: Inputs, min_coverage: float, explained: Collection[int], *, has_all_files: bool
) -> Options:
    return Options(
        _make_absolute(inputs.target) or "",
        _make_absolute(inputs.reference) or "",
        inputs.graph,
        _make_absolute(inputs.baseline),
        tuple(str(Path(file).absolute()) for file in inputs.rules),
        _make_absolute(inputs.weights_target),
        _make_absolute(inputs.weights_reference),
        inputs.verify,
        min_coverage,
        tuple(explained),
        has_all_files,
    )


def _make_absolute(path: PathLike | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def _build_task(pair: PartPair, options: Options) -> Task:
    absolute_pair = replace(
        pair,
        target=_make_parts_absolute(pair.target),
        reference=_make_parts_absolute(pair.reference),
    )
    names = [
        f"{label}{number}"
        for label, number in (("step", pair.step), ("rank", pair.rank))
        if number is not None
    ]
    return Task(absolute_pair, options, "/".join(names) or "task")


def _make_parts_absolute(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(replace(part, path=part.path.absolute()) for part in parts)
