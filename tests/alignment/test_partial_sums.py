"""Partial sums that each side adds up in another order have no partners; their totals have."""

import numpy as np
import pytest
from traces import align_traces, find_op

from dumpdiff import read
from dumpdiff.alignment.partial_sums import _find_next_sums, _find_totals
from dumpdiff.graph import build_flow
from dumpdiff.model.trace import Source, Trace, build_op_table, build_tensor_table


@pytest.fixture(scope="module")
def alignment(dump):
    """The total of a chain of terms against that of two sums of terms."""
    folder = dump("pt_coupling_forms")
    return align_traces(read(folder / "couple_chained"), read(folder / "couple_summed"))


def list_partners(alignment, name):
    """The names of the reference's ops that compute the partners of what an op computes."""
    flow = alignment.target
    values = flow.writes[find_op(flow.trace, name)]
    partners = [alignment.partners[value] for value in values if value in alignment.partners]
    return [
        str(alignment.reference.trace.ops["name"].iat[alignment.reference.producers[partner]])
        for partner in partners
    ]


def test_a_sum_with_the_terms_of_the_layer_before_is_not_that_of_one_layer(alignment):
    assert list_partners(alignment, "Tensor.__add__.4.forward") == []


def test_terms_and_totals_are_partners(alignment):
    assert list_partners(alignment, "Tensor.sum.3.forward") == ["Tensor.sum.3.forward"]
    assert list_partners(alignment, "Tensor.__add__.7.forward") == ["Tensor.__add__.7.forward"]


def record_calls(*calls):
    """A trace of calls (kind, inputs, output), with the statistics of arrays."""
    rows = [
        {"op": op, "slot": slot, "slot_kind": slot.partition(".")[0], "size": array.size,
         "shape": array.shape, "dtype": "float32", "max": array.max(), "min": array.min(),
         "mean": array.mean(), "norm": np.linalg.norm(array), "nonfinite": 0}
        for op, (_, inputs, output) in enumerate(calls)
        for slot, array in {
            **{f"input.{i}": x for i, x in enumerate(inputs)}, "output.0": output
        }.items()
    ]  # fmt: skip
    ops = build_op_table(
        {"name": [f"call.{op}" for op in range(len(calls))], "kind": [kind for kind, *_ in calls]}
    )
    tensors = build_tensor_table({name: [row[name] for row in rows] for name in rows[0]})
    return Trace(Source("/dump", "msprobe", "", "pytorch"), ops, tensors)


def test_a_sum_that_gives_back_a_value_of_before_is_no_total_of_it():
    """As q = x + (q - x), through which a straight-through estimator passes the gradient on."""
    a, b, x = np.random.default_rng(4).standard_normal((3, 4, 5))
    flow = build_flow(
        record_calls(
            ("add", [a, b], a + b), ("sub", [a + b, x], a + b - x), ("add", [x, a + b - x], a + b)
        )
    )
    quantized, difference = (flow.writes[op][0] for op in (0, 1))
    next_sums = _find_next_sums(flow, flow.trace.ops["kind"].tolist())
    assert next_sums[quantized] == difference
    assert next_sums[difference] < 0
    assert _find_totals(next_sums)[[quantized, difference]].tolist() == [difference, difference]
