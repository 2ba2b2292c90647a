"""Gradients are multiplied in place: where they come from shows in their numbers."""

import pytest

from dumpdiff import read
from dumpdiff.graph import build_flow
from dumpdiff.graph.missing_edges import find_bridge


@pytest.fixture(scope="module")
def flow(dump):
    """Return the dataflow of a step with clipping to a norm of 0.5 and AdamW."""
    return build_flow(read(dump("pt_variants") / "attention_written"))


def test_each_weight_has_a_multiple_of_its_gradient(flow):
    gradients = flow.gradients_of_parameters
    scaled = {sources[0] for sources in flow.scaled_gradients.values() if len(sources) == 2}
    assert set(gradients.values()) <= scaled


def test_the_coefficient_is_a_number_that_the_update_computed(flow):
    (coefficient,) = {sources[-1] for sources in flow.scaled_gradients.values()}
    op = int(flow.producers[coefficient])
    assert flow.phases[op] == "optimizer"
    assert flow.list_column("max")[coefficient] < 1
    for value, sources in flow.scaled_gradients.items():
        if len(sources) == 2:
            factor = flow.norms[value] / flow.norms[sources[0]]
            assert factor == pytest.approx(flow.list_column("max")[coefficient], rel=1e-5)


def test_a_multiple_is_bridged(flow):
    value, sources = next(iter(flow.scaled_gradients.items()))
    bridge = find_bridge(flow, value)
    assert (bridge.parents, bridge.evidence) == (sources, "multiple")


def test_no_gradient_is_a_multiple_without_clipping(dump):
    assert build_flow(read(dump("pt_update_adam"))).scaled_gradients == {}


def test_a_mean_over_ranks_comes_from_the_sum_that_they_received(dump):
    """``parameter.grad /= 2`` after ``all_reduce``: msprobe records no call of it."""
    flow = build_flow(read(dump("data_parallel_ulysses"), rank=0))
    kinds = flow.trace.ops["kind"]
    assert len(flow.scaled_gradients) >= 15
    for value, (received,) in flow.scaled_gradients.items():
        assert kinds[flow.producers[received]] == "Distributed.all_reduce"
        assert flow.norms[value] == pytest.approx(flow.norms[received] / 2, rel=1e-5)
