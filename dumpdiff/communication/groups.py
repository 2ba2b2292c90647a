"""The groups of ranks that exchange values, and what each kind of them is for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ..model.trace import BACKWARD, FORWARD, Trace
from .collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, RECV, REDUCE_SCATTER, TRANSFERS

TP, DP, PP, EP, CP, SP, WORLD, UNKNOWN = "tp", "dp", "pp", "ep", "cp", "sp", "world", ""

#: Words in the name of a group -> kind. Megatron-LM and MindFormers write them.
_NAME_WORDS = {
    "tp": TP, "mp": TP, "tensor": TP, "model": TP,
    "dp": DP, "data": DP, "ddp": DP, "fsdp": DP, "zero": DP,
    "pp": PP, "pipeline": PP, "pipe": PP, "stage": PP, "embd": PP, "embedding": PP,
    "ep": EP, "expert": EP, "moe": EP,
    "cp": CP, "context": CP,
    "sp": SP, "sequence": SP, "ulysses": SP,
    "world": WORLD,
}  # fmt: skip
#: Elements. Smaller values are counts, losses and norms: they do not tell what a group is for.
_MIN_SIZE = 16


@dataclass(frozen=True)
class Group:
    """Ranks that exchange values with each other."""

    members: tuple[int, ...]  #: in the group's own order
    #: tp, dp, pp, ep, cp, sp, world (all ranks, for no single purpose), or '' if unknown
    kind: str
    name: str = ""  #: as recorded
    is_transfer: bool = False  #: two ranks that send and receive
    #: the dump has the members; else they follow from names or values, and may be incomplete
    is_recorded: bool = True

    def __str__(self) -> str:
        listed_members = ",".join(map(str, self.members))
        return f"{self.kind or 'group'} {listed_members}"


def classify_groups(
    groups: Sequence[Group],
    table: pd.DataFrame,
    traces: Mapping[int, Trace],
) -> tuple[Group, ...]:
    """Return the groups with their kinds.

    A name decides. Else what the group exchanges: activations that are summed or gathered (tp),
    gradients only (dp), tokens or heads all to all (ep), values sent from rank to rank (pp; cp if
    each rank both sends and gets in the forward pass).
    """
    classified: list[Group] = []
    for number, group in enumerate(groups):
        kind = _classify_name(group.name)
        if kind in (UNKNOWN, WORLD):
            rows = table[table["group"] == number]
            kind = _classify_use(rows, traces) or kind
        if kind == UNKNOWN and len(group.members) == len(traces) and not group.is_transfer:
            kind = WORLD
        classified.append(replace(group, kind=kind))
    pipelines = [set(group.members) for group in classified if group.is_transfer]
    for number, group in enumerate(classified):
        is_inside = any(set(group.members) <= pipeline for pipeline in pipelines)
        if group.kind == DP and is_inside:  # the gradient of weights that two stages share
            classified[number] = replace(group, kind=PP)
    return tuple(classified)


def _classify_name(name: str) -> str:
    if name == "default":
        return WORLD
    for word in re.findall(r"[a-z]+", name.lower()):
        if word in _NAME_WORDS:
            return _NAME_WORDS[word]
    return UNKNOWN


def _classify_use(rows: pd.DataFrame, traces: Mapping[int, Trace]) -> str:
    """Return the kind of a group from what it exchanges, '' if that does not tell."""
    if rows.empty:
        return UNKNOWN
    if rows["kind"].isin(TRANSFERS).all():
        return CP if _is_ring(rows, traces) else PP
    first_rank = rows["rank"].iloc[0]
    trace = traces[first_rank]
    rank_rows = rows[rows["rank"] == first_rank]
    sizes = trace.tensors["size"].to_numpy()
    first_backward = _find_first_backward(trace)
    forward_kinds: set[str] = set()
    late_kinds: set[str] = set()
    for op, kind, inputs, outputs in zip(
        *(rank_rows[name] for name in ("op", "kind", "inputs", "outputs")), strict=True
    ):
        tensors = [*inputs, *outputs]
        if not tensors or sizes[tensors].max() < _MIN_SIZE:
            continue
        is_forward = _runs_forward(trace, op, inputs, first_backward)
        (forward_kinds if is_forward else late_kinds).add(kind)
    if ALL_TO_ALL in forward_kinds:
        return EP
    if forward_kinds & {ALL_REDUCE, REDUCE_SCATTER}:
        return TP
    if ALL_GATHER in forward_kinds:
        return TP if REDUCE_SCATTER not in late_kinds else CP
    return DP if late_kinds else UNKNOWN


def _find_first_backward(trace: Trace) -> int:
    rows = np.flatnonzero((trace.ops["phase"] == BACKWARD).to_numpy())
    return int(rows[0]) if len(rows) else len(trace.ops)


def _runs_forward(trace: Trace, op: int, inputs: Sequence[int], first_backward: int) -> bool:
    """Whether a communication runs in the forward pass: what it reads was computed there."""
    sources = trace.tensors["source_tensor"].to_numpy()[list(inputs)]
    producers = trace.tensors["op"].to_numpy()[sources[sources >= 0]]
    if len(producers):
        phase = trace.ops["phase"].iat[producers[0]]
        if phase in (FORWARD, BACKWARD):
            return bool(phase == FORWARD)
    return op < first_backward


def _is_ring(rows: pd.DataFrame, traces: Mapping[int, Trace]) -> bool:
    """Whether each of two ranks both sends and gets what it computes before its backward pass.

    So do two ranks of an interleaved pipeline, but there one of them begins with what it gets.
    """
    directions = set()
    first_receives: dict[int, int] = {}
    for rank, op, kind in zip(rows["rank"], rows["op"], rows["kind"], strict=True):
        if op < _find_first_backward(traces[rank]):
            directions.add((rank, kind))
            if kind == RECV:
                first_receives[rank] = min(op, first_receives.get(rank, op))
    ranks = set(rows["rank"])
    if len(ranks) < 2 or len(directions) < 2 * len(ranks):
        return False
    return all(_reads_parameter(traces[rank], op) for rank, op in first_receives.items())


def _reads_parameter(trace: Trace, end: int) -> bool:
    """Whether an op before ``end`` reads a parameter, or computes at all if none is named."""
    is_named = (trace.tensors["parameter"] != "").to_numpy()
    if is_named.any():
        return bool((trace.tensors["op"].to_numpy()[is_named] < end).any())
    return bool((trace.ops["phase"] == FORWARD).to_numpy()[:end].any())
