"""What the answer about a run needs of one task: layers, collectives and parameters by state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ..communication import list_collectives
from ..communication.collectives import TRANSFERS
from ..communication.groups import classify_groups
from ..comparison import Comparison
from ..graph import Flow
from ..model.result import Result
from ..model.run_result import CollectiveState, LayerState, ParameterState, TaskResult
from ..model.trace import Trace
from ..model.verdict import DIFFERING_STATES, VALUE_STATES

#: Findings of a task that are kept; later ones nearly always follow from the first.
_MAX_FINDINGS = 50
_SEVERITY = {state: number for number, state in enumerate(VALUE_STATES)}


def summarize_task(
    result: Result, comparison: Comparison, step: int | None, rank: int | None, headline: str
) -> TaskResult:
    """Return the part of a task's result that does not grow with the number of its tensors.

    ``headline`` is the answer of the task in one line.
    """
    target = comparison.alignment.target
    class_states = _collect_class_states(result.pairs, target)
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
        collectives=tuple(_summarize_collectives(target, class_states)),
        parameters=tuple(_summarize_parameters(comparison, class_states)),
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
        if name.isdigit():
            return ".".join(names[: number + 1])
    return names[0]


def _summarize_collectives(target: Flow, class_states: Mapping[int, str]) -> list[CollectiveState]:
    """Return the collectives of the target's rank with the states of what they read and write."""
    names, phases = (target.trace.ops[column].tolist() for column in ("name", "phase"))
    table = list_collectives(target.trace)
    group_kinds = _classify_groups(table, target.trace)
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
            input_state=_find_tensor_state(record["inputs"], target, class_states),
            output_state=_find_tensor_state(record["outputs"], target, class_states),
        )
        for record, group_kind in zip(table.to_dict("records"), group_kinds, strict=True)
    ]


def _classify_groups(table: pd.DataFrame, trace: Trace) -> list[str]:
    """Return the kind of the group of each collective, as far as one rank can tell."""
    rank = trace.source.rank or 0
    group_numbers: dict[tuple[Any, ...], int] = {}
    groups: list[tuple[tuple[int, ...], str, bool]] = []
    numbers = []
    columns = (table[name].tolist() for name in ("group", "members", "kind", "peer"))
    for name, members, kind, peer in zip(*columns, strict=True):
        is_transfer = kind in TRANSFERS
        known_members = tuple(members or ())
        if is_transfer:
            known_members = tuple(sorted((rank, peer)))
        group = (known_members, name, is_transfer)
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


def _summarize_parameters(
    comparison: Comparison, class_states: Mapping[int, str]
) -> list[ParameterState]:
    """Return every parameter of the target with the states of its values of this step."""
    alignment = comparison.alignment
    target = alignment.target
    new_weights = {weight.old_target: weight.target for weight in alignment.new_weights}
    gradients: Mapping[int, int] = {}
    if alignment.gradients is not None:
        gradients = alignment.gradients[0].by_value
    rows = np.flatnonzero((target.tensors["parameter"] != "").to_numpy()).tolist()
    names = target.tensors["parameter"].tolist()
    value_of_name: dict[str, int] = {}
    for row in rows:
        value = int(target.tensor_class[row])
        if value >= 0:
            value_of_name.setdefault(names[row], value)
    states = []
    for name, value in value_of_name.items():
        gradient, update = (
            class_states.get(values.get(value, -1), "") for values in (gradients, new_weights)
        )
        states.append(ParameterState(name, class_states.get(value, ""), gradient, update))
    return states
