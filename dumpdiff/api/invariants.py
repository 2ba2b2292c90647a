"""The command on one run of many ranks without a reference: check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from .. import readers
from ..model.errors import DumpError
from ..model.gc_pause import pause_gc
from ..model.trace import Trace
from ..readers.parts import Part
from ..rulebook import load_rules
from .inputs import PathLike
from .progress import Progress, report_progress

if TYPE_CHECKING:
    from ..invariants import RunCheck


@pause_gc()
def check(
    dump: PathLike,
    *,
    steps: Sequence[int] | None = None,
    ranks: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> RunCheck:
    """Check what holds in every correct run of many ranks, without a reference.

    What collectives give follows from what the ranks gave, replicated values and parameters are
    equal, sibling ranks make the same calls, values are finite.

    Parameters
    ----------
    dump
        Folder of MindSpore, msprobe or ptdbg_ascend with all ranks.
    steps, ranks
        Numbers to read; default: all.
    progress
        Called with the current activity and its share done.

    Returns
    -------
    RunCheck
        Verdict, how often each invariant was checked, and every violation.

    Raises
    ------
    DumpError
        If nothing can be read, or the dump has no such step or rank.
    """
    from ..invariants import check_run

    report_progress(progress, "searching for dumps", 0.0)
    parts = readers.find_parts(dump)
    parts_by_step, notes = _choose_parts(parts, steps, ranks)
    notes += tuple(map(str, readers.find_unreadable(dump)))
    n_parts = sum(map(len, parts_by_step.values()))
    n_read = 0

    def read_steps() -> Iterator[tuple[int | None, Mapping[int, Trace]]]:
        nonlocal n_read
        for step, step_parts in parts_by_step.items():
            traces = {}
            for rank, part in step_parts.items():
                report_progress(progress, f"reading rank {rank}", n_read / n_parts)
                traces[rank] = readers.read_part(part)
                n_read += 1
            report_progress(progress, "checking", n_read / n_parts)
            yield step, traces

    return check_run(str(dump), read_steps(), load_rules(), notes=notes)


def _choose_parts(
    parts: Sequence[Part], steps: Sequence[int] | None, ranks: Sequence[int] | None
) -> tuple[dict[int | None, dict[int, Part]], tuple[str, ...]]:
    """Return the parts by step and rank, and notes on what is left out.

    Of several parts of one step and rank, the first graph is chosen, and whole tensors before
    statistics. A dump without ranks is one of rank 0, or each process is a rank.
    """
    chosen: dict[int | None, dict[int, Part]] = {}
    n_omitted = 0
    order = sorted(parts, key=_get_sort_key)
    for part in order:
        rank = part.rank_or_process or 0
        is_requested = steps is None or part.step in steps
        is_requested &= ranks is None or rank in ranks
        if not is_requested:
            n_omitted += 1
            continue
        by_rank = chosen.setdefault(part.step, {})
        if rank in by_rank:
            n_omitted += 1
        else:
            by_rank[rank] = part
    if not chosen:
        existing_parts = "; ".join(map(str, parts[:_MAX_LISTED]))
        raise DumpError(f"no such step or rank; the dump holds: {existing_parts}")
    notes = []
    if n_omitted:
        notes.append(f"{n_omitted} other steps, ranks or graphs were not read")
    return chosen, tuple(notes)


_MAX_LISTED = 6  #: parts in an error message


def _get_sort_key(part: Part) -> tuple[int, int, int, bool, str]:
    numbers = (part.step, part.rank_or_process, part.graph)
    step, rank, graph = (-1 if number is None else number for number in numbers)
    return step, rank, graph, not part.has_whole_tensors, str(part.path)
