"""Partial sums that each side adds up in another order have no partners; their totals have."""

import pytest
from traces import align_traces, find_op

from dumpdiff import read


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
