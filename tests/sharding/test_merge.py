"""Ranks as one run: what a reduction reads and writes there."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dumpdiff.graph import build_flow
from dumpdiff.model.trace import BACKWARD, Trace
from dumpdiff.sharding import RunOfRanks, merge_runs
from tests.parallel_runs import read_ranks

Dumps = Callable[[str], Path]


def merge(dump: Dumps, target: str, reference: str) -> Trace:
    """Return the merged trace of the target."""
    runs = []
    for name in (target, reference):
        traces = read_ranks(dump(name))
        runs.append(RunOfRanks(tuple(traces), tuple(map(build_flow, traces.values()))))
    return merge_runs(*runs, {})[0].trace


def list_reduced_norms(trace: Trace) -> pd.DataFrame:
    """Return the smallest and largest norm that each reduction of the two passes reads or writes.

    Those of gradients of parameters come after the backward pass.
    """
    ops = trace.ops
    last_op = np.flatnonzero(ops["phase"] == BACKWARD)[-1]
    is_named_reduction = ops["kind"].str.lower().str.contains("all_?reduce").to_numpy()
    is_reduction = is_named_reduction & (np.arange(len(ops)) < last_op)
    tensors = trace.tensors[is_reduction[trace.tensors["op"].to_numpy()]]
    tensors = tensors[~tensors["constant"] & tensors["norm"].notna() & (tensors["size"] > 1)]
    norms = tensors.groupby("op")["norm"].agg(["min", "max", "size"])
    return norms[norms["size"] > 1]


@pytest.mark.parametrize("target", ["parallel_pt_tp2", "parallel_pt_tp2_dp2", "parallel_ms_tp2"])
def test_a_reduction_reads_what_it_writes(dump: Dumps, target: str) -> None:
    """That is the sum of the partial sums, also where ranks have slices of the batch."""
    norms = list_reduced_norms(merge(dump, target, "parallel_pt_tp1"))
    assert len(norms) >= 12
    np.testing.assert_allclose(norms["min"], norms["max"], rtol=1e-5)
