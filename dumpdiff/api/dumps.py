"""Commands on dumps: align, explain, report, mapping, inspect and verify.

A dump or a saved result can also be read without comparing anything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import alignment, readers
from ..model.defaults import EXPLAINED_RANKS, MIN_COVERAGE
from ..model.errors import DumpError, NoFindingsError
from ..model.finding import Finding
from ..model.gc_pause import pause_gc
from ..model.result import Result
from ..model.run_result import RunResult
from ..model.saved_result import SavedResult
from ..model.trace import Trace
from ..readers.part_pairs import pair_parts
from ..readers.parts import Part
from ..rulebook import load_rules
from . import backends
from .backends import SavedDrawings
from .inputs import Inputs, PathLike
from .layouts import add_unrecorded_ranks, find_layouts
from .pipeline import read_flows
from .progress import Progress, narrow_progress, report_progress
from .result_builder import build_result
from .result_folder import RUN_FILES, is_run_folder, load_folder, read_saved, restore_inputs

if TYPE_CHECKING:
    from ..capture.msprobe.mapping_files import MappingKind, MsprobeMapping
    from ..verification import Verification


def read(
    path: PathLike, *, step: int | None = None, rank: int | None = None, graph: int | None = None
) -> Trace:
    """Read one dump, or the chosen part of it.

    Parameters
    ----------
    path
        Folder or file of a dump, in any format.
    step, rank, graph
        Part to read; default: the first of each.

    Raises
    ------
    DumpError
        If nothing can be read, or the dump has no such part.
    """
    parts = readers.find_parts(path, accept_tensors=True)
    part, _ = readers.choose_parts(parts, parts, step=step, rank=rank, graph=graph)
    return readers.read_part(part)


@pause_gc()
def align(
    target: PathLike,
    reference: PathLike,
    *,
    step: int | None = None,
    rank: int | None = None,
    graph: int | None = None,
    steps: Collection[int] | None = None,
    ranks: Collection[int] | None = None,
    baseline: PathLike | None = None,
    rules: Sequence[PathLike] = (),
    weights_target: PathLike | None = None,
    weights_reference: PathLike | None = None,
    min_coverage: float = MIN_COVERAGE,
    verify: bool = False,
    narrowed: Sequence[PathLike] = (),
    output: PathLike | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    explained: Collection[int] = EXPLAINED_RANKS,
    progress: Progress | None = None,
) -> Result | RunResult:
    """Find where two dumps of one model diverge.

    Every step and rank that both dumps have is compared. If that is a single one, the answer is its
    :class:`~dumpdiff.model.result.Result`; else it is a
    :class:`~dumpdiff.model.run_result.RunResult`, which follows errors through the communication
    of the ranks and from step to step.

    Parameters
    ----------
    target, reference
        Dump of the run under test, and of the trusted run; any two formats. Dumps of one rank each
        are compared whatever their numbers are, also two ranks of one run.
    steps, ranks
        Steps and ranks to compare; default: all that both dumps have.
    step, rank
        A single step or rank.
    graph
        Compiled graph of a MindSpore dump; default: the first.
    baseline
        Second run of the reference. Differences between these two runs are allowed to the target.
    rules
        Rule files, or mapping files of msprobe, in addition to the shipped rules.
    weights_target, weights_reference
        Checkpoints that name the parameters of a side by their values.
    min_coverage
        Share (0..1) of each side's forward and backward ops that ``aligned`` needs compared.
    verify
        Read every file of both dumps and hold it against its record, as :func:`verify` does;
        default: only the files that the comparison needs.
    narrowed
        Folders of :func:`narrow` with the dumps that it asked for: their whole tensors complete
        these two dumps, which keep what was known before.
    output
        Folder for the complete result: see :meth:`Result.save`. Of several steps or ranks, each has
        a folder in it; those that an earlier call finished with the same inputs are not repeated.
    jobs
        Processes that compare steps and ranks; default: one for each core.
    scheduler
        Address of a Dask scheduler, such as ``tcp://host:8786``, whose workers compare them.
    explained
        Ranks of the findings whose causes are searched for.
    progress
        Called with the current activity and its share done.

    Returns
    -------
    Result or RunResult
        Verdict, findings, coverage and tables. A ``Result`` keeps the compared dumps open for
        :meth:`Finding.explain` and :meth:`Result.to_html`.

    Raises
    ------
    DumpError
        If a dump or checkpoint cannot be read, or the dumps have no step or rank in common.
    RuleError
        If a rule file is wrong.
    """
    inputs = Inputs(
        target,
        reference,
        None,
        None,
        graph,
        baseline,
        tuple(rules),
        weights_target,
        weights_reference,
        verify,
        narrowed=tuple(narrowed),
    )
    selected_steps = _merge_selection("step", step, steps)
    selected_ranks = _merge_selection("rank", rank, ranks)
    report_progress(progress, "searching for dumps", 0.0)
    all_parts = inputs.find_parts()
    inputs = replace(inputs, step=_get_first(selected_steps), rank=_get_first(selected_ranks))
    layouts = find_layouts(inputs, all_parts)
    pairs = pair_parts(
        *all_parts,
        steps=selected_steps,
        ranks=selected_ranks,
        graph=graph,
        has_other_layouts=layouts is not None,
    )
    # Whoever chooses a rank or step does not ask about the others, which these may be.
    if selected_steps is None and selected_ranks is None:
        unreadable = inputs.describe_unreadable()
        pairs = replace(pairs, unpaired=(*pairs.unpaired, *unreadable))
    is_run = len(pairs.pairs) > 1 or bool(pairs.unpaired)
    if is_run and narrowed:
        raise DumpError(
            "--narrowed completes one step of one rank; give --step and --rank, as dumpdiff narrow "
            "printed them"
        )
    if is_run:
        from .run_alignment import Execution, align_run

        execution = Execution(jobs, scheduler, output)
        return align_run(inputs, pairs, min_coverage, explained, execution, load_single, progress)
    # Drawn once, also if the page is written again elsewhere.
    has_drawings = output is not None
    result, dumps = build_result(
        inputs,
        min_coverage,
        explained,
        progress,
        candidates=all_parts,
        layouts=layouts,
        has_drawings=has_drawings,
    )
    if layouts is None:
        result = add_unrecorded_ranks(result, dumps.comparison.alignment, all_parts)
    if output is not None:
        result.save(output)
    return result


def _merge_selection(
    name: str, number: int | None, numbers: Collection[int] | None
) -> Collection[int] | None:
    """Return the selected steps or ranks, None if all are. Raises TypeError if given twice."""
    if number is not None and numbers is not None:
        raise TypeError(f"give either {name} or {name}s")
    return numbers if number is None else (number,)


def _get_first(numbers: Collection[int] | None) -> int | None:
    """Return the first of the selected steps or ranks, None if none is selected."""
    return min(numbers) if numbers else None


def load(result: PathLike) -> Result | RunResult:
    """Load the complete result that ``align(..., output=FOLDER)`` or :meth:`Result.save` wrote.

    Every report can be made from it without the dumps; :meth:`Finding.explain` reads them again.
    The folder of a run gives a ``RunResult``, the folder of one of its tasks a ``Result``.

    Raises
    ------
    DumpError
        If there is no complete result in the folder.
    """
    path = Path(result)
    folder = path if path.is_dir() else path.parent
    if is_run_folder(folder):
        from .run_backend import RunFolder
        from .run_folder import read_run

        return replace(read_run(folder), backend=RunFolder(folder, load_single))
    return load_single(folder)


def load_single(folder: Path) -> Result:
    """Load the complete result of one step of one rank. Raises DumpError if there is none."""
    loaded = load_folder(folder)

    def explain_again(finding: Finding) -> Finding:
        return explain(folder, finding.id)

    findings = tuple(replace(finding, explainer=explain_again) for finding in loaded.findings)
    return replace(loaded, findings=findings, backend=SavedDrawings())


def enter_task(result: PathLike, finding: int | str | None) -> tuple[Path, int | str | None]:
    """Return the folder of the task that a finding of a run is in, and its id there.

    The result of a single task is returned unchanged. Raises DumpError if there is no such finding.
    """
    path = Path(result)
    folder = path if path.is_dir() else path.parent
    if not is_run_folder(folder) or (path.is_file() and path.name not in RUN_FILES):
        return path, finding
    from .run_folder import read_run

    run = read_run(folder)
    if finding is not None and not run.findings:
        raise NoFindingsError(
            f"{result}: no findings in any of {len(run.tasks)} tasks: there is nothing to explain",
            run.verdict,
        )
    if finding is not None:
        run_finding = run.finding(finding)
        return folder / run_finding.task, run_finding.id
    if run.findings:
        return folder / run.findings[0].task, None
    finished_tasks = [task for task in run.tasks if task.folder]
    return folder / finished_tasks[0].folder, None


def explain(
    result: PathLike,
    finding: int | str = 1,
    *,
    target: PathLike | None = None,
    reference: PathLike | None = None,
    rules: Sequence[PathLike] = (),
    progress: Progress | None = None,
) -> Finding:
    """Return a finding of a saved result with its causes; the two dumps are read again.

    Parameters
    ----------
    result
        Folder that ``align -o`` wrote, or the file that ``align --json`` wrote.
    finding
        Rank (1 is the first) or id of the finding.
    target, reference
        Where the dumps are now; default: where they were.
    rules
        Rule files in addition to those of the result.

    Raises
    ------
    NoFindingsError
        If the comparison has no findings; it says why.
    DumpError
        If the result cannot be read, has no such finding, or a dump is missing or another one.
    """
    task_result, task_finding = enter_task(result, finding)
    saved = read_saved(task_result)
    finding_id = saved.find_id(finding if task_finding is None else task_finding)
    repeated_result = _repeat(saved, target, reference, rules, explained=(), progress=progress)
    return find_finding(repeated_result.findings, finding_id, result).explain()


def find_finding(findings: Sequence[Finding], finding_id: str, result: PathLike) -> Finding:
    """Return the finding of a saved result among those of the repeated comparison.

    Raises DumpError if the comparison no longer gives it.
    """
    for finding in findings:
        if finding.id == finding_id:
            return finding
    raise DumpError(
        f"{result}: its dumps no longer give finding {finding_id}; run dumpdiff align again"
    )


def report(
    result: PathLike,
    *,
    html: PathLike | None = None,
    markdown: PathLike | None = None,
    junit: PathLike | None = None,
    csv: PathLike | None = None,
    redact: bool = False,
    target: PathLike | None = None,
    reference: PathLike | None = None,
    rules: Sequence[PathLike] = (),
    progress: Progress | None = None,
) -> Result | RunResult:
    """Write reports of a saved result, and return it.

    A folder that ``align -o`` wrote is complete: no dump is read. For a single JSON file, or with
    further ``rules``, the comparison is repeated on the dumps.

    Parameters
    ----------
    result
        Folder that ``align -o`` wrote, or the file that ``align --json`` wrote.
    html, markdown, junit, csv
        Files to write.
    redact
        Shorten paths to their last component, and hide the names of users and of this host.
    target, reference
        Where the dumps are now; default: where they were.
    rules
        Rule files in addition to those of the result.

    Raises
    ------
    DumpError
        If the result cannot be read, or a dump that is needed is missing.
    """
    path = Path(result)
    has_other_inputs = bool(rules) or target is not None or reference is not None
    loaded: Result | RunResult
    if path.is_dir() and not has_other_inputs:
        loaded = load(path)
    elif is_run_folder(path):
        raise DumpError(
            f"{path}: is the result of a run; repeat dumpdiff align with other rules or dumps"
        )
    else:
        loaded = _repeat(read_saved(path), target, reference, rules, progress=progress)
    if redact:
        loaded = backends.redact(loaded)
    files = {"html": html, "markdown": markdown, "junit": junit, "csv": csv}
    for output, file in files.items():
        if file is not None:
            loaded.render(output, file)
    return loaded


@pause_gc()
def mapping(
    result: PathLike,
    kind: MappingKind = "data",
    *,
    msprobe_version: str | None = None,
    target: PathLike | None = None,
    reference: PathLike | None = None,
    rules: Sequence[PathLike] = (),
    progress: Progress | None = None,
) -> MsprobeMapping:
    """Return the mapping file that lets ``msprobe compare`` compare two dumps as they were aligned.

    Parameters
    ----------
    result
        Folder that ``align -o`` wrote, or the file that ``align --json`` wrote; both dumps are
        msprobe's.
    kind
        ``data`` (tensor by tensor), ``cell`` (modules) or ``api``.
    msprobe_version
        Version of the msprobe that will read it; default: the one that wrote the reference.
    target, reference
        Where the dumps are now; default: where they were.
    rules
        Rule files in addition to those of the result.

    Raises
    ------
    DumpError
        If the result cannot be read, or its dumps are missing or not both of msprobe.
    """
    from ..capture.msprobe import parse_version
    from ..capture.msprobe.mapping_files import build_mapping

    version = None if msprobe_version is None else parse_version(msprobe_version)
    task_result, _ = enter_task(result, None)
    inputs = restore_inputs(read_saved(task_result), target, reference, rules)
    all_parts = inputs.find_parts()
    if find_layouts(inputs, all_parts) is not None:
        raise DumpError(
            f"{result}: msprobe compares rank with rank, and the ranks of these runs were merged"
        )
    flows, _, _ = read_flows(inputs, inputs.choose_of_parts(all_parts), progress)
    report_progress(progress, "aligning", 0.0)
    return build_mapping(alignment.align(*flows, inputs.book), inputs.book, kind, version)


@dataclass(frozen=True)
class Inspection:
    """What a dump holds: all its parts, and one of them, read."""

    path: str
    parts: tuple[Part, ...]
    trace: Trace

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        from ..reports.inspection import to_json

        return to_json(self.path, self.parts, self.trace)


def inspect(
    dump: PathLike,
    *,
    step: int | None = None,
    rank: int | None = None,
    graph: int | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Return what a dump is: format, framework, steps, ranks, ops, tensors, problems.

    Parameters
    ----------
    dump
        Folder or file of MindSpore, msprobe or ptdbg_ascend.
    step, rank, graph
        Part to read; default: the first of each.
    progress
        Called with the current activity and its share done.

    Raises
    ------
    DumpError
        If nothing can be read, or the dump has no such part.
    """
    report_progress(progress, "searching for dumps", 0.0)
    parts, part = _choose_part(dump, step, rank, graph)
    report_progress(progress, "reading the dump", 0.5)
    trace = readers.read_part(part)
    unreadable = readers.find_unreadable(dump)
    return Inspection(
        str(dump), tuple(parts), replace(trace, problems=(*trace.problems, *unreadable))
    )


def verify(
    dump: PathLike,
    *,
    step: int | None = None,
    rank: int | None = None,
    graph: int | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Check whether a dump contradicts itself: files, statistics, shapes, values, and outputs.

    Parameters
    ----------
    dump
        Folder or file of MindSpore, msprobe or ptdbg_ascend.
    step, rank, graph
        Part to check; default: the first of each.
    progress
        Called with the current activity and its share done.

    Returns
    -------
    Verification
        Verdict, the number of checks of each kind, and every contradiction.

    Raises
    ------
    DumpError
        If nothing can be read, or the dump has no such part.
    """
    from ..verification import verify_trace

    report_progress(progress, "searching for dumps", 0.0)
    parts, part = _choose_part(dump, step, rank, graph)
    report_progress(progress, "reading the dump", 0.0)
    trace = readers.read_part(part)
    move_bar = narrow_progress(progress, "reading the files")
    verification = verify_trace(trace, load_rules(), move_bar)
    place = readers.describe_unread_parts(parts, part)
    notes = [f"{place} was checked; the rest was not read"] if place else []
    notes += map(str, readers.find_unreadable(dump))
    return replace(verification, notes=tuple(notes))


def _choose_part(
    dump: PathLike, step: int | None, rank: int | None, graph: int | None
) -> tuple[list[Part], Part]:
    """Return all parts of a dump, and the first that has the given numbers.

    Raises DumpError if there is none.
    """
    parts = readers.find_parts(dump)
    numbers = {"step": step, "rank": rank, "graph": graph}
    requested_numbers = {name: number for name, number in numbers.items() if number is not None}
    for part in parts:
        if _is_part(part, requested_numbers):
            return parts, part
    request = ", ".join(f"{name} {number}" for name, number in requested_numbers.items())
    existing_parts = "; ".join(map(str, parts))
    raise DumpError(f"{dump}: has no {request}; it holds: {existing_parts}")


def _is_part(part: Part, requested_numbers: dict[str, int]) -> bool:
    part_numbers = {"step": part.step, "rank": part.rank_or_process, "graph": part.graph}
    return all(part_numbers[name] == number for name, number in requested_numbers.items())


@pause_gc()
def _repeat(
    saved: SavedResult,
    target: PathLike | None,
    reference: PathLike | None,
    rules: Sequence[PathLike],
    explained: Collection[int] = EXPLAINED_RANKS,
    progress: Progress | None = None,
) -> Result:
    """Repeat a saved comparison, with further rules, on dumps that may have moved."""
    inputs = restore_inputs(saved, target, reference, rules)
    result, _ = build_result(inputs, saved.min_coverage, explained, progress)
    return result
