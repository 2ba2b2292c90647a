"""Several traces as one: tables one below the other, with ids and files that stay apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from ..model.arrays import AnyArray, Ints
from ..model.trace import Problem, Trace


def concatenate_traces(traces: Sequence[Trace], sort_keys: Sequence[Ints]) -> Trace:
    """Return one trace with the ops in the order of ``sort_keys``.

    Each of ``sort_keys`` is (keys, ops of the trace), the most important key first. The source is
    that of the first trace.
    """
    ops_frames, tensor_frames = [], []
    n_ops = n_tensors = 0
    for number, trace in enumerate(traces):
        ops, tensors = trace.ops.copy(), trace.tensors.copy()
        files = [f"{number}:{file}" if file else "" for file in tensors["file"]]
        tensors["file"] = pd.Series(files, dtype=object)
        for table, column, offset in (
            (ops, "parent", n_ops),
            (ops, "forward", n_ops),
            (tensors, "op", n_ops),
            (tensors, "source_tensor", n_tensors),
        ):
            ids = table[column].to_numpy(copy=True)
            ids[ids >= 0] += offset
            table[column] = ids
        ops_frames.append(ops)
        tensor_frames.append(tensors)
        n_ops += len(ops)
        n_tensors += len(tensors)
    order = np.lexsort(np.concatenate(list(sort_keys), axis=1)[::-1])
    all_ops, all_tensors = _sort_ops(
        pd.concat(ops_frames, ignore_index=True), pd.concat(tensor_frames, ignore_index=True), order
    )
    loads = [trace.load for trace in traces]

    def load(name: str) -> AnyArray:
        number, _, file = name.partition(":")
        trace_load = loads[int(number)]
        assert trace_load is not None
        return trace_load(file)

    problems: tuple[Problem, ...] = ()
    for trace in traces:
        problems += trace.problems
    return replace(traces[0], ops=all_ops, tensors=all_tensors, problems=problems, load=load)


def _sort_ops(
    ops: pd.DataFrame, tensors: pd.DataFrame, order: Ints
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both tables with the ops in the given order."""
    new_ops = np.full(len(ops) + 1, -1)
    new_ops[order] = np.arange(len(ops))
    ops = ops.iloc[order].reset_index(drop=True)
    for column in ("parent", "forward"):
        ops[column] = new_ops[ops[column].to_numpy()]
    tensors["op"] = new_ops[tensors["op"].to_numpy()]
    row_order = np.argsort(tensors["op"].to_numpy(), kind="stable")
    new_rows = np.full(len(tensors) + 1, -1)
    new_rows[row_order] = np.arange(len(tensors))
    tensors = tensors.iloc[row_order].reset_index(drop=True)
    tensors["source_tensor"] = new_rows[tensors["source_tensor"].to_numpy()]
    return ops, tensors
