"""What a drawing of a finding shows, on real pairs with one known fault."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from pathlib import Path

import numpy as np
import pytest
from traces import find_op, find_result, scale_tensors

from dumpdiff import align
from dumpdiff.figures.finding_contexts import MAX_FINDINGS
from dumpdiff.figures.selection import MAX_OPS
from dumpdiff.model.finding_context import FindingContext, Neighborhood, Node
from dumpdiff.model.trace import Trace

from .conftest import DrawnPair, draw

DEMO = ("demo_mindspore", "demo_pytorch")
PAIRS = (DEMO, ("ms_graph_bug_w1", "v6.0_api_stack"), ("ms_mf_attn_scale", "pt_none"))


def get_first_context(pair: DrawnPair) -> FindingContext:
    return pair[2][0]


def find_node(side: Neighborhood, name: str) -> Node:
    return next(node for node in side.nodes if node.op.endswith(name))


@pytest.fixture(params=PAIRS, ids=lambda pair: pair[0])
def pair(request: pytest.FixtureRequest, draw_pair: Callable[[str, str], DrawnPair]) -> DrawnPair:
    """Each of the shipped pairs that diverge."""
    return draw_pair(*request.param)


# What holds of every drawing.


def test_the_first_findings_have_one_context_each(pair: DrawnPair) -> None:
    _, result_, contexts = pair
    first_findings = result_.findings[:MAX_FINDINGS]
    assert [context.rank for context in contexts] == [finding.rank for finding in first_findings]


def test_paired_ops_have_the_same_level(pair: DrawnPair) -> None:
    for context in pair[2]:
        sides = (context.target, context.reference)
        for side, other_side in (sides, sides[::-1]):
            for position, node in enumerate(side.nodes):
                if node.partner >= 0:
                    partner = other_side.nodes[node.partner]
                    assert (partner.partner, partner.level) == (position, node.level)


def test_data_flows_down_along_edges_of_drawn_ops(pair: DrawnPair) -> None:
    for context in pair[2]:
        for side in (context.target, context.reference):
            assert side.edges
            for edge in side.edges:
                assert side.nodes[edge.producer].level < side.nodes[edge.consumer].level


def test_a_context_stays_small_and_has_every_op_once(pair: DrawnPair) -> None:
    for context in pair[2]:
        for side in (context.target, context.reference):
            assert 1 < len(side.nodes) <= MAX_OPS
            assert len({node.op for node in side.nodes}) == len(side.nodes)


def test_an_op_without_a_state_has_no_error_and_the_reverse(pair: DrawnPair) -> None:
    for context in pair[2]:
        for side in (context.target, context.reference):
            for element in (*side.nodes, *side.edges):
                if element.state in ("incomparable", "unpaired"):
                    assert isnan(element.error)
                elif element.state != "reconverged":  # with or without a partner
                    assert not isnan(element.error)


def test_what_was_introduced_follows_from_agreement_and_leads_to_difference(
    pair: DrawnPair,
) -> None:
    for side in (get_first_context(pair).target, get_first_context(pair).reference):
        states = [node.state for node in side.nodes]
        position = states.index("introduced")
        input_edges = [edge for edge in side.edges if edge.consumer == position]
        assert all(edge.state == "agreeing" for edge in input_edges)
        consumer_states = {
            states[edge.consumer] for edge in side.edges if edge.producer == position
        }
        assert consumer_states <= {"propagated", "amplified", "unpaired"}


# The demo: layers.1.post_norm of the target has another epsilon.


def test_the_ops_of_the_finding_are_paired(draw_pair: Callable[[str, str], DrawnPair]) -> None:
    _, result_, (context, *_) = draw_pair(*DEMO)
    finding = result_.findings[0]
    target_node = find_node(context.target, finding.target_ops[-1])
    reference_node = find_node(context.reference, finding.reference_ops[-1])
    assert target_node.state == reference_node.state == "introduced"
    assert target_node.error == reference_node.error == finding.metrics["error"]
    assert context.reference.nodes[target_node.partner] == reference_node


def test_a_node_has_the_source_line_of_its_op(draw_pair: Callable[[str, str], DrawnPair]) -> None:
    add = find_node(get_first_context(draw_pair(*DEMO)).target, "Add-op12")
    assert (add.kind, add.scope, add.source) == (
        "Add",
        "layers.1.post_attention_norm",
        "mindspore_model.py:22",
    )
    assert add.stack.splitlines()[0].startswith("mindspore_model.py:22 ")


def test_an_edge_has_slot_shape_and_error(draw_pair: Callable[[str, str], DrawnPair]) -> None:
    side = get_first_context(draw_pair(*DEMO)).reference
    (edge,) = (
        e
        for e in side.edges
        if side.nodes[e.producer].kind == "Torch.rsqrt" and side.nodes[e.consumer].partner >= 0
    )
    assert (edge.slot, edge.shape, edge.state) == ("input.1", "2 x 16 x 1", "propagated")
    assert edge.error == pytest.approx(2.7e-3, rel=0.05)


def test_reshapes_and_module_calls_are_passed_through(
    draw_pair: Callable[[str, str], DrawnPair],
) -> None:
    context = get_first_context(draw_pair(*DEMO))
    assert not {"Reshape", "Transpose"} & {node.kind for node in context.target.nodes}
    assert not any(node.kind.startswith("Module.") for node in context.reference.nodes)


def test_the_figures_are_of_the_tensor_that_diverges(
    draw_pair: Callable[[str, str], DrawnPair],
) -> None:
    context = get_first_context(draw_pair(*DEMO))
    assert context.histogram is not None
    assert sum(context.histogram.target) == sum(context.histogram.reference) == 32
    assert context.difference is not None
    assert np.array(context.difference.values) == pytest.approx(
        1e-2, rel=1e-2
    )  # epsilon 1e-2, added everywhere
    assert (context.difference.rows, context.difference.columns) == ("axis 0 (2)", "axis 1 (16)")


# Other findings.


def test_a_parameter_is_drawn_with_its_consumers(
    draw_pair: Callable[[str, str], DrawnPair],
) -> None:
    context = get_first_context(draw_pair("ms_graph_bug_w1", "v6.0_api_stack"))
    weight = find_node(context.target, "layers.2.mlp.w1.weight")
    assert (weight.kind, weight.state) == ("Parameter", "introduced")
    assert context.reference.nodes[weight.partner].kind == "Input"  # API records name no parameter
    position = context.target.nodes.index(weight)
    consumers = {
        context.target.nodes[edge.consumer].kind
        for edge in context.target.edges
        if edge.producer == position
    }
    assert "MatMul" in consumers


def test_statistics_alone_give_no_tensor_figures(
    draw_pair: Callable[[str, str], DrawnPair],
) -> None:
    context = get_first_context(draw_pair("ms_graph_bug_w1", "v6.0_api_stack_summary"))
    assert (context.histogram, context.difference) == (None, None)
    assert context.target.nodes


def test_a_gradient_is_drawn_with_the_line_of_its_forward_call(
    trace: Callable[[str], Trace],
) -> None:
    clean, name = trace("pt_none"), "Functional.silu.1.backward"
    later = np.flatnonzero(clean.tensors["op"] > find_op(clean, name)).tolist()
    _, result_, contexts = draw(
        scale_tensors(clean, {*find_result(clean, name), *later}, 1.1), clean
    )
    finding = next(finding for finding in result_.findings if finding.target_ops[-1] == name)
    assert finding.phase == "backward"
    silu = find_node(contexts[finding.rank - 1].target, name)
    assert (silu.state, silu.source) == ("introduced", "pt_model.py:34")


def test_an_op_that_only_one_side_has_is_unpaired(
    draw_pair: Callable[[str, str], DrawnPair],
) -> None:
    sigmoid = find_node(
        get_first_context(draw_pair("ms_graph_bug_w1", "v6.0_api_stack")).target, "Sigmoid-op2"
    )
    assert (sigmoid.partner, sigmoid.state) == (-1, "unpaired")


def test_agreement_has_no_contexts(trace: Callable[[str], Trace]) -> None:
    clean = trace("pt_none")
    assert draw(clean, clean)[2] == ()


def test_align_collects_contexts_only_for_the_page(dump: Callable[[str], Path]) -> None:
    result = align(*(dump(name) for name in DEMO))
    assert result.finding_contexts == ()
    assert "The dataflow around finding 1 on both sides" in result.to_html()
