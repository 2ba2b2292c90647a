"""Partial sums that each side adds up in another order have no partners; their totals have."""

import numpy as np
import pytest
from traces import align_traces, find_op, record_calls

from dumpdiff import read
from dumpdiff.alignment.partial_sums import _find_next_sums, _find_totals
from dumpdiff.graph import build_flow


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
