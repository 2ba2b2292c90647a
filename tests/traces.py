"""Real traces with one change at a time, so that the right answer is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from dumpdiff.alignment import Alignment, align
from dumpdiff.alignment.matches import Matching
from dumpdiff.comparison import Comparison, compare_pairs
from dumpdiff.divergence import locate
from dumpdiff.divergence.joint_graph import JointGraph, build_joint_graph
from dumpdiff.divergence.states import States, classify
from dumpdiff.graph import Flow, build_flow, mark_shape_reads
from dumpdiff.graph.statistics import STATISTICS
from dumpdiff.model.arrays import AnyArray
from dumpdiff.model.defaults import MIN_COVERAGE
from dumpdiff.model.result import Result
from dumpdiff.model.trace import Source, Trace, build_op_table, build_tensor_table
from dumpdiff.rulebook import Rules, load_rules

_NUMBERS = list(STATISTICS)


@cache
def load_shipped_rules() -> Rules:
    """Return the rules as shipped."""
    return load_rules()


def align_traces(target: Trace, reference: Trace) -> Alignment:
    return align(build_flow(target), build_flow(reference), load_shipped_rules())


def compare_traces(target: Trace, reference: Trace) -> Comparison:
    return compare_pairs(align_traces(target, reference), load_shipped_rules())


def locate_divergence(
    target: Trace, reference: Trace, min_coverage: float = MIN_COVERAGE
) -> Result:
    return locate(compare_traces(target, reference), load_shipped_rules(), min_coverage)


def classify_traces(target: Trace, reference: Trace) -> tuple[JointGraph, States]:
    graph = build_joint_graph(compare_traces(target, reference))
    return graph, classify(graph, load_shipped_rules())


def start_matching(target: Trace, reference: Trace, tolerance: float = 1e-5) -> Matching:
    """Return a matching in which nothing is paired yet."""
    flows = build_flow(target), build_flow(reference)
    kinds = [
        [load_shipped_rules().resolve_kind(kind) for kind in flow.trace.ops["kind"]]
        for flow in flows
    ]
    return Matching(*flows, *kinds, tolerance)


def find_value(flow: Flow, name: str, slot: str) -> int:
    """Return the value class of the tensor in a slot of the op of that name."""
    return int(flow.tensor_class[find_tensor(flow.trace, name, slot)])


def find_pair(comparison: Comparison, name: str, slot: str = "output.0") -> pd.Series[Any]:
    """Return the row of the pair that holds the target's value in that slot."""
    pairs = comparison.pairs
    return pairs[pairs["target"] == find_value(comparison.alignment.target, name, slot)].iloc[0]


def find_op(trace: Trace, name: str) -> int:
    """Return the id of the op of that name."""
    return trace.ops["name"].tolist().index(name)


def find_tensor(trace: Trace, name: str, slot: str) -> int:
    """Return the id of the tensor in a slot of the op of that name."""
    rows = trace.tensors.index[
        (trace.tensors["op"] == find_op(trace, name)) & (trace.tensors["slot"] == slot)
    ]
    return int(rows[0])


def edit_tensors(trace: Trace, rows: int | Iterable[int], **columns: Any) -> Trace:
    """Return the trace with other values in some columns of some tensors."""
    tensors = trace.tensors.copy()
    for name, value in columns.items():
        column = tensors[name].to_numpy(copy=True)
        for row in [rows] if isinstance(rows, int) else rows:
            column[row] = value
        tensors[name] = column
    return replace(trace, tensors=tensors)


def find_tensors_like(trace: Trace, name: str, slot: str) -> list[int]:
    """Return the ids of all tensors that hold the value in a slot of the op of that name."""
    flow = build_flow(trace)
    return np.flatnonzero(flow.tensor_class == find_value(flow, name, slot)).tolist()


def replace_arrays(
    trace: Trace, name: str, slot: str, change: Callable[[AnyArray], AnyArray]
) -> Trace:
    """Return the trace with changed arrays in all files that hold one value.

    The recorded statistics stay.
    """
    files = set(trace.tensors["file"].iloc[find_tensors_like(trace, name, slot)])
    load = trace.load
    assert load is not None
    return replace(trace, load=lambda file: change(load(file)) if file in files else load(file))


def scale_arrays(trace: Trace, rows: Iterable[int], factor: float) -> Trace:
    """Return the trace with the floating arrays of some tensors scaled by a factor."""
    files = set(trace.tensors["file"].iloc[list(rows)])
    load = trace.load
    assert load is not None

    def load_scaled(file: str) -> AnyArray:
        array = load(file)
        is_scaled = file in files and np.issubdtype(array.dtype, np.floating)
        return array * factor if is_scaled else array

    return replace(trace, load=load_scaled)


def add_noise(trace: Trace, size: float, seed: int = 0) -> Trace:
    """Return the trace with relative errors of this standard deviation in all computed values."""
    flow = build_flow(trace)
    outputs = np.append(flow.producers >= 0, False)
    errors = (
        np.random.default_rng(seed).normal(0, size, (len(outputs), len(_NUMBERS)))
        * outputs[:, None]
    )
    tensors = trace.tensors.copy()
    tensors[_NUMBERS] = tensors[_NUMBERS].to_numpy() * (1 + errors[flow.tensor_class])
    return replace(trace, tensors=tensors)


def scale_result(trace: Trace, name: str, factor: float, *, and_after: bool = False) -> Trace:
    """Scale the outputs of an op, and with ``and_after`` everything that is computed from them."""
    return scale_tensors(
        trace, find_dependents(trace, name) if and_after else find_result(trace, name), factor
    )


def scale_tensors(trace: Trace, rows: Iterable[int], factor: float) -> Trace:
    """Return the trace with some tensors scaled by a factor."""
    tensors = trace.tensors.copy()
    tensors.loc[list(rows), _NUMBERS] *= factor
    return replace(trace, tensors=tensors)


def find_result(trace: Trace, name: str) -> list[int]:
    """Return the ids of all tensors that hold the outputs of an op."""
    flow = build_flow(trace)
    return np.flatnonzero(np.isin(flow.tensor_class, flow.writes[find_op(trace, name)])).tolist()


def find_dependents(trace: Trace, name: str) -> list[int]:
    """Return the ids of all tensors that hold the outputs of an op, or depend on them."""
    flow = mark_shape_reads(build_flow(trace), load_shipped_rules())
    values = set(flow.writes[find_op(trace, name)])
    for operands, writes in zip(flow.operands, flow.writes, strict=True):
        if values.intersection(operands):
            values.update(writes)
    return np.flatnonzero(np.isin(flow.tensor_class, sorted(values))).tolist()


def rename_kind(trace: Trace, name: str, kind: str) -> Trace:
    """Return the trace with another operator kind for one op."""
    ops = trace.ops.copy()
    ops.loc[find_op(trace, name), "kind"] = kind
    return replace(trace, ops=ops)


def remove_ops(trace: Trace, *names: str) -> Trace:
    """Return the trace without some ops, as if they were not called or not recorded."""
    removed_rows = {find_op(trace, name) for name in names}
    return select_ops(trace, [row for row in range(len(trace.ops)) if row not in removed_rows])


def skip_op(trace: Trace, name: str) -> Trace:
    """Return the trace without an op; its consumers read its first input instead."""
    numbers = ["max", "min", "mean", "norm", "nonfinite"]
    tensors = trace.tensors.copy()
    input_statistics = tensors.loc[find_tensor(trace, name, "input.0"), numbers]
    tensors.loc[find_result(trace, name), numbers] = input_statistics.to_numpy(dtype=float)
    return remove_ops(replace(trace, tensors=tensors), name)


def remove_tensors(trace: Trace, rows: Iterable[int]) -> Trace:
    """Return the trace without some tensors."""
    return select_ops(trace, range(len(trace.ops)), removed_rows=frozenset(rows))


def find_outputs(trace: Trace, *names: str) -> list[int]:
    """Return the ids of the outputs of some ops and of the module calls around them."""
    ids = [find_op(trace, name) for name in names]
    flow = build_flow(trace)
    outputs = {value for row in ids for value in flow.writes[row]}
    is_output = trace.tensors["slot_kind"].to_numpy() == "output"
    return np.flatnonzero(np.isin(flow.tensor_class, sorted(outputs)) & is_output).tolist()


def select_ops(
    trace: Trace, ops: Sequence[int], removed_rows: frozenset[int] = frozenset()
) -> Trace:
    """Return the trace with only these ops, in this order, and without some tensors.

    References between ops and tensors are renumbered.
    """
    new_op = np.full(len(trace.ops) + 1, -1)
    new_op[list(ops)] = np.arange(len(ops))
    kept_ops = trace.ops.iloc[list(ops)].reset_index(drop=True)
    for name in ("parent", "forward"):
        kept_ops[name] = new_op[kept_ops[name].to_numpy()]
    place = new_op[trace.tensors["op"].to_numpy()]
    rows = np.flatnonzero((place >= 0) & ~np.isin(np.arange(len(place)), sorted(removed_rows)))
    rows = rows[np.argsort(place[rows], kind="stable")]
    new_row = np.full(len(place) + 1, -1)
    new_row[rows] = np.arange(len(rows))
    kept_tensors = trace.tensors.iloc[rows].reset_index(drop=True)
    kept_tensors["op"] = place[rows]
    kept_tensors["source_tensor"] = new_row[kept_tensors["source_tensor"].to_numpy()]
    return replace(trace, ops=kept_ops, tensors=kept_tensors)


def find_wrong_pairs(alignment: Alignment) -> list[tuple[str, str]]:
    """Return the pairs of values without a common slot.

    They are wrong if both sides are copies of one trace.
    """
    slots_t, slots_r = _list_slots(alignment.target), _list_slots(alignment.reference)
    pairs = alignment.classes[["target", "reference"]].itertuples(index=False)
    return [(min(slots_t[t]), min(slots_r[r])) for t, r in pairs if not slots_t[t] & slots_r[r]]


def _list_slots(flow: Flow) -> list[set[str]]:
    """Return per value class the slots that hold it, with the names of their ops."""
    names = flow.trace.ops["name"].tolist()
    slots: list[set[str]] = [set() for _ in range(len(flow.classes))]
    for row in np.flatnonzero(flow.tensor_class >= 0).tolist():
        name = names[int(flow.tensors["op"].iat[row])]
        slots[flow.tensor_class[row]].add(f"{name} {flow.tensors['slot'].iat[row]}")
    return slots


def record_calls(
    *calls: tuple[str, Sequence[AnyArray], AnyArray | tuple[AnyArray, ...]],
) -> Trace:
    """A trace of calls (kind, inputs, output or outputs), with the statistics of arrays."""
    rows = [
        {"op": op, "slot": f"{slot_kind}.{i}", "slot_kind": slot_kind, "size": array.size,
         "shape": array.shape, "dtype": "int64" if array.dtype.kind == "i" else "float32",
         "max": array.max(), "min": array.min(), "mean": array.mean(),
         "norm": np.linalg.norm(array), "nonfinite": 0}
        for op, (_, inputs, output) in enumerate(calls)
        for slot_kind, arrays in (
            ("input", inputs), ("output", output if isinstance(output, tuple) else (output,))
        )
        for i, array in enumerate(arrays)
    ]  # fmt: skip
    ops = build_op_table(
        {"name": [f"call.{op}" for op in range(len(calls))], "kind": [kind for kind, *_ in calls]}
    )
    tensors = build_tensor_table({name: [row[name] for row in rows] for name in rows[0]})
    return Trace(Source("/dump", "msprobe", "", "pytorch"), ops, tensors)
