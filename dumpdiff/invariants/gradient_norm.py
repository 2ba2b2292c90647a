"""The gradient norm counts each gradient once, on whichever rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from ..communication.collectives import ALL_REDUCE
from ..model.dtypes import is_floating
from ..model.trace import OPTIMIZER, Trace
from .step import Step
from .violations import InvariantCheck, Violation

#: Parts of the names of operators that square, or take a norm of, what they read.
_NORM_WORDS = ("norm", "square", "pow")
_PRODUCT_WORDS = ("mul", "dot")  #: squares only if both inputs are one value
_MAX_OPS = 100_000  #: ops that make up one sum of squares


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
    """Return the tensors whose squares make up a scalar that is reduced by ``op``."""
    trace, keys = step.traces[rank], step.keys[rank]
    owners = trace.tensors["op"].to_numpy()
    kinds = trace.ops["kind"].tolist()
    rows_of = _list_inputs(trace)
    producers = _find_producers(step, rank)
    squared: list[int] = []
    todo, visited = [producers(scalar, op)], set[int]()
    for producer in todo:
        if producer < 0 or producer in visited or len(visited) > _MAX_OPS:
            continue
        visited.add(producer)
        rows = rows_of.get(producer, [])
        if _is_square(kinds[producer], [int(keys[row]) for row in rows]):
            squared += rows[:1] if len(rows) == 2 else rows
            continue
        todo += [producers(row, int(owners[row])) for row in rows]
    return squared


def _list_inputs(trace: Trace) -> dict[int, list[int]]:
    """Return op -> the tensors that it reads, without constants."""
    tensors = trace.tensors
    is_input = (tensors["slot_kind"] == "input").to_numpy() & ~tensors["constant"].to_numpy()
    owners = tensors["op"].to_numpy()
    rows_of: defaultdict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(is_input).tolist():
        rows_of[int(owners[row])].append(row)
    return dict(rows_of)


def _find_producers(step: Step, rank: int) -> Callable[[int, int], int]:
    """Return a function that gives the op that computed a tensor that another op reads.

    By the edges of a graph, else by equal values: the last op of the optimizer before the reader
    that gave the value. -1 if there is none.
    """
    trace, keys = step.traces[rank], step.keys[rank]
    tensors = trace.tensors
    owners, sources = tensors["op"].to_numpy(), tensors["source_tensor"].to_numpy()
    if (sources >= 0).any():
        return lambda row, reader: int(owners[sources[row]]) if sources[row] >= 0 else -1
    is_optimizer = (trace.ops["phase"] == OPTIMIZER).to_numpy()[owners]
    is_output = (tensors["slot_kind"] == "output").to_numpy() & is_optimizer & (keys >= 0)
    ops_of: defaultdict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(is_output).tolist():
        ops_of[int(keys[row])].append(int(owners[row]))

    def find(row: int, reader: int) -> int:
        earlier_ops = [op for op in ops_of.get(int(keys[row]), []) if op < reader]
        return max(earlier_ops, default=-1)

    return find


def _is_square(kind: str, input_keys: list[int]) -> bool:
    """Whether an op squares what it reads, or takes its norm."""
    name = kind.lower()
    if any(word in name for word in _PRODUCT_WORDS):
        return len(input_keys) > 1 and len(set(input_keys)) == 1
    return any(word in name for word in _NORM_WORDS)


def _name_gradient(step: Step, rank: int, tensor: int) -> str:
    """Return the parameter whose gradient a tensor is, or one of its shape; '' if unknown."""
    keys = step.keys[rank]
    names = step.traces[rank].tensors["gradient_of"].to_numpy()
    for row in np.flatnonzero((names != "") & (keys == keys[tensor])).tolist():
        return str(names[row])
    return ""
