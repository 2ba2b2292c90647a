"""What is asked of the sides of a node before a difference is excused."""

import numpy as np
import pytest
from traces import (
    classify_traces,
    compare_traces,
    edit_tensors,
    find_tensor,
    find_tensors_like,
    find_value,
    record_calls,
)

from dumpdiff.divergence.contradictions import (
    _get_producer_kinds,
    _has_exchanged_axes,
    _has_other_scalars,
)
from dumpdiff.divergence.joint_graph import build_joint_graph

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


def record_masked_scores(scores, fill):
    """Record the statistics of an attention whose last query is padding and is masked at the end.

    ``scores`` are (queries, keys); the last two keys are filled with ``fill``.
    """
    values = np.random.default_rng(0).normal(size=(6, 3))
    is_padding = np.arange(6) >= 4
    filled = np.where(is_padding, fill, scores)
    probabilities = np.exp(filled) / np.exp(filled).sum(axis=1, keepdims=True)
    product = probabilities @ values
    is_query = np.array([[1.0], [1.0], [1.0], [0.0]])
    return record_calls(
        ("masked_fill", [is_padding.astype(float)], filled),
        ("softmax", [filled], probabilities),
        ("matmul", [probabilities, values], product),
        ("mul", [product, is_query], product * is_query),
        ("exp", [product * is_query], np.exp(product * is_query)),
    )


@pytest.mark.parametrize(("fill", "expected"), [(-1e9, "reconverged"), (-10.0, "propagated")])
def test_a_softmax_contradicts_no_scores_that_its_statistics_hide(fill, expected):
    """Padding has other scores on each side. A large number of the mask hides it."""
    scores = np.random.default_rng(1).normal(size=(4, 6))
    other_scores = np.concatenate([scores[:3], -scores[3:]])
    graph, states = classify_traces(
        record_masked_scores(scores, fill), record_masked_scores(other_scores, fill)
    )
    node = graph.target_nodes[find_value(graph.sides[0].flow, "call.1", "output.0")]
    assert states.state[node] == expected


def test_one_mask_may_follow_from_different_numbers():
    """What is no padding follows from the tokens, and from the attention mask of a batch."""
    tokens, is_token = np.array([7.0, 3.0, 5.0, 0.0]), np.array([1.0, 1.0, 1.0, 0.0])
    weights = np.array([0.3, 0.1, 0.7, 0.2])
    sides = []
    for numbers in (tokens, is_token):
        trace = record_calls(
            ("exp", [tokens], np.exp(tokens)),
            ("sin", [is_token], np.sin(is_token)),
            ("ne", [numbers], is_token * 2),
            ("mul", [is_token * 2, weights], is_token * weights),
        )
        masks = find_tensors_like(trace, "call.2", "output.0")
        sides.append(edit_tensors(trace, masks, dtype="bool"))
    graph, states = classify_traces(*sides)
    ((node, pair),) = graph.comparison.slot_pairs
    assert (pair.target_op, pair.slot_kind, states.state[node]) == (2, "input", "reconverged")


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_two_numbers_minus_one_value_are_no_partners_if_they_are_used_differently(is_mirrored):
    """1 - (x - (1 - y)) is 2 - x - y: what the other side computes with 1 - x is another thing."""
    s, x, y, mask = np.random.default_rng(4).standard_normal((4, 6, 5))
    common = (
        ("linear", [s], x), ("tanh", [np.arctanh(np.tanh(y))], y), ("mul", [x, mask], x * mask)
    )  # fmt: skip
    own = record_calls(
        *common,
        ("rsub", [x], 1 - x),
        ("mul", [1 - x, mask], mask - x * mask),
        ("rsub", [y], 1 - y),
        ("sub", [x, 1 - y], x - 1 + y),
        ("rsub", [x - 1 + y], 2 - x - y),
    )
    other = record_calls(
        *common,
        ("rsub", [x], 2 - x),
        ("sub", [2 - x, y], 2 - x - y),
        ("sub", [mask, x * mask], mask - x * mask),
    )
    graph, states = classify_traces(*((other, own) if is_mirrored else (own, other)))
    side = graph.sides[is_mirrored]
    node = int(side.nodes[find_value(side.flow, "call.3", "output.0")])
    assert states.state[node] == "reconverged"
    assert "isolated" not in states.state
    assert "introduced" not in states.state
