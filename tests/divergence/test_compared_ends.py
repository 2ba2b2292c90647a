"""Agreeing tensors in which a value without a partner would show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from traces import classify_traces, find_value

from dumpdiff import read
from dumpdiff.divergence.compared_ends import _find_gradients_of_weights


@pytest.mark.parametrize("is_swapped", [False, True])
def test_the_gradient_of_a_weight_shows_what_was_multiplied_by_it(
    dump: Callable[[str], Path], is_swapped: bool
) -> None:
    """One side computes the steps of padding, too: only the gradients of weights are partners."""
    names = ("samples_padded", "samples_packed")
    traces = [read(dump("pt_samples") / name) for name in (names[::-1] if is_swapped else names)]
    graph, states = classify_traces(*traces)
    for side in graph.sides:
        value = find_value(side.flow, "Functional.linear.7.forward", "input.0")
        gradient = find_value(side.flow, "Module.middle.Linear.parameters_grad.0", "output.weight")
        of_bias = find_value(side.flow, "Module.middle.Linear.parameters_grad.0", "output.bias")
        node, gradient_node = int(side.nodes[value]), int(side.nodes[gradient])
        ends = _find_gradients_of_weights(graph, [node])[node]
        assert gradient_node in ends
        assert int(side.nodes[of_bias]) not in ends  # it follows without what is multiplied
        assert states.state[gradient_node] == "agreeing"
        assert states.state[node] == "reconverged"
