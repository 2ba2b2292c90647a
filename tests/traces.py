"""Real traces, edited: one effect at a time, so that the right answer is known."""

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
from dumpdiff.graph import Flow, build_flow
from dumpdiff.graph.statistics import STATISTICS
from dumpdiff.model.arrays import AnyArray
from dumpdiff.model.defaults import MIN_COVERAGE
from dumpdiff.model.result import Result
from dumpdiff.model.trace import Trace
from dumpdiff.rulebook import Rules, load_rules

_NUMBERS = list(STATISTICS)


@cache
def load_shipped_rules() -> Rules:
    """The rules as shipped."""
    return load_rules()


def align_traces(target: Trace, reference: Trace) -> Alignment:
    return align(build_flow(target), build_flow(reference), load_shipped_rules())


def compare_traces(target: Trace, reference: Trace) -> Comparison:
    return compare_pairs(align_traces(target, reference), load_shipped_rules())


def locate_divergence(target: Trace, reference: Trace, min_coverage: float = MIN_COVERAGE) -> Result:
    return locate(compare_traces(target, reference), load_shipped_rules(), min_coverage)


def classify_traces(target: Trace, reference: Trace) -> tuple[JointGraph, States]:
    graph = build_joint_graph(compare_traces(target, reference))
    return graph, classify(graph, load_shipped_rules())


def start_matching(target: Trace, reference: Trace, tolerance: float = 1e-5) -> Matching:
    """Two sides of which nothing is paired yet."""
    flows = build_flow(target), build_flow(reference)
    kinds = [[load_shipped_rules().resolve_kind(kind) for kind in flow.trace.ops["kind"]] for flow in flows]
    return Matching(*flows, *kinds, tolerance)


def find_value(flow: Flow, name: str, slot: str) -> int:
    """The value class of the tensor in a slot of the op of that name."""
    return int(flow.tensor_class[find_tensor(flow.trace, name, slot)])


def find_pair(comparison: Comparison, name: str, slot: str = "output.0") -> pd.Series[Any]:
    """The row of the pair that holds the target's value in that slot."""
    pairs = comparison.pairs
    return pairs[pairs["target"] == find_value(comparison.alignment.target, name, slot)].iloc[0]


def find_op(trace: Trace, name: str) -> int:
    """Id of the op of that name."""
    return trace.ops["name"].tolist().index(name)


def find_tensor(trace: Trace, name: str, slot: str) -> int:
    """Id of the tensor in a slot of the op of that name."""
    rows = trace.tensors.index[
        (trace.tensors["op"] == find_op(trace, name)) & (trace.tensors["slot"] == slot)
    ]
    return int(rows[0])


def edit_tensors(trace: Trace, rows: int | Iterable[int], **columns: Any) -> Trace:
    """The trace with other values in some columns of some tensors."""
    tensors = trace.tensors.copy()
    for name, value in columns.items():
        column = tensors[name].to_numpy(copy=True)
        for row in [rows] if isinstance(rows, int) else rows:
            column[row] = value
        tensors[name] = column
    return replace(trace, tensors=tensors)


def find_tensors_like(trace: Trace, name: str, slot: str) -> list[int]:
    """Ids of all tensors that hold the value in a slot of the op of that name."""
    flow = build_flow(trace)
    return np.flatnonzero(flow.tensor_class == find_value(flow, name, slot)).tolist()


def replace_arrays(trace: Trace, name: str, slot: str, change: Callable[[AnyArray], AnyArray]) -> Trace:
    """The trace with another array in all files that hold one value; the recorded statistics stay."""
    files = set(trace.tensors["file"].iloc[find_tensors_like(trace, name, slot)])
    load = trace.load
    assert load is not None
    return replace(trace, load=lambda file: change(load(file)) if file in files else load(file))


def add_noise(trace: Trace, size: float, seed: int = 0) -> Trace:
    """Every computed value as another machine would have it: off by relative errors of this standard deviation."""
    flow = build_flow(trace)
    made = np.append(flow.producers >= 0, False)
    errors = np.random.default_rng(seed).normal(0, size, (len(made), len(_NUMBERS))) * made[:, None]
    tensors = trace.tensors.copy()
    tensors[_NUMBERS] = tensors[_NUMBERS].to_numpy() * (1 + errors[flow.tensor_class])
    return replace(trace, tensors=tensors)


def scale_result(trace: Trace, name: str, factor: float, *, and_after: bool = False) -> Trace:
    """What an op makes is larger by a factor wherever it is read; ``and_after``: all that is computed from it too."""
    return scale_tensors(trace, find_dependents(trace, name) if and_after else find_result(trace, name), factor)


def scale_tensors(trace: Trace, rows: Iterable[int], factor: float) -> Trace:
    """The trace with some tensors larger by a factor."""
    tensors = trace.tensors.copy()
    tensors.loc[list(rows), _NUMBERS] *= factor
    return replace(trace, tensors=tensors)


def find_result(trace: Trace, name: str) -> list[int]:
    """Ids of the tensors that hold what an op makes, wherever they are."""
    flow = build_flow(trace)
    return np.flatnonzero(np.isin(flow.tensor_class, flow.writes[find_op(trace, name)])).tolist()


def find_dependents(trace: Trace, name: str) -> list[int]:
    """Ids of the tensors that hold what an op makes, or what is computed from that."""
    flow = build_flow(trace)
    values = set(flow.writes[find_op(trace, name)])
    for reads, writes in zip(flow.reads, flow.writes, strict=True):
        if values.intersection(reads):
            values.update(writes)
    return np.flatnonzero(np.isin(flow.tensor_class, sorted(values))).tolist()


def remove_ops(trace: Trace, *names: str) -> Trace:
    """The trace of a run in which some ops were not called, or not recorded."""
    gone = {find_op(trace, name) for name in names}
    return select_ops(trace, [row for row in range(len(trace.ops)) if row not in gone])


def skip_op(trace: Trace, name: str) -> Trace:
    """The trace of a run in which an op was not called: what read its result read its first input instead."""
    numbers = ["max", "min", "mean", "norm", "nonfinite"]
    tensors = trace.tensors.copy()
    given = tensors.loc[find_tensor(trace, name, "input.0"), numbers]
    tensors.loc[find_result(trace, name), numbers] = given.to_numpy(dtype=float)
    return remove_ops(replace(trace, tensors=tensors), name)


def remove_tensors(trace: Trace, rows: Iterable[int]) -> Trace:
    """The trace with holes where some tensors were recorded."""
    return select_ops(trace, range(len(trace.ops)), gone=frozenset(rows))


def find_outputs(trace: Trace, *names: str) -> list[int]:
    """Ids of what ops of these names and the module calls around them put out."""
    ids = [find_op(trace, name) for name in names]
    flow = build_flow(trace)
    made = {value for row in ids for value in flow.writes[row]}
    role = trace.tensors["role"].to_numpy() == "output"
    return np.flatnonzero(np.isin(flow.tensor_class, sorted(made)) & role).tolist()


def select_ops(trace: Trace, ops: Sequence[int], gone: frozenset[int] = frozenset()) -> Trace:
    """The trace with only these ops, in this order, and without some tensors; all references follow."""
    new_op = np.full(len(trace.ops) + 1, -1)
    new_op[list(ops)] = np.arange(len(ops))
    kept_ops = trace.ops.iloc[list(ops)].reset_index(drop=True)
    for name in ("parent", "forward"):
        kept_ops[name] = new_op[kept_ops[name].to_numpy()]
    place = new_op[trace.tensors["op"].to_numpy()]
    rows = np.flatnonzero((place >= 0) & ~np.isin(np.arange(len(place)), sorted(gone)))
    rows = rows[np.argsort(place[rows], kind="stable")]
    new_row = np.full(len(place) + 1, -1)
    new_row[rows] = np.arange(len(rows))
    kept_tensors = trace.tensors.iloc[rows].reset_index(drop=True)
    kept_tensors["op"] = place[rows]
    kept_tensors["producer"] = new_row[kept_tensors["producer"].to_numpy()]
    return replace(trace, ops=kept_ops, tensors=kept_tensors)


def find_wrong_pairs(alignment: Alignment) -> list[tuple[str, str]]:
    """Pairs of values that have no slot in common: wrong if both sides are copies of one trace."""
    slots = [
        [{f"{names[o]} {slot}" for o, slot in members} for members in _members(flow)]
        for flow, names in (
            (f, f.trace.ops["name"].tolist()) for f in (alignment.target, alignment.reference)
        )
    ]
    pairs = zip(
        alignment.classes["target"].tolist(), alignment.classes["reference"].tolist(), strict=True
    )
    return [(min(slots[0][t]), min(slots[1][r])) for t, r in pairs if not slots[0][t] & slots[1][r]]


def _members(flow: Flow) -> list[list[tuple[int, str]]]:
    members: list[list[tuple[int, str]]] = [[] for _ in range(len(flow.classes))]
    known = np.flatnonzero(flow.tensor_class >= 0)
    for row, number in zip(known.tolist(), flow.tensor_class[known].tolist(), strict=True):
        members[number].append(
            (int(flow.tensors["op"].iat[row]), str(flow.tensors["slot"].iat[row]))
        )
    return members
