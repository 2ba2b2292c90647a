"""What is asked of the sides of a node before a difference is excused."""

import numpy as np
import pytest
from traces import compare_traces, edit_tensors, find_tensor, find_value

from dumpdiff.divergence.joint_graph import build_joint_graph
from dumpdiff.divergence.reconvergence import (
    _get_producer_kinds,
    _has_exchanged_axes,
    _has_other_scalars,
)

NUMBERS = ("max", "min", "mean", "norm")


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


@pytest.mark.parametrize(
    ("name", "slot", "is_other"),
    [
        ("Functional.layer_norm.3.forward", "input.4", False),  # its epsilon
        ("Tensor.__truediv__.1.forward", "input.1", True),  # a number may be divided by elsewhere
    ],
)
def test_an_epsilon_is_no_number_that_other_operators_take_back(trace, name, slot, is_other):
    clean = trace("pt_none")
    changed = edit_tensors(clean, find_tensor(clean, name, slot), **dict.fromkeys(NUMBERS, 0.01))
    graph = build_joint_graph(compare_traces(changed, clean))
    assert len(graph.comparison.scalars) == 1
    value = find_value(graph.sides[0].flow, name, "output.0")
    assert _has_other_scalars(graph, int(graph.sides[0].nodes[value])) == is_other
