"""Two runs that are spread over their ranks in other ways: read and merge all ranks."""

from __future__ import annotations

from collections.abc import Sequence

from .. import readers
from ..communication import list_collectives
from ..graph import Flow, build_flow
from ..model.errors import DumpError
from ..model.run_result import format_place
from ..readers.parts import Part
from ..sharding import Merged, RunOfRanks, has_equal_layout, list_changed_layouts, merge_runs
from ..verification import JoinedChecks, TraceChecks, attach_checks
from .inputs import Inputs
from .progress import Progress, narrow_progress, report_progress

RankParts = tuple[list[Part], list[Part]]  #: one part for each rank of the target and the reference


def find_layouts(inputs: Inputs, all_parts: tuple[list[Part], list[Part]]) -> RankParts | None:
    """Return the parts of all ranks of one step, if the two runs have other layouts.

    None if a rank was chosen, if both runs have one rank, or if the same rank of both holds
    parameters of the same sizes and both have as many ranks, or one lacks ranks that its own
    collectives name. Raises DumpError if such ranks are needed to merge a run.
    """
    if inputs.rank is not None:
        return None
    n_ranks = [_count_ranks(parts) for parts in all_parts]
    if max(n_ranks) < 2:
        return None
    step = _choose_step(all_parts, inputs.step)
    target, reference = (_choose_of_ranks(parts, step, inputs.graph) for parts in all_parts)
    has_equal_number = n_ranks[0] == n_ranks[1]
    problems = [] if has_equal_number else _describe_missing_ranks(target, reference)
    if has_equal_number or problems:
        chosen_parts = inputs.choose_of_parts(all_parts)
        if has_equal_layout(*(readers.read_part(part) for part in chosen_parts)):
            return None
    if problems:
        raise DumpError(f"{'; '.join(problems)}; runs of other layouts need all their ranks")
    return (target, reference) if target and reference else None


def merge_layouts(
    inputs: Inputs, parts: RankParts, progress: Progress | None
) -> tuple[tuple[Merged, Merged], tuple[JoinedChecks, JoinedChecks]]:
    """Read all ranks of both runs and merge those of each run to one trace."""
    runs, checks = [], []
    for side, side_parts in zip(("target", "reference"), parts, strict=True):
        rank_checks: list[TraceChecks] = []
        flows = []
        for part in side_parts:
            report_progress(progress, f"reading rank {part.rank} of the {side}", 0.0)
            rank_checks.append(attach_checks(readers.read_part(part), inputs.book))
            move_bar = narrow_progress(progress, f"statistics of the {side}")
            flows.append(build_flow(rank_checks[-1].trace, move_bar))
        ranks = tuple(part.rank or 0 for part in side_parts)
        runs.append(RunOfRanks(ranks, tuple(flows)))
        names = tuple(f"rank {rank}" for rank in ranks)
        checks.append(JoinedChecks(tuple(rank_checks), names))
    report_progress(progress, "merging the ranks", 0.0)
    merged_runs = merge_runs(runs[0], runs[1])
    return merged_runs, (checks[0], checks[1])


def merge_micro_batches(flows: tuple[Flow, Flow]) -> tuple[tuple[Flow, Flow], list[str]]:
    """Merge the micro-batches of one of two runs of one rank, and return sentences about it."""
    target, reference = (RunOfRanks((0,), (flow,)) for flow in flows)
    merged_runs = merge_runs(target, reference)
    merged_flows = (build_flow(merged_runs[0].trace), build_flow(merged_runs[1].trace))
    return merged_flows, describe_layouts(merged_runs)


def describe_layouts(merged_runs: Sequence[Merged]) -> list[str]:
    """Return sentences: which ranks were merged, how, and what was left out."""
    sentences = []
    for side, merged in zip(("target", "reference"), merged_runs, strict=True):
        if not merged.ranks:
            continue
        kind = "micro-batches" if "micro-batch" in merged.ranks[0] else "ranks"
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


def _describe_missing_ranks(*sides: Sequence[Part]) -> list[str]:
    """Return a sentence for each run whose collectives name ranks that its dump does not hold."""
    sentences = []
    for side, parts in zip(("target", "reference"), sides, strict=True):
        if any(part.rank is None for part in parts):
            continue  # one process, whose number is no rank
        named_ranks: set[int] = set()
        for part in parts:
            table = list_collectives(readers.read_part(part))
            for members in table["members"].dropna():
                named_ranks.update(members)
        missing_ranks = sorted(named_ranks - {part.rank for part in parts})
        if missing_ranks:
            place = format_place(tuple(missing_ranks), ())
            sentences.append(f"the {side} exchanges values with {place}, which its dump lacks")
    return sentences


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
