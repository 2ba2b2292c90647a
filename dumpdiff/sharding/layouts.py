"""Runs of different layouts, each as one trace, so that they can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..graph import Flow
from ..model.trace import Trace
from ..rulebook import RelationRule
from .batch_slices import BatchSlices, find_batch_slices
from .call_alignment import align_siblings
from .combined_tensors import Shards
from .layout_rows import LayoutRow
from .merge import MergedRun, merge_ranks
from .micro_batches import count_micro_batches, split_micro_batches
from .model_chunks import split_model_chunks
from .other_run import OtherRun
from .relation_rules import refuse_unknown_names
from .separate_modules import gather_separate_modules
from .sibling_tensors import RankOps, Siblings
from .stages import group_stages, join_stages, leave_out_summands

#: Share of the elements of all parameters that have a size which the other run has, too. Half of
#: the sizes of a run on two tensor-parallel ranks may occur in a run on one device (measured: 0.5).
_MIN_COMMON_SHARE = 0.9
_TOKEN_DTYPES = ("int64", "int32")


@dataclass(frozen=True)
class RunOfRanks:
    """The traces of all ranks of one step of a run."""

    ranks: tuple[int, ...]
    flows: tuple[Flow, ...]


@dataclass(frozen=True)
class _Stage:
    """A stage of the pipeline: its ranks side by side, or the micro-batches of them."""

    siblings: Siblings
    #: ops of the rows of ``siblings`` that add up values of several stages
    crossing_ops: tuple[int, ...]


def _find_no_shards(file: str) -> Shards | None:
    """Return None: the run has one rank, which has all files."""
    del file
    return None


def _find_no_ops(name: str) -> RankOps:
    """Return nothing: the run has one rank, which makes all calls."""
    del name
    return RankOps({}, {})


@dataclass(frozen=True)
class Merged:
    """A run of one or several ranks as one trace."""

    trace: Trace
    ranks: tuple[str, ...] = ()  #: those that were merged; () if there is one
    layout: tuple[LayoutRow, ...] = ()
    notes: tuple[str, ...] = ()
    find_shards: Callable[[str], Shards | None] = field(default=_find_no_shards, repr=False)
    #: of an op of the trace: what the ranks call there
    find_rank_ops: Callable[[str], RankOps] = field(default=_find_no_ops, repr=False)


def merge_runs(
    target: RunOfRanks,
    reference: RunOfRanks,
    rules: Mapping[str, Mapping[str, RelationRule]],
) -> tuple[Merged, Merged]:
    """Return both runs as one trace each.

    How the values of ranks make up one value is found in the values of the other run, or said by
    ``rules``: side -> name of the kind of values -> rule. Raises RuleError if one fits no value.
    """
    chunks = [_split_chunks(run) for run in (target, reference)]
    first_flows = [run_chunks[0].flows[0] for run_chunks in chunks]
    n_batches = (
        count_micro_batches(first_flows[0], first_flows[1]),
        count_micro_batches(first_flows[1], first_flows[0]),
    )
    stages = (
        _list_stages(target, chunks[0], n_batches[0], reference),
        _list_stages(reference, chunks[1], n_batches[1], target),
    )
    slices = _find_all_batch_slices(*stages)
    merged_runs = []
    for side, run_stages in enumerate(stages):
        side_name = ("target", "reference")[side]
        side_rules = rules.get(side_name, {})
        other_stages = [stage.siblings for stage in stages[1 - side]]
        other = OtherRun(other_stages, slices[1 - side].factor)
        merged_stages = [
            _merge_stage(stage, other, slices[side], side_rules) for stage in run_stages
        ]
        names = {row.name for merged in merged_stages for row in merged.layout}
        refuse_unknown_names(side_rules, side_name, names)
        merged_runs.append(_join_stages(run_stages, merged_stages))
    return merged_runs[0], merged_runs[1]


def _find_all_batch_slices(
    target: Sequence[_Stage], reference: Sequence[_Stage]
) -> tuple[BatchSlices, BatchSlices]:
    """Return how both runs cut the batch."""
    siblings_t = [stage.siblings for stage in target]
    siblings_r = [stage.siblings for stage in reference]
    runs = OtherRun(siblings_t), OtherRun(siblings_r)
    return find_batch_slices(siblings_t, runs[1]), find_batch_slices(siblings_r, runs[0])


def has_other_batches(target: Flow, reference: Flow) -> bool:
    """Return whether one of two runs makes each call several times, once for each micro-batch."""
    n_batches = (count_micro_batches(target, reference), count_micro_batches(reference, target))
    return max(n_batches) > 1


def _split_chunks(run: RunOfRanks) -> list[RunOfRanks]:
    """Return the first model chunk of all ranks, the second, and so on; mostly there is one."""
    chunks_of_ranks = [split_model_chunks(flow) for flow in run.flows]
    if len(set(map(len, chunks_of_ranks))) > 1:
        return [run]
    return [replace(run, flows=flows) for flows in zip(*chunks_of_ranks, strict=True)]


def _list_stages(
    run: RunOfRanks, chunks: Sequence[RunOfRanks], n_batches: int, other: RunOfRanks
) -> list[_Stage]:
    """Return the ranks of each stage of the pipeline, side by side.

    The pipeline runs through the first model chunk of all ranks, then through the second.
    """
    rank_stages = group_stages(
        dict(zip(run.ranks, (flow.trace for flow in run.flows), strict=True))
    )
    stages = []
    for number, chunk in enumerate(chunks):
        flow_of = dict(zip(chunk.ranks, chunk.flows, strict=True))
        prefix = f"chunk {number} of " if len(chunks) > 1 else ""
        for stage in rank_stages:
            named_flows = {f"{prefix}rank {rank}": flow_of[rank] for rank in stage.ranks}
            stages.append(_build_stage(named_flows, stage.crossing_names, n_batches, other))
    return stages


def _build_stage(
    named_flows: Mapping[str, Flow],
    crossing_names: frozenset[str],
    n_batches: int,
    other: RunOfRanks,
) -> _Stage:
    """Return a stage of ranks, by name, or of their micro-batches."""
    names: list[str] = []
    flows: list[Flow] = []
    for name, flow in named_flows.items():
        batches = None if n_batches < 2 else split_micro_batches(flow, n_batches)
        if batches is None:
            names.append(name)
            flows.append(flow)
        else:
            names += [f"micro-batch {number} of {name}" for number in range(n_batches)]
            flows += batches
    is_split = len(flows) > len(named_flows)
    if len(flows) > 1 and not is_split:
        flows = gather_separate_modules(flows, names, other.flows)
    siblings = align_siblings(flows, names, n_batches if is_split else 1)
    return _Stage(siblings, _find_crossing_ops(siblings, crossing_names))


def _find_crossing_ops(siblings: Siblings, names: frozenset[str]) -> tuple[int, ...]:
    """Return the ops of the base rank that have one of the names."""
    op_names = siblings.flows[siblings.base].trace.ops["name"].tolist()
    return tuple(op for op, name in enumerate(op_names) if name in names)


def _merge_stage(
    stage: _Stage, other: OtherRun, slices: BatchSlices, rules: Mapping[str, RelationRule]
) -> Merged:
    siblings = stage.siblings
    if siblings.n_ranks == 1:
        flow = siblings.flows[0]
        merged = Merged(replace(flow.trace, tensors=flow.tensors))
    else:
        merged_run = merge_ranks(siblings, other, slices, rules)

        def find_rank_ops(name: str) -> RankOps:
            holder = merged_run.holders.get(name, "")
            return replace(siblings.find_rank_ops(name), holder=holder)

        merged = replace(_describe_merged(merged_run), find_rank_ops=find_rank_ops)
    if not stage.crossing_ops:
        return merged
    trace, n_parts = leave_out_summands(merged.trace, stage.crossing_ops)
    note = (
        f"{n_parts:,} values of single stages (tied weights, gradient norm) are compared after "
        "they are added up over the stages"
    )
    return replace(merged, trace=trace, notes=(*merged.notes, note))


def _join_stages(stages: list[_Stage], merged_stages: list[Merged]) -> Merged:
    if len(stages) == 1:
        return merged_stages[0]
    names = [stage.siblings.names[0] for stage in stages]
    trace = join_stages([merged.trace for merged in merged_stages], names)
    ranks: tuple[str, ...] = ()
    layout: tuple[LayoutRow, ...] = ()
    notes: list[str] = []
    for stage, merged in zip(stages, merged_stages, strict=True):
        ranks += stage.siblings.names
        layout += merged.layout
        notes += [note for note in merged.notes if note not in notes]

    def find_shards(file: str) -> Shards | None:
        stage, _, stage_file = file.partition(":")
        return merged_stages[int(stage)].find_shards(stage_file)

    def find_rank_ops(name: str) -> RankOps:
        stage_op, _, stage_name = name.removesuffix(")").rpartition(" (")
        return merged_stages[names.index(stage_name)].find_rank_ops(stage_op)

    return Merged(trace, ranks, layout, tuple(notes), find_shards, find_rank_ops)


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
    return Merged(merged.trace, merged.ranks, merged.layout, tuple(notes), merged.find_shards)


def has_equal_layout(target: Trace, reference: Trace) -> bool:
    """Return whether the same rank of two runs holds the same sizes of parameters and tokens.

    Also true if no parameter is named, because then nothing shows another layout. How often a size
    occurs does not count: one side may name the states of the optimizer, too.
    """
    sizes = [_count_parameter_sizes(trace) for trace in (target, reference)]
    if all(sizes):
        common_sizes = sizes[0].keys() & sizes[1].keys()
        for counts in sizes:
            n_elements = sum(size * count for size, count in counts.items())
            n_common = sum(size * counts[size] for size in common_sizes)
            if n_common < _MIN_COMMON_SHARE * n_elements:
                return False
    shapes = [_list_token_shapes(trace) for trace in (target, reference)]
    return not all(shapes) or bool(shapes[0] & shapes[1])


def _count_parameter_sizes(trace: Trace) -> Counter[int]:
    table = trace.tensors
    named = table[(table["parameter"] != "").to_numpy()].drop_duplicates("parameter")
    return Counter(named["size"].tolist())


def _list_token_shapes(trace: Trace) -> set[tuple[int, ...]]:
    """Return the shapes of the token ids that embeddings look up, with their axes in order."""
    table = trace.tensors
    kinds = trace.ops["kind"].str.lower().str
    is_embedding = (kinds.contains("embedding") | kinds.contains("gather")).to_numpy()
    is_token = is_embedding[table["op"].to_numpy()] & (table["gradient_of"] == "").to_numpy()
    is_token &= table["dtype"].isin(_TOKEN_DTYPES).to_numpy() & (table["size"] > 1).to_numpy()
    is_token &= table["slot"].str.startswith("input").to_numpy()
    shapes = table["shape"][is_token].tolist()
    return {tuple(sorted(shape)) for shape in shapes if shape is not None and len(shape) == 2}


def list_changed_layouts(rows: Sequence[LayoutRow]) -> list[LayoutRow]:
    """Return the kinds of values that are not the same on all ranks."""
    return [row for row in rows if row.relation != "replicated"]
