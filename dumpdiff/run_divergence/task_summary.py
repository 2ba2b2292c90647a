"""What the answer about a run needs of one task: layers, collectives and parameters by state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ..communication import list_collectives, list_named_ranks
from ..communication.collectives import TRANSFERS
from ..communication.groups import UNKNOWN, Group, classify_groups
from ..comparison import Comparison, index_weights
from ..graph import Flow
from ..model.arrays import Floats
from ..model.recorded_shapes import load_readable_tensor
from ..model.result import Result
from ..model.run_result import CollectiveState, LayerState, ParameterState, TaskResult
from ..model.trace import Trace
from ..model.verdict import (
    AGREEING,
    DIFFERING_STATES,
    INCOMPARABLE,
    PROPAGATED,
    RECONVERGED,
    UNPAIRED,
    VALUE_STATES,
)
from ..operators import compute_relative_distance

#: Findings of a task that are kept; later ones nearly always follow from the first.
_MAX_FINDINGS = 50
#: Relative difference of the statistics of a value that alignment did not compare, from which on it
#: differs: more than two correct runs in bfloat16 (8 bits) have after many layers.
_CLEAR_DIFFERENCE = 0.05
#: and below which it agrees: the noise of float32 after many layers. In between nothing is said.
_CLEAR_AGREEMENT = 1e-4
#: States of a value that do not say whether it is that of the reference: what a collective gives is
#: compared directly then.
_UNDECIDED_STATES = ("", RECONVERGED, INCOMPARABLE, UNPAIRED)
_MAX_UNSEEN_OPS = 24  #: that a collective keeps of either end: as many as a region does
_SEVERITY = {state: number for number, state in enumerate(VALUE_STATES)}


def summarize_task(
    result: Result, comparison: Comparison, step: int | None, rank: int | None, headline: str
) -> TaskResult:
    """Return the part of a task's result that does not grow with the number of its tensors.

    ``headline`` is the answer of the task in one line.
    """
    alignment = comparison.alignment
    target = alignment.target
    class_states = _collect_class_states(result.pairs, target)
    tables = (list_collectives(target.trace), list_collectives(alignment.reference.trace))
    findings = result.findings[:_MAX_FINDINGS]
    return TaskResult(
        step=step,
        rank=rank,
        reference_rank=result.reference.source.number,
        verdict=result.verdict,
        headline=headline,
        findings=tuple(replace(finding, explainer=None) for finding in findings),
        positions=tuple(_locate_findings(target, [f.target_ops for f in findings])),
        n_findings=len(result.findings),
        coverage=result.coverage,
        states=result.states,
        target=result.target,
        reference=result.reference,
        notes=result.notes,
        weaknesses=result.weaknesses,
        layers=tuple(_summarize_layers(result.pairs)),
        collectives=tuple(_summarize_collectives(comparison, tables, class_states)),
        parameters=tuple(_summarize_parameters(comparison, result.pairs, class_states)),
        named_ranks=tuple(sorted(frozenset().union(*map(list_named_ranks, tables)))),
    )


def _collect_class_states(pairs: pd.DataFrame, target: Flow) -> dict[int, str]:
    """Return the worst state of each value class of the target that was compared."""
    states: dict[int, str] = {}
    classes = target.tensor_class[pairs["target"].to_numpy(dtype=np.int64)].tolist()
    for value, state in zip(classes, pairs["state"].tolist(), strict=True):
        if value not in states or _SEVERITY[state] < _SEVERITY[states[value]]:
            states[value] = state
    return states


def _find_worst_state(states: Iterable[str]) -> str:
    """Return the worst of some states, '' if there is none."""
    return min((state for state in states if state), key=_SEVERITY.__getitem__, default="")


def _locate_findings(target: Flow, op_names: Sequence[Sequence[str]]) -> list[int]:
    """Return the number of the last op of each finding, -1 if it has none."""
    names = {name for ops in op_names for name in ops}
    numbers: dict[str, int] = {}
    if names:
        column = target.trace.ops["name"]
        rows = np.flatnonzero(column.isin(names).to_numpy()).tolist()
        numbers = {column.iat[row]: row for row in rows}
    return [max((numbers.get(name, -1) for name in ops), default=-1) for ops in op_names]


def _summarize_layers(pairs: pd.DataFrame) -> list[LayerState]:
    """Return the states of each layer of each phase, in order of execution."""
    if not len(pairs):
        return []
    error, tolerance = (pairs[name].to_numpy(dtype=float) for name in ("error", "tolerance"))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(error == 0, 0.0, error / tolerance)
    ratios[pairs["nonfinite_mismatch"].to_numpy(dtype=float) > 0] = np.inf
    scopes, distinct_scopes = pd.factorize(pairs["scope"])
    layers = np.array([find_layer(scope) for scope in distinct_scopes], dtype=object)
    table = pd.DataFrame(
        {
            "phase": pairs["phase"].to_numpy(),
            "layer": layers[scopes],
            "severity": pairs["state"].map(_SEVERITY).to_numpy(),
            "ratio": ratios,
            "differs": pairs["state"].isin(DIFFERING_STATES).to_numpy(),
        }
    )
    groups = table.groupby(["phase", "layer"], sort=False).agg(
        severity=("severity", "min"),
        ratio=("ratio", "max"),
        values=("differs", "size"),
        differing=("differs", "sum"),
    )
    words = list(VALUE_STATES)
    rows = []
    for (phase, layer), severity, ratio, values, differing in zip(
        groups.index.tolist(),
        groups["severity"].tolist(),
        groups["ratio"].tolist(),
        groups["values"].tolist(),
        groups["differing"].tolist(),
        strict=True,
    ):
        largest_ratio = float(ratio) if ratio is not None else math.nan
        rows.append(LayerState(phase, layer, words[severity], largest_ratio, values, differing))
    return rows


def find_layer(scope: str) -> str:
    """Return the layer of a canonical scope, or its first module if it is outside of layers.

    >>> find_layer("layers.1.attention.q"), find_layer("decoder.layers.0.mlp"), find_layer("norm")
    ('layers.1', 'decoder.layers.0', 'norm')
    """
    names = scope.split(".")
    for number, name in enumerate(names):
        if name.isdecimal():
            return ".".join(names[: number + 1])
    return names[0]


def _summarize_collectives(
    comparison: Comparison,
    tables: tuple[pd.DataFrame, pd.DataFrame],
    class_states: Mapping[int, str],
) -> list[CollectiveState]:
    """Return the collectives of the target's rank with the states of what they read and write.

    ``tables`` are the collectives of target and reference. A value that was not compared, such as
    one that is only sent, is compared with what the same collective of the reference reads or
    writes.
    """
    alignment = comparison.alignment
    target, reference = alignment.target, alignment.reference
    names, phases = (target.trace.ops[column].tolist() for column in ("name", "phase"))
    table, reference_table = tables
    group_kinds = _classify_groups(table, target.trace)
    partners = _index_collectives(reference_table)
    records = table.to_dict("records")
    states: list[tuple[str, str]] = []
    input_ops: list[tuple[str, ...]] = []
    for record in records:
        partner = partners.get(_get_collective_key(record))
        sides = []
        for side in ("inputs", "outputs"):
            state = _find_tensor_state(record[side], target, class_states)
            if state in _UNDECIDED_STATES and partner is not None:
                state = _compare_directly(target, record[side], reference, partner[side])
            sides.append(state)
        states.append((sides[0], sides[1]))
        has_wrong_input = sides[0] == PROPAGATED
        ops = _list_unseen_ops(record["inputs"], target, class_states) if has_wrong_input else []
        input_ops.append(tuple(names[op] for op in ops))
    return [
        CollectiveState(
            op=names[record["op"]],
            kind=record["kind"],
            phase=phases[record["op"]],
            position=record["op"],
            group=record["group"],
            group_kind=group_kind,
            members=tuple(record["members"] or ()),
            order=record["order"],
            peer=record["peer"],
            input_state=input_state,
            output_state=output_state,
            input_ops=ops,
        )
        for record, group_kind, (input_state, output_state), ops in zip(
            records, group_kinds, states, input_ops, strict=True
        )
    ]


def _index_collectives(table: pd.DataFrame) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    """Return the collectives of a rank by what identifies them in another run of that rank."""
    records: list[dict[Any, Any]] = table.to_dict("records")
    return {_get_collective_key(record): record for record in records}


def _get_collective_key(record: Mapping[Any, Any]) -> tuple[Any, ...]:
    group = tuple(record["members"] or ()) or record["group"]
    if record["kind"] in TRANSFERS:
        group = record["peer"]
    return (record["kind"], group, record["order"])


def _compare_directly(
    target: Flow, tensors: Sequence[int], reference: Flow, partners: Sequence[int]
) -> str:
    """Return 'agreeing' or 'propagated' if the values of both sides decide it, else ''."""
    if not tensors or len(tensors) != len(partners):
        return ""
    distances = [
        _measure_distance(target.trace, tensor, reference.trace, partner)
        for tensor, partner in zip(tensors, partners, strict=True)
    ]
    if all(distance is not None for distance in distances):
        return _judge(np.array(distances, dtype=float))
    columns = ["max", "min", "norm"]
    numbers_t, numbers_r = (
        flow.tensors.iloc[list(rows)][columns].to_numpy(dtype=float)
        for flow, rows in ((target, tensors), (reference, partners))
    )
    scale = np.nanmax(np.abs(np.stack([numbers_t, numbers_r])), axis=(0, 2), initial=0.0)
    difference = np.nanmax(np.abs(numbers_t - numbers_r), axis=1, initial=0.0)
    if not np.isfinite(numbers_t).all() or not np.isfinite(numbers_r).all():
        return ""
    ratios = np.divide(difference, scale, out=np.zeros_like(difference), where=scale > 0)
    return _judge(ratios)


def _judge(errors: Floats) -> str:
    if (errors > _CLEAR_DIFFERENCE).any():
        return PROPAGATED
    return AGREEING if (errors < _CLEAR_AGREEMENT).all() else ""


def _measure_distance(target: Trace, tensor: int, reference: Trace, partner: int) -> float | None:
    """Return the relative L2 of two whole tensors, None if they cannot be compared."""
    array_t, array_r = (
        load_readable_tensor(trace, row) for trace, row in ((target, tensor), (reference, partner))
    )
    if array_t is None or array_r is None or array_t.size != array_r.size or not array_t.size:
        return None
    distance = compute_relative_distance(array_t.ravel(), array_r.ravel())
    return distance if np.isfinite(distance) else None


def _classify_groups(table: pd.DataFrame, trace: Trace) -> list[str]:
    """Return the kind of the group of each collective, as far as one rank can tell."""
    rank = trace.source.rank or 0
    group_numbers: dict[Group, int] = {}
    groups: list[Group] = []
    numbers = []
    columns = (table[name].tolist() for name in ("group", "members", "kind", "peer"))
    for name, members, kind, peer in zip(*columns, strict=True):
        is_transfer = kind in TRANSFERS
        known_members = tuple(members or ())
        if is_transfer:
            known_members = tuple(sorted((rank, peer)))
        group = Group(known_members, UNKNOWN, name, is_transfer)
        if group not in group_numbers:
            group_numbers[group] = len(groups)
            groups.append(group)
        numbers.append(group_numbers[group])
    rank_table = table.assign(rank=rank, group=numbers)
    classified_groups = classify_groups(groups, rank_table, {rank: trace})
    return [classified_groups[number].kind for number in numbers]


def _find_tensor_state(
    tensors: Sequence[int], target: Flow, class_states: Mapping[int, str]
) -> str:
    """Return the worst state of some tensors of the target, '' if none was compared."""
    values = target.tensor_class[np.asarray(tensors, dtype=np.int64)].tolist()
    return _find_worst_state(class_states.get(value, "") for value in values)


def _list_unseen_ops(
    tensors: Sequence[int], target: Flow, class_states: Mapping[int, str]
) -> list[int]:
    """Return the ops, back to values that agree, that made some tensors; the first and last ones.

    Empty if a value on the way was found to differ: its finding says where.
    """
    pending = target.tensor_class[np.asarray(tensors, dtype=np.int64)].tolist()
    visited = {-1}
    ops: set[int] = set()
    while pending:
        value = pending.pop()
        state = class_states.get(value, "")
        if state in DIFFERING_STATES:
            return []
        if value in visited or state == AGREEING or target.producers[value] < 0:
            continue
        visited.add(value)
        op = int(target.producers[value])
        ops.add(op)
        pending += target.reads[op]
    numbers = sorted(ops)
    if len(numbers) <= 2 * _MAX_UNSEEN_OPS:
        return numbers
    return [*numbers[:_MAX_UNSEEN_OPS], *numbers[-_MAX_UNSEEN_OPS:]]


def _summarize_parameters(
    comparison: Comparison, pairs: pd.DataFrame, class_states: Mapping[int, str]
) -> list[ParameterState]:
    """Return every parameter of the target with the states of its values of this step."""
    alignment = comparison.alignment
    classes = alignment.target.tensor_class[pairs["target"].to_numpy(dtype=np.int64)]
    class_errors = pairs["error"].groupby(classes).max().to_dict()
    target = alignment.target
    new_weights = {weight.old_target: weight.target for weight in alignment.new_weights}
    gradients: Mapping[int, int] = {}
    if alignment.gradients is not None:
        gradients = alignment.gradients[0].by_value
    states = []
    for name, value in index_weights(target).items():
        gradient, update = (
            class_states.get(values.get(value, -1), "") for values in (gradients, new_weights)
        )
        new_value = new_weights.get(value, -1)
        states.append(
            ParameterState(
                name,
                class_states.get(value, ""),
                gradient,
                update,
                class_errors.get(value, math.nan),
                class_errors.get(new_value, math.nan),
            )
        )
    return states
