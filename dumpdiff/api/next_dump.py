"""Which dump comes next: narrow, the loop of such rounds, and grafts for a run without a fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np

from ..capture.completion import REQUEST_FILE, format_request
from ..capture.graft import list_grafted_modules, plan_graft
from ..capture.next_dump import (
    COMPARE_FILE,
    NextDumps,
    build_compare_script,
    build_loop,
    plan_next_dump,
)
from ..capture.snippets import build_graft_snippet
from ..comparison import Comparison
from ..divergence import locate
from ..model.finding import Finding
from ..model.gc_pause import pause_gc
from ..model.output_files import write_output_file
from .inputs import Inputs, PathLike, format_align_command
from .pipeline import compare_dumps
from .progress import Progress, report_progress
from .result_folder import read_saved, restore_inputs
from .saved_results import enter_task, find_finding

_MAX_FINDINGS = 3  #: that a dump is narrowed to by default; later ones mostly follow from these


@dataclass(frozen=True)
class _RepeatedComparison:
    """What a saved comparison says again, from its dumps."""

    inputs: Inputs
    min_coverage: float
    comparison: Comparison
    findings: tuple[Finding, ...]
    finding: Finding | None  #: the chosen one, None if none was


def _repeat_comparison(
    result: PathLike,
    finding: int | str | None,
    target: PathLike | None,
    reference: PathLike | None,
    rules: Sequence[PathLike],
    progress: Progress | None,
) -> _RepeatedComparison:
    """Compare the dumps of a result, or of the task of a run that a finding is in.

    Raises DumpError if the result cannot be read, has no such finding, or a dump is missing.
    """
    task_result, task_finding = enter_task(result, finding)
    saved = read_saved(task_result)
    finding_id = None if task_finding is None else saved.find_id(task_finding)
    inputs = restore_inputs(saved, target, reference, rules)
    comparison = compare_dumps(inputs, progress)
    report_progress(progress, "locating", 0.0)
    findings = locate(comparison, inputs.book, saved.min_coverage).findings
    chosen = None if finding_id is None else find_finding(findings, finding_id, result)
    return _RepeatedComparison(inputs, saved.min_coverage, comparison, findings, chosen)


@pause_gc()
def narrow(
    result: PathLike,
    output: PathLike = "next",
    *,
    finding: int | str | None = None,
    max_bytes: int | None = None,
    ops: int | None = None,
    target: PathLike | None = None,
    reference: PathLike | None = None,
    rules: Sequence[PathLike] = (),
    progress: Progress | None = None,
) -> NextDumps:
    """Write the configurations of the next, narrower dump.

    It holds whole tensors of the ops that explaining a finding needs. ``align(..., narrowed=...)``
    completes the first two dumps with them.

    Parameters
    ----------
    result
        Folder that ``align -o`` wrote, or the file that ``align --json`` wrote.
    output
        Folder for the configurations, made if absent; the dumps will go there.
    finding
        Rank or id of the finding; default: the first three.
    max_bytes
        Bytes of whole tensors that each side may have; default: 3 % of those of everything. The ops
        of the first finding are dumped even if they alone have more.
    ops
        Maximum number of ops on each side; default: as many as explaining the finding needs.
    target, reference
        Where the dumps are now; default: where they were.
    rules
        Rule files in addition to those of the result.

    Raises
    ------
    DumpError
        If the result cannot be read, has no such finding, or a dump is missing.
    """
    repeated = _repeat_comparison(result, finding, target, reference, rules, progress)
    selected_findings = repeated.findings[:_MAX_FINDINGS]
    if repeated.finding is not None:
        selected_findings = (repeated.finding,)
    folder = Path(output)
    plan = plan_next_dump(
        repeated.comparison,
        selected_findings,
        folder.resolve(),
        format_align_command(repeated.inputs, repeated.min_coverage),
        max_bytes=max_bytes,
        max_ops=ops,
    )
    folder.mkdir(parents=True, exist_ok=True)
    request = {side.side: side.ops for side in (plan.target, plan.reference)}
    write_output_file(folder / REQUEST_FILE, format_request(request).encode())
    write_output_file(folder / COMPARE_FILE, build_compare_script(plan).encode())
    for side in (plan.target, plan.reference):
        if side.file:
            write_output_file(folder / side.file, side.text.encode())
    return plan


def build_narrow_loop(
    result: PathLike,
    output: PathLike = "next",
    *,
    max_bytes: int | None = None,
    ops: int | None = None,
    target: PathLike | None = None,
    reference: PathLike | None = None,
    rules: Sequence[PathLike] = (),
) -> str:
    """Return a shell script of at most three rounds that ends as soon as a cause is found.

    The parameters are those of :func:`narrow`; the rounds get the folders ``output`` 1, 2 and 3.
    Raises DumpError as it does.
    """
    task_result, _ = enter_task(result, None)
    inputs = restore_inputs(read_saved(task_result), target, reference, rules)
    parts = inputs.choose_of_parts(inputs.find_parts())
    options: list[str] = []
    for option, number in (("--max-size", max_bytes), ("--ops", ops)):
        options += [] if number is None else [option, str(number)]
    return build_loop(
        (parts[0].format, parts[1].format),
        Path(task_result).absolute(),
        Path(output).resolve(),  # a dump configuration may hold no ".."
        options,
    )


def graft(
    result: PathLike,
    finding: int | str = 1,
    *,
    place: Literal["input", "output"] = "output",
    folder: PathLike = "graft",
    target: PathLike | None = None,
    reference: PathLike | None = None,
    rules: Sequence[PathLike] = (),
    progress: Progress | None = None,
) -> str:
    """Return code that loads the reference's value of one module into the target's run.

    The value is added to ``folder``, and the code loads everything that is in it: of a second
    finding, only the folder changes.

    Parameters
    ----------
    result
        Folder that ``align -o`` wrote, or the file that ``align --json`` wrote.
    finding
        Rank (1 is the first) or id of the finding.
    place
        What of the smallest module around the finding is replaced: its ``output`` or ``input``.
    folder
        Folder of the values, made if absent.
    target, reference
        Where the dumps are now; default: where they were.
    rules
        Rule files in addition to those of the result.

    Raises
    ------
    DumpError
        If the result has no such finding, the target is no dump of msprobe, the finding is in no
        module or in one whose output is in ``folder``, or the reference's whole tensor is not
        recorded.
    """
    repeated = _repeat_comparison(result, finding, target, reference, rules, progress)
    assert repeated.finding is not None
    path = Path(folder)
    grafted_modules = list_grafted_modules(path)
    value = plan_graft(repeated.comparison, repeated.finding, place, grafted_modules)
    path.mkdir(parents=True, exist_ok=True)
    stream = BytesIO()
    np.save(stream, value.values)
    write_output_file(path / value.file, stream.getvalue())
    return build_graft_snippet(value.framework, str(folder))
