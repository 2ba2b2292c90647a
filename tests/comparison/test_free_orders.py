"""The results of ``topk(sorted=False)`` agree in any order of a row."""

from dataclasses import replace

import numpy as np
import pytest
from traces import compare_traces, find_pair, locate_divergence

from dumpdiff.model.trace import Source, Trace, build_op_table, build_tensor_table

N_CHOSEN = 3
INPUTS = np.random.default_rng(16).normal(size=(20, 8)).astype(np.float32)
TOPK, GATHER, SUM = "Torch.topk.0.forward", "Torch.gather.0.forward", "Tensor.sum.0.forward"


def record_router(*, is_sorted, is_reversed=False, first_rank=0) -> Trace:
    """Record a router: scores, the largest of them, the scores gathered by index, and their sum.

    ``first_rank`` 1 leaves out the largest score of each row.
    """
    scores = 2 * INPUTS
    chosen = np.argsort(-scores, axis=1)[:, first_rank : first_rank + N_CHOSEN]
    if is_reversed:
        chosen = chosen[:, ::-1]
    values = np.take_along_axis(scores, chosen, axis=1)
    calls = [
        ("Tensor.__mul__.0.forward", {"0": INPUTS, "1": 2.0}, [scores]),
        (TOPK, {"0": scores, "sorted": is_sorted}, [values, chosen]),
        (GATHER, {"0": scores + 0.0, "index": chosen}, [values * np.float32(1.5)]),
        (SUM, {"0": values * np.float32(1.5)}, [(values * np.float32(1.5)).sum(axis=1)]),
        ("Tensor.exp.0.forward", {"0": scores}, [np.exp(scores)]),
    ]
    arrays, rows = {}, []
    for op, (_, inputs, outputs) in enumerate(calls):
        slots = [(f"input.{name}", "input", value) for name, value in inputs.items()]
        slots += [(f"output.{i}", "output", value) for i, value in enumerate(outputs)]
        for slot, slot_kind, value in slots:
            array = np.asarray(value)
            is_scalar = array.ndim == 0
            dtype = type(value).__name__ if is_scalar else str(array.dtype)
            file = "" if is_scalar else f"{op}.{slot}.npy"
            arrays[file] = array
            rows.append({
                "op": op, "slot": slot, "slot_kind": slot_kind, "size": array.size,
                "shape": array.shape, "dtype": dtype,
                "constant": is_scalar, "file": file, "max": float(array.max()),
                "min": float(array.min()), "mean": float(array.mean()),
                "norm": float(np.linalg.norm(array.astype(float))), "nonfinite": 0,
            })  # fmt: skip
    names = [name for name, _, _ in calls]
    kinds = [".".join(name.split(".")[:2]) for name in names]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    ops = build_op_table({"name": names, "kind": kinds})
    source = Source("/dump", "msprobe", "", "pytorch")
    return Trace(source, ops, build_tensor_table(columns), load=arrays.__getitem__)


SORTED = record_router(is_sorted=True)
UNSORTED = record_router(is_sorted=False, is_reversed=True)


@pytest.mark.parametrize("traces", [(SORTED, UNSORTED), (UNSORTED, SORTED)])
def test_the_largest_elements_agree_in_another_order(traces):
    comparison = compare_traces(*traces)
    for slot in ("output.0", "output.1"):
        pair = find_pair(comparison, TOPK, slot)
        assert (pair["error"], pair["layout"]) == (0, "sorted(-1)")
    assert locate_divergence(*traces).verdict == "aligned"


def test_the_argument_may_be_a_position():
    """``scores.topk(3, -1, True, False)``."""
    tensors = UNSORTED.tensors.copy()
    tensors["slot"] = tensors["slot"].replace("input.sorted", "input.4")
    positional = replace(UNSORTED, tensors=tensors)
    pair = find_pair(compare_traces(SORTED, positional), TOPK)
    assert (pair["error"], pair["layout"]) == (0, "sorted(-1)")


def test_what_is_gathered_with_the_indices_agrees_too():
    pair = find_pair(compare_traces(SORTED, UNSORTED), GATHER)
    assert (pair["error"], pair["layout"]) == (0, "sorted(-1)")
    assert find_pair(compare_traces(SORTED, UNSORTED), SUM)["layout"] == "same"


def test_by_statistics_they_agree_without_being_sorted():
    traces = [replace(trace, tensors=trace.tensors.assign(file="")) for trace in (SORTED, UNSORTED)]
    pair = find_pair(compare_traces(*traces), TOPK)
    assert (pair["metric"], pair["agrees"]) == ("statistics", True)
    assert locate_divergence(*traces).verdict == "aligned"


def test_a_topk_that_sorts_may_not_order_freely():
    other_order = record_router(is_sorted=True, is_reversed=True)
    pair = find_pair(compare_traces(SORTED, other_order), TOPK)
    assert pair["layout"] == "same"
    assert pair["error"] > 0.1


def test_other_elements_do_not_agree():
    wrong_choice = record_router(is_sorted=False, first_rank=1)
    assert not find_pair(compare_traces(SORTED, wrong_choice), TOPK)["agrees"]
    assert locate_divergence(SORTED, wrong_choice).findings[0].reference_ops == (TOPK,)
