"""The stages of a pipeline, one after the other."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ..communication import find_stages, join_collectives
from ..communication.collectives import ALL_REDUCE, RECV, TRANSFERS, classify_kind
from ..graph import Flow, build_flow
from ..model.arrays import Ints
from ..model.trace import BACKWARD, FORWARD, OPTIMIZER, Trace
from .concatenation import concatenate_traces

#: A module path up to the first number, and the number: ``decoder.layers.`` and ``3``.
_LAYER = re.compile(r"^(?P<front>(?:[^.\d][^.]*\.)*)(?P<number>\d+)(?=\.|$)")
#: Columns of tensors that hold names of parameters.
NAMED_COLUMNS = ("parameter", "gradient_of", "update_of")


@dataclass(frozen=True)
class StageRanks:
    """The ranks of one stage of the pipeline."""

    ranks: tuple[int, ...]
    #: calls, by name, that add up values of several stages
    crossing_names: frozenset[str] = frozenset()


def group_stages(traces: Mapping[int, Trace]) -> list[StageRanks]:
    """Return the stages in the order of the forward pass; all ranks if there is no pipeline.

    Pipelines number their ranks in the order of the stages.
    """
    if len(traces) == 1:
        return [StageRanks(tuple(traces))]
    exchanges = join_collectives(traces)
    stages = sorted(tuple(sorted(stage)) for stage in find_stages(exchanges))
    if len(stages) == 1:
        return [StageRanks(stages[0])]
    stage_of = {rank: number for number, stage in enumerate(stages) for rank in stage}
    crossing_groups = {
        number
        for number, group in enumerate(exchanges.groups)
        if not group.is_transfer and len({stage_of.get(rank) for rank in group.members}) > 1
    }
    table = exchanges.table
    crossing_rows = table[table["group"].isin(crossing_groups) & (table["kind"] == ALL_REDUCE)]
    names: defaultdict[int, set[str]] = defaultdict(set)
    for rank, op in zip(crossing_rows["rank"], crossing_rows["op"], strict=True):
        names[stage_of[rank]].add(str(traces[rank].ops["name"].iat[op]))
    return [StageRanks(stage, frozenset(names[number])) for number, stage in enumerate(stages)]


def leave_out_summands(trace: Trace, crossing_ops: Sequence[int]) -> tuple[Trace, int]:
    """Return a trace without the values that are added up over stages, and their number.

    These are what the collectives read, and the running sums of single numbers that lead to it.
    """
    flow = build_flow(trace)
    kinds = trace.ops["kind"].tolist()
    left_out: set[int] = set()
    open_values = [value for op in crossing_ops for value in flow.reads[op]]
    while open_values:
        value = open_values.pop()
        if value in left_out:
            continue
        left_out.add(value)
        producer = int(flow.producers[value])
        if producer >= 0 and flow.sizes[value] == 1 and "add" in kinds[producer].lower():
            open_values += [
                operand for operand in flow.reads[producer] if _is_sum(flow, operand, kinds)
            ]
    is_left_out = np.isin(flow.tensor_class, list(left_out))
    is_left_out &= ~trace.tensors["constant"].to_numpy()
    tensors = trace.tensors.assign(trusted=trace.tensors["trusted"].to_numpy() & ~is_left_out)
    return replace(trace, tensors=tensors), len(left_out)


def _is_sum(flow: Flow, value: int, kinds: Sequence[str]) -> bool:
    """Return whether a value is a running sum: what another addition wrote, or its beginning."""
    producer = int(flow.producers[value])
    return producer < 0 or "add" in kinds[producer].lower()


def join_stages(traces: Sequence[Trace], names: Sequence[str]) -> Trace:
    """Return the stages of a pipeline as one trace.

    The forward pass runs through the stages in order, the backward pass in reverse order, the
    optimizer follows. Where stages number their layers from 0 each, the layers are numbered on.
    """
    renamed_traces, sort_keys = [], []
    for stage, (trace, (scopes, columns)) in enumerate(
        zip(traces, _number_layers(traces), strict=True)
    ):
        ops = trace.ops.copy()
        ops["scope"] = pd.Series(scopes, dtype=object)
        ops["name"] = pd.Series([f"{name} ({names[stage]})" for name in ops["name"]], dtype=object)
        ops["phase"] = _extend_backward_pass(trace.ops)
        tensors = trace.tensors.copy()
        for column, values in columns.items():
            tensors[column] = pd.Series(values, dtype=object)
        renamed_traces.append(replace(trace, ops=ops, tensors=tensors))
        sort_keys.append(_list_sort_keys(ops, stage, len(traces)))
    trace = concatenate_traces(renamed_traces, sort_keys)
    details = {**trace.source.details, "stages": list(names)}
    source = replace(trace.source, rank=None, process=None, details=details)
    return replace(trace, source=source)


def _extend_backward_pass(ops: pd.DataFrame) -> pd.Series[Any]:
    """Return the phases; what a stage computes before it sends its last gradient is no update."""
    phases = ops["phase"].copy()
    is_transfer = ops["kind"].map(classify_kind).isin(TRANSFERS).to_numpy()
    is_backward = (phases == BACKWARD).to_numpy()
    if is_transfer.any() and is_backward.any():
        is_before = np.arange(len(ops)) < np.flatnonzero(is_transfer)[-1]
        is_after = np.arange(len(ops)) > np.flatnonzero(is_backward)[0]
        phases[is_before & is_after & (phases == OPTIMIZER).to_numpy()] = BACKWARD
    return phases


def _list_sort_keys(ops: pd.DataFrame, stage: int, n_stages: int) -> Ints:
    """Return (3, ops): pass, stage in the order of the pass, and place in the stage.

    What is received belongs to the pass of the next op.
    """
    passes = {FORWARD: 0, BACKWARD: 1, OPTIMIZER: 2}
    keys = np.zeros((3, len(ops)), dtype=int)
    keys[0] = np.maximum.accumulate(ops["phase"].map(passes).fillna(0).astype(int).to_numpy())
    is_receive = (ops["kind"].map(classify_kind) == RECV).tolist()
    for op in reversed(range(len(ops) - 1)):
        if is_receive[op]:
            keys[0, op] = keys[0, op + 1]
    keys[1] = np.where(keys[0] == 1, n_stages - stage, stage)
    keys[2] = np.arange(len(ops))
    return keys


def _number_layers(
    traces: Sequence[Trace],
) -> list[tuple[list[str], dict[str, list[str]]]]:
    """Return, for each stage, its scopes and its named columns with layers numbered on."""
    used_numbers: defaultdict[str, set[int]] = defaultdict(set)
    renamed = []
    for trace in traces:
        columns = {column: trace.tensors[column].tolist() for column in NAMED_COLUMNS}
        scopes = trace.ops["scope"].tolist()
        numbers: defaultdict[str, set[int]] = defaultdict(set)
        for name in {*scopes, *(name for column in columns.values() for name in column)}:
            match = _LAYER.match(name)
            if match:
                numbers[match["front"]].add(int(match["number"]))
        offsets = {}
        for front, stage_numbers in numbers.items():
            overlaps = bool(stage_numbers & used_numbers[front])
            offsets[front] = max(used_numbers[front]) + 1 if overlaps else 0
            used_numbers[front] |= {number + offsets[front] for number in stage_numbers}
        scopes = [_shift_layer(scope, offsets) for scope in scopes]
        for column, values in columns.items():
            columns[column] = [_shift_layer(name, offsets) for name in values]
        renamed.append((scopes, columns))
    return renamed


def _shift_layer(name: str, offsets: Mapping[str, int]) -> str:
    match = _LAYER.match(name) if name else None
    if match is None or not offsets.get(match["front"]):
        return name
    number = int(match["number"]) + offsets[match["front"]]
    return f"{match['front']}{number}{name[match.end() :]}"
