"""Runs of different layouts, each as one trace, so that they can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..graph import Flow
from ..model.trace import Trace
from .merge import LayoutRow, MergedRun, merge_ranks
from .relations import index_values
from .siblings import align_siblings


@dataclass(frozen=True)
class RunOfRanks:
    """The traces of all ranks of one step of a run."""

    names: tuple[str, ...]  #: "rank 3"
    flows: tuple[Flow, ...]

    @property
    def is_single(self) -> bool:
        """Whether the run has one rank."""
        return len(self.flows) == 1


@dataclass(frozen=True)
class Merged:
    """A run of one or several ranks as one trace."""

    trace: Trace
    ranks: tuple[str, ...] = ()  #: those that were merged; () if there is one
    layout: tuple[LayoutRow, ...] = ()
    notes: tuple[str, ...] = ()


def merge_runs(target: RunOfRanks, reference: RunOfRanks) -> tuple[Merged, Merged]:
    """Return both runs as one trace each.

    How the values of ranks make up one value is found in the values of the other run.
    """
    siblings = tuple(align_siblings(run.flows, run.names) for run in (target, reference))
    merged_runs = []
    for own, other, run in (
        (siblings[0], siblings[1], target),
        (siblings[1], siblings[0], reference),
    ):
        if run.is_single:
            merged_runs.append(Merged(run.flows[0].trace))
            continue
        merged = merge_ranks(own, other, index_values(other))
        merged_runs.append(_describe_merged(merged))
    return merged_runs[0], merged_runs[1]


def _describe_merged(merged: MergedRun) -> Merged:
    notes = list(merged.notes)
    ranks = Counter(rank for names in merged.deviations.values() for rank in names)
    for rank, count in ranks.most_common():
        first_row = min(row for row, names in merged.deviations.items() if rank in names)
        op = int(merged.trace.tensors["op"].iat[first_row])
        name = merged.trace.ops["name"].iat[op]
        notes.append(
            f"{count:,} values that ranks should share differ on {rank}, the first in {name}: "
            "its values were compared"
        )
    return Merged(merged.trace, merged.ranks, merged.layout, tuple(notes))


def has_equal_layout(target: Trace, reference: Trace) -> bool:
    """Return whether the same rank of two runs holds parameters of the same sizes.

    Also true if no parameter is named, because then nothing shows another layout.
    """
    sizes = [_count_parameter_sizes(trace) for trace in (target, reference)]
    return not sizes[0] or not sizes[1] or sizes[0] == sizes[1]


def _count_parameter_sizes(trace: Trace) -> Counter[int]:
    table = trace.tensors
    named = table[(table["parameter"] != "").to_numpy()].drop_duplicates("parameter")
    return Counter(named["size"].tolist())


def list_changed_layouts(rows: Sequence[LayoutRow]) -> list[LayoutRow]:
    """Return the kinds of values that are not the same on all ranks."""
    return [row for row in rows if row.relation != "replicated"]
