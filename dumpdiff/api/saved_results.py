"""Commands on saved results: load, explain, report and mapping."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import alignment
from ..model.defaults import EXPLAINED_RANKS
from ..model.errors import DumpError, NoFindingsError
from ..model.finding import Finding
from ..model.gc_pause import pause_gc
from ..model.result import Result
from ..model.run_result import RunResult
from ..model.saved_result import SavedResult
from . import backends
from .backends import SavedDrawings
from .inputs import PathLike
from .layouts import find_layouts
from .pipeline import read_prepared_sides
from .progress import Progress, report_progress
from .result_builder import build_result
from .result_folder import RUN_FILES, is_run_folder, load_folder, read_saved, restore_inputs

if TYPE_CHECKING:
    from ..capture.msprobe.mapping_files import MappingKind, MsprobeMapping


def load(result: PathLike) -> Result | RunResult:
    """Load the complete result that ``align(..., output=FOLDER)`` or :meth:`Result.save` wrote.

    Every report can be made from it without the dumps; :meth:`Finding.explain` reads them again.
    The folder of a run gives a ``RunResult``, the folder of one of its tasks a ``Result``.

    Raises
    ------
    DumpError
        If there is no complete result in the folder.
    """
    folder = _get_folder(Path(result))
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
    folder = _get_folder(path)
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
    sides, _, _ = read_prepared_sides(inputs, inputs.choose_of_parts(all_parts), progress)
    report_progress(progress, "aligning", 0.0)
    return build_mapping(alignment.align_sides(*sides, inputs.book), inputs.book, kind, version)


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


def _get_folder(result: Path) -> Path:
    """Return the folder of a result that is given by its folder or by a file in it."""
    return result if result.is_dir() else result.parent
