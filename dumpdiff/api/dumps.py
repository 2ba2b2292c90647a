"""Commands on dumps: read, align, inspect and verify."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import readers
from ..model.defaults import EXPLAINED_RANKS, MIN_COVERAGE
from ..model.errors import DumpError
from ..model.gc_pause import pause_gc
from ..model.result import Result
from ..model.run_result import RunResult
from ..model.trace import Trace
from ..readers.part_pairs import pair_parts
from ..readers.parts import Part
from ..rulebook import load_rules
from .inputs import Inputs, PathLike
from .layouts import add_unrecorded_ranks, find_layouts
from .progress import Progress, narrow_progress, report_progress
from .result_builder import build_result
from .saved_results import load_single

if TYPE_CHECKING:
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
        A dump of any format that docs/formats.md lists.
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
        A dump of any format that docs/formats.md lists.
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
