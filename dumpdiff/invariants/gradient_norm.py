"""The gradient norm counts each gradient once, on whichever rank."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..communication.collectives import ALL_REDUCE
from ..model.dtypes import is_floating
from ..model.trace import OPTIMIZER, Trace
from .step import Step
from .violations import InvariantCheck, Violation

#: Parts of the names of operators that square, or take a norm of, what they read.
_NORM_WORDS = ("norm", "square", "pow", "mul", "dot")
_PRODUCT_WORDS = ("mul", "dot")  #: squares only if both inputs are one value
#: Ops between a square and the sum over ranks, in a graph: sums of each parameter and of all.
_MAX_DEPTH = 400


def check_gradient_norm(step: Step) -> InvariantCheck:
    """Check that no two ranks count one gradient in a sum of squares that is reduced over them."""
    n_checked = 0
    violations: list[Violation] = []
    table = step.exchanges.table
    reductions = table[(table["kind"] == ALL_REDUCE) & table["reduction"].isin(["", "sum"])]
    for _, rows in reductions.groupby("exchange", sort=True):
        counted: defaultdict[int, dict[int, int]] = defaultdict(dict)  # key -> rank -> tensor
        for rank, op, inputs in zip(rows["rank"], rows["op"], rows["inputs"], strict=True):
            if not _is_scalar(step.traces[rank], inputs):
                continue
            for tensor in _list_squared_tensors(step, rank, op, inputs[0]):
                if step.informative[rank][tensor]:
                    counted[int(step.keys[rank][tensor])].setdefault(rank, tensor)
        n_checked += len(counted)
        twice = [owners for key, owners in counted.items() if key >= 0 and len(owners) > 1]
        if not twice:
            continue
        owners = twice[0]
        ranks = tuple(sorted(owners))
        first = ranks[0]
        row = rows[rows["rank"] == first].iloc[0]
        name = _name_gradient(step, first, owners[first])
        op = step.traces[first].ops.iloc[int(row["op"])]
        listed_ranks = ", ".join(map(str, ranks))
        violations.append(
            Violation(
                "gradient norm", step.number, ranks, op["name"], "input.0", name,
                f"ranks {listed_ranks} count one gradient, {step.describe(first, owners[first])}",
                "their sums of squares are added",
                str(step.exchanges.groups[int(row["group"])]), len(twice) - 1,
            )
        )  # fmt: skip
    return InvariantCheck("gradient norm", n_checked, tuple(violations))


def _is_scalar(trace: Trace, inputs: tuple[int, ...]) -> bool:
    if len(inputs) != 1:
        return False
    row = trace.tensors.iloc[inputs[0]]
    return bool(row["size"] == 1 and is_floating(row["dtype"]))


def _list_squared_tensors(step: Step, rank: int, op: int, scalar: int) -> list[int]:
    """Return the tensors whose squares make up a scalar.

    In a graph they are what it is computed from; else what the optimizer squares before it.
    """
    trace, keys = step.traces[rank], step.keys[rank]
    tensors = trace.tensors
    kinds = trace.ops["kind"].tolist()
    rows_of: defaultdict[int, list[int]] = defaultdict(list)
    is_input = (tensors["slot_kind"] == "input").to_numpy() & ~tensors["constant"].to_numpy()
    owners = tensors["op"].to_numpy()
    for row in np.flatnonzero(is_input & (owners < op)).tolist():
        rows_of[int(owners[row])].append(row)
    sources = tensors["source_tensor"].to_numpy()
    if sources[scalar] >= 0:
        candidates = _follow_sums(trace, rows_of, int(sources[scalar]))
    else:
        is_optimizer = (trace.ops["phase"] == OPTIMIZER).to_numpy()
        candidates = [other for other in rows_of if is_optimizer[other]]
    squared = []
    for other in candidates:
        name = kinds[other].lower()
        rows = rows_of[other]
        if not rows or not any(word in name for word in _NORM_WORDS):
            continue
        is_product = any(word in name for word in _PRODUCT_WORDS)
        is_square = len(rows) > 1 and len({int(keys[row]) for row in rows}) == 1
        if not is_product or is_square:
            squared += rows[:1] if is_product else rows
    return squared


def _follow_sums(trace: Trace, rows_of: dict[int, list[int]], output: int) -> list[int]:
    """Return the ops that a scalar is computed from, as far as the first squares."""
    tensors = trace.tensors
    owners, sources = tensors["op"].to_numpy(), tensors["source_tensor"].to_numpy()
    kinds = trace.ops["kind"].tolist()
    todo, visited = [int(owners[output])], set[int]()
    for op in todo:
        if op in visited or len(visited) > _MAX_DEPTH:
            continue
        visited.add(op)
        name = kinds[op].lower()
        if "square" in name or "norm" in name:
            continue
        rows = rows_of.get(op, [])
        todo += [int(owners[sources[row]]) for row in rows if sources[row] >= 0]
    return sorted(visited)


def _name_gradient(step: Step, rank: int, tensor: int) -> str:
    """Return the parameter whose gradient a tensor is, or one of its shape; '' if unknown."""
    keys = step.keys[rank]
    names = step.traces[rank].tensors["gradient_of"].to_numpy()
    for row in np.flatnonzero((names != "") & (keys == keys[tensor])).tolist():
        return str(names[row])
    return ""
