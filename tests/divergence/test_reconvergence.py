"""What the sides of a node are asked for, where one of them has no value."""

import numpy as np
import pytest
from traces import compare_traces

from dumpdiff.divergence.joint_graph import build_joint_graph
from dumpdiff.divergence.reconvergence import _get_producer_kinds, _has_exchanged_axes


@pytest.fixture(scope="module")
def graph(trace):
    return build_joint_graph(compare_traces(trace("ms_fused"), trace("pt_fused")))


@pytest.mark.parametrize("side", [0, 1])
def test_a_side_without_a_value_has_no_producer(graph, side):
    """Class -1 is no value; it must not be read as the last one."""
    nodes_without_value = np.flatnonzero(graph.sides[side].classes < 0).tolist()
    assert nodes_without_value
    for node in nodes_without_value:
        kinds = _get_producer_kinds(graph, node)
        assert kinds[side] == ""
        assert not _has_exchanged_axes(graph, node)


def test_both_sides_of_a_pair_have_their_producers_kinds(graph):
    kinds = {_get_producer_kinds(graph, node) for node in range(len(graph.comparison.pairs))}
    assert ("matmul", "matmul") in kinds
