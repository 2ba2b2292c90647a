"""Gradients beside kinks: a choice of the slope, or a wrong gradient."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from traces import compare_traces, find_result, find_value, scale_arrays

from dumpdiff import read
from dumpdiff.divergence.joint_graph import build_joint_graph
from dumpdiff.divergence.kinks import measure_error_beside_kinks
from dumpdiff.model.trace import Trace
from dumpdiff.model.verdict import AGREEING

GRADIENT = "Torch.relu.0.backward"


@pytest.fixture(scope="module")
def traces(dump: Callable[[str], Path]) -> tuple[Trace, Trace]:
    """Sums in two orders, then relu: rounding decides about one element."""
    folder = dump("pt_reductions")
    return read(folder / "kinks_sums"), read(folder / "kinks_product")


def measure(target: Trace, reference: Trace) -> float:
    """Return the error of relu's gradient that no choice of a slope explains."""
    graph = build_joint_graph(compare_traces(target, reference))
    value = find_value(graph.comparison.alignment.reference, GRADIENT, "output.0")
    errors = graph.comparison.pairs["error"].tolist()
    return measure_error_beside_kinks(
        graph, int(graph.reference_nodes[value]), [AGREEING] * graph.n_nodes, errors
    )


def test_a_choice_of_the_slope_leaves_no_error(traces: tuple[Trace, Trace]) -> None:
    assert measure(*traces) < 1e-5


@pytest.mark.parametrize("is_target", [True, False])
def test_a_wrong_gradient_is_no_choice_beside_the_right_one(
    traces: tuple[Trace, Trace], is_target: bool
) -> None:
    """Each side's input allows the right gradient, which the other side has."""
    wrong_trace = scale_arrays(traces[0], find_result(traces[0], GRADIENT), 1.02)
    pair = (wrong_trace, traces[1]) if is_target else (traces[1], wrong_trace)
    assert measure(*pair) == pytest.approx(0.02, rel=0.05)
