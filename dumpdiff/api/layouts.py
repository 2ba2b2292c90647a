"""Two runs that are spread over their ranks in other ways: read and merge all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .. import readers
from ..alignment import Alignment
from ..communication import list_collectives, list_named_ranks
from ..graph import Flow, build_flow
from ..model.errors import DumpError
from ..model.result import Result
from ..model.run_result import format_place
from ..model.trace import Trace
from ..readers.parts import Part
from ..rulebook import Rules
from ..sharding import Merged, RunOfRanks, has_equal_layout, list_changed_layouts, merge_runs
from ..verification import JoinedChecks, TraceChecks, attach_checks
from .inputs import Inputs
from .progress import Progress, narrow_progress, report_progress

RankParts = tuple[list[Part], list[Part]]  #: one part for each rank of the target and the reference


@dataclass(frozen=True)
class Layouts:
    """Two runs whose ranks are merged: all their ranks, and what was read to find that out."""

    parts: RankParts
    traces: Mapping[Part, Trace]  #: of some of the parts


def find_layouts(inputs: Inputs, all_parts: tuple[list[Part], list[Part]]) -> Layouts | None:
    """Return all ranks of one step, if the two runs have other layouts.

    None if a rank was chosen, if both runs have one rank, or if the same rank of both holds
    parameters of the same sizes and both have as many ranks, or one lacks ranks that its own
    collectives name.
    """
    if inputs.rank is not None:
        return None
    n_ranks = [_count_ranks(parts) for parts in all_parts]
    if max(n_ranks) < 2:
        return None
    step = _choose_step(all_parts, inputs.step)
    target, reference = (_choose_of_ranks(parts, step, inputs.graph) for parts in all_parts)
    if not target or not reference:
        return None
    chosen_parts = inputs.choose_of_parts(all_parts)
    traces = {part: readers.read_part(part) for part in dict.fromkeys(chosen_parts)}
    if has_equal_layout(*(traces[part] for part in chosen_parts)):
        if n_ranks[0] == n_ranks[1]:
            return None
        for part in (*target, *reference):
            traces[part] = _take_trace(part, traces)
        if any(_find_missing_ranks(side_parts, traces) for side_parts in (target, reference)):
            return None
    return Layouts((target, reference), traces)


def merge_layouts(
    inputs: Inputs, layouts: Layouts, progress: Progress | None
) -> tuple[tuple[Merged, Merged], tuple[JoinedChecks, JoinedChecks]]:
    """Read all ranks of both runs and merge those of each run to one trace.

    Raises DumpError if collectives name a rank that a dump lacks.
    """
    runs, checks = [], []
    for side, side_parts in zip(("target", "reference"), layouts.parts, strict=True):
        rank_checks: list[TraceChecks] = []
        flows = []
        traces = {}
        for part in side_parts:
            report_progress(progress, f"reading rank {part.rank} of the {side}", 0.0)
            traces[part] = _take_trace(part, layouts.traces)
            rank_checks.append(attach_checks(traces[part], inputs.book))
            move_bar = narrow_progress(progress, f"statistics of the {side}")
            flows.append(build_flow(rank_checks[-1].trace, move_bar))
        _refuse_missing_ranks(side, _find_missing_ranks(side_parts, traces))
        ranks = tuple(part.rank or 0 for part in side_parts)
        runs.append(RunOfRanks(ranks, tuple(flows)))
        names = tuple(f"rank {rank}" for rank in ranks)
        checks.append(JoinedChecks(tuple(rank_checks), names))
    report_progress(progress, "merging the ranks", 0.0)
    merged_runs = merge_runs(runs[0], runs[1], inputs.book.relations)
    return merged_runs, (checks[0], checks[1])


def _take_trace(part: Part, traces: Mapping[Part, Trace]) -> Trace:
    """Return the trace of a part, which is read if that was not done before."""
    return traces[part] if part in traces else readers.read_part(part)


def merge_micro_batches(flows: tuple[Flow, Flow], book: Rules) -> tuple[Merged, Merged]:
    """Merge the micro-batches of one of two runs of one rank."""
    target, reference = (RunOfRanks((0,), (flow,)) for flow in flows)
    return merge_runs(target, reference, book.relations)


def describe_layouts(merged_runs: Sequence[Merged]) -> list[str]:
    """Return sentences: which ranks were merged, how, and what was left out."""
    sentences = []
    for side, merged in zip(("target", "reference"), merged_runs, strict=False):
        if not merged.ranks:
            continue
        if merged.ranks[0].startswith("micro-batch"):
            kind = "micro-batches"
        elif merged.ranks[0].startswith("chunk"):
            kind = "model chunks"
        else:
            kind = "ranks"
        sentences.append(f"the {len(merged.ranks)} {kind} of the {side} were merged to one run")
        sentences += [f"{side}: {note}" for note in merged.notes]
    return sentences


def list_layout(merged_runs: Sequence[Merged]) -> dict[str, list[list[object]]]:
    """Return, by side, kind of value, how it is spread over the ranks, and number of values."""
    layouts = {}
    for side, merged in zip(("target", "reference"), merged_runs, strict=True):
        if merged.ranks:
            layouts[side] = [
                [row.name, row.relation, row.count] for row in list_changed_layouts(merged.layout)
            ]
    return layouts


def _find_missing_ranks(parts: Sequence[Part], traces: Mapping[Part, Trace]) -> tuple[int, ...]:
    """Return the ranks that collectives of a run name, and that its dump does not hold.

    Empty if the dump is that of one process, whose number is no rank.
    """
    if any(part.rank is None for part in parts):
        return ()
    named_ranks: set[int] = set()
    for part in parts:
        named_ranks |= list_named_ranks(list_collectives(traces[part]))
    return tuple(sorted(named_ranks - {part.rank for part in parts}))


def add_unrecorded_ranks(result: Result, alignment: Alignment, all_parts: RankParts) -> Result:
    """Return the result of one rank with a note about the ranks that neither dump holds.

    They are known from the collectives of the rank. Raises DumpError if parameters of the rank are
    shards of the other run's: shapes that differ are no findings then.
    """
    recorded_ranks = {part.rank for parts in all_parts for part in parts if part.rank is not None}
    traces = (alignment.target.trace, alignment.reference.trace)
    missing_of_side = []
    for trace, parts in zip(traces, all_parts, strict=True):
        is_ranked = all(part.rank is not None for part in parts)
        named_ranks = list_named_ranks(list_collectives(trace)) if is_ranked else frozenset()
        missing_of_side.append(tuple(sorted(named_ranks - recorded_ranks)))
    has_other_shapes = any(finding.kind == "shape" for finding in result.findings)
    if any(missing_of_side) and has_other_shapes and not has_equal_layout(*traces):
        for side, missing_ranks in zip(("target", "reference"), missing_of_side, strict=True):
            _refuse_missing_ranks(side, missing_ranks)
    all_missing_ranks = tuple(sorted({*missing_of_side[0], *missing_of_side[1]}))
    if not all_missing_ranks:
        return result
    return replace(result, notes=(*result.notes, describe_unrecorded_ranks(all_missing_ranks)))


def describe_unrecorded_ranks(missing_ranks: tuple[int, ...]) -> str:
    """Return 'rank 3 is in neither dump and was not compared; others exchange values with it'."""
    place = format_place(missing_ranks, ())
    if len(missing_ranks) == 1:
        return f"{place} is in neither dump and was not compared; others exchange values with it"
    return f"{place} are in neither dump and were not compared; others exchange values with them"


def _refuse_missing_ranks(side: str, missing_ranks: tuple[int, ...]) -> None:
    if missing_ranks:
        place = format_place(missing_ranks, ())
        raise DumpError(
            f"the {side} exchanges values with {place}, which its dump lacks; runs of other layouts"
            " need all their ranks; runs of one layout are compared rank by rank with --ranks"
        )


def _count_ranks(parts: Sequence[Part]) -> int:
    return len({part.rank for part in parts if part.rank is not None})


def _choose_step(all_parts: tuple[list[Part], list[Part]], step: int | None) -> int | None:
    """Return the requested step, else the first that both runs have."""
    if step is not None:
        return step
    target_steps, reference_steps = ({part.step for part in parts} for parts in all_parts)
    common_steps = target_steps & reference_steps - {None}
    return min((number for number in common_steps if number is not None), default=None)


def _choose_of_ranks(parts: Sequence[Part], step: int | None, graph: int | None) -> list[Part]:
    """Return the part of every rank, in the order of ranks."""
    step_parts = [part for part in parts if part.step in (step, None)] or list(parts)
    chosen = []
    for rank in sorted({part.rank for part in step_parts}, key=lambda rank: (rank is None, rank)):
        rank_parts = [part for part in step_parts if part.rank == rank]
        chosen.append(readers.choose_parts(rank_parts, rank_parts, graph=graph)[0])
    ranked = [part for part in chosen if part.rank is not None]
    return ranked or chosen[:1]
