"""What a drawing of a finding shows, on real pairs with one known fault."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan

import numpy as np
import pytest
from traces import find_op, find_result, scale_tensors

from dumpdiff import align
from dumpdiff.figures.finding_contexts import MAX_FINDINGS
from dumpdiff.figures.selection import MAX_OPS
from dumpdiff.model.finding_context import FindingContext, Neighborhood, Node
from dumpdiff.model.trace import Trace

from .conftest import Drawn, drawn_of

DEMO = ("demo_mindspore", "demo_pytorch")
PAIRS = (DEMO, ("ms_graph_bug_w1", "v6.0_api_stack"), ("ms_mf_attn_scale", "pt_none"))


def first(drawn: Drawn) -> FindingContext:
    return drawn[2][0]


def node(side: Neighborhood, name: str) -> Node:
    return next(one for one in side.nodes if one.op.endswith(name))


@pytest.fixture(params=PAIRS, ids=lambda pair: pair[0])
def pair(request: pytest.FixtureRequest, drawn: Callable[[str, str], Drawn]) -> Drawn:
    """Each of the shipped pairs that part."""
    return drawn(*request.param)


# What holds of every drawing.


def test_the_first_findings_have_one_each(pair: Drawn) -> None:
    _, told, closeups = pair
    assert [closeup.rank for closeup in closeups] == [
        finding.rank for finding in told.findings[:MAX_FINDINGS]
    ]


def test_matched_ops_stand_level(pair: Drawn) -> None:
    for closeup in pair[2]:
        for ours, theirs in (
            (closeup.target, closeup.reference),
            (closeup.reference, closeup.target),
        ):
            for place, one in enumerate(ours.nodes):
                if one.partner >= 0:
                    other = theirs.nodes[one.partner]
                    assert (other.partner, other.level) == (place, one.level)


def test_data_flows_down_along_edges_of_drawn_ops(pair: Drawn) -> None:
    for closeup in pair[2]:
        for side in (closeup.target, closeup.reference):
            assert side.edges
            for edge in side.edges:
                assert side.nodes[edge.producer].level < side.nodes[edge.consumer].level


def test_it_stays_small_and_every_op_is_in_it_once(pair: Drawn) -> None:
    for closeup in pair[2]:
        for side in (closeup.target, closeup.reference):
            assert 1 < len(side.nodes) <= MAX_OPS
            assert len({one.op for one in side.nodes}) == len(side.nodes)


def test_an_op_without_a_state_has_no_error_and_the_reverse(pair: Drawn) -> None:
    for closeup in pair[2]:
        for side in (closeup.target, closeup.reference):
            assert all(
                (one.state == "unmatched") == isnan(one.error) for one in (*side.nodes, *side.edges)
            )


def test_what_was_introduced_follows_from_agreement_and_leads_to_difference(pair: Drawn) -> None:
    for side in (first(pair).target, first(pair).reference):
        place = next(p for p, one in enumerate(side.nodes) if one.state == "introduced")
        above = [edge for edge in side.edges if edge.consumer == place]
        assert all(edge.state == "agreeing" for edge in above)
        below = [edge for edge in side.edges if edge.producer == place]
        assert {side.nodes[edge.consumer].state for edge in below} <= {
            "propagated",
            "amplified",
            "unmatched",
        }


# The demo: layers.1.post_norm of the target has another epsilon.


def test_the_ops_of_the_finding_are_beside_each_other(drawn: Callable[[str, str], Drawn]) -> None:
    _, told, (closeup, *_) = drawn(*DEMO)
    finding = told.findings[0]
    ours, theirs = (
        node(closeup.target, finding.target_ops[-1]),
        node(closeup.reference, finding.reference_ops[-1]),
    )
    assert ours.state == theirs.state == "introduced"
    assert ours.error == theirs.error == finding.metrics["error"]
    assert closeup.reference.nodes[ours.partner] == theirs


def test_a_node_tells_where_its_op_was_called(drawn: Callable[[str, str], Drawn]) -> None:
    add = node(first(drawn(*DEMO)).target, "Add-op12")
    assert (add.kind, add.scope, add.source) == (
        "Add",
        "layers.1.post_attention_norm",
        "mindspore_model.py:22",
    )
    assert add.stack.splitlines()[0].startswith("mindspore_model.py:22 ")


def test_an_edge_tells_the_slot_the_shape_and_the_error(drawn: Callable[[str, str], Drawn]) -> None:
    side = first(drawn(*DEMO)).reference
    (edge,) = (
        e
        for e in side.edges
        if side.nodes[e.producer].kind == "Torch.rsqrt" and side.nodes[e.consumer].partner >= 0
    )
    assert (edge.slot, edge.shape, edge.state) == ("input.1", "2 x 16 x 1", "propagated")
    assert edge.error == pytest.approx(2.7e-3, rel=0.05)


def test_reshapes_and_module_calls_are_passed_through(drawn: Callable[[str, str], Drawn]) -> None:
    closeup = first(drawn(*DEMO))
    assert not {"Reshape", "Transpose"} & {one.kind for one in closeup.target.nodes}
    assert not any(one.kind.startswith("Module.") for one in closeup.reference.nodes)


def test_the_pictures_are_of_the_tensor_that_parts(drawn: Callable[[str, str], Drawn]) -> None:
    closeup = first(drawn(*DEMO))
    assert closeup.histogram is not None
    assert sum(closeup.histogram.target) == sum(closeup.histogram.reference) == 32
    assert closeup.difference is not None
    assert np.array(closeup.difference.values) == pytest.approx(
        1e-2, rel=1e-2
    )  # epsilon 1e-2, added everywhere
    assert (closeup.difference.rows, closeup.difference.columns) == ("axis 0 (2)", "axis 1 (16)")


# Other findings.


def test_a_parameter_is_drawn_with_its_readers(drawn: Callable[[str, str], Drawn]) -> None:
    closeup = first(drawn("ms_graph_bug_w1", "v6.0_api_stack"))
    weight = node(closeup.target, "layers.2.mlp.w1.weight")
    assert (weight.kind, weight.state) == ("Parameter", "introduced")
    assert closeup.reference.nodes[weight.partner].kind == "Input"  # API records name no parameter
    place = closeup.target.nodes.index(weight)
    readers = {
        closeup.target.nodes[edge.consumer].kind
        for edge in closeup.target.edges
        if edge.producer == place
    }
    assert "MatMul" in readers


def test_statistics_alone_give_no_pictures(drawn: Callable[[str, str], Drawn]) -> None:
    closeup = first(drawn("ms_graph_bug_w1", "v6.0_api_stack_summary"))
    assert (closeup.histogram, closeup.difference) == (None, None)
    assert closeup.target.nodes


def test_a_gradient_is_drawn_with_the_line_of_its_forward_call(
    trace: Callable[[str], Trace],
) -> None:
    clean, name = trace("pt_none"), "Functional.silu.1.backward"
    later = np.flatnonzero(clean.tensors["op"] > find_op(clean, name)).tolist()
    _, told, closeups = drawn_of(scale_tensors(clean, {*find_result(clean, name), *later}, 1.1), clean)
    assert told.findings[0].phase == "backward"
    silu = node(closeups[0].target, name)
    assert (silu.state, silu.source) == ("introduced", "pt_model.py:34")


def test_an_op_that_only_one_side_has_stands_alone(drawn: Callable[[str, str], Drawn]) -> None:
    sigmoid = node(first(drawn("ms_graph_bug_w1", "v6.0_api_stack")).target, "Sigmoid-op2")
    assert (sigmoid.partner, sigmoid.state) == (-1, "unmatched")


def test_agreement_is_not_drawn(trace: Callable[[str], Trace]) -> None:
    clean = trace("pt_none")
    assert drawn_of(clean, clean)[2] == ()


def test_the_library_draws_only_if_asked(dump: Callable[[str], object]) -> None:
    paths = [str(dump(name)) for name in DEMO]
    assert align(*paths).finding_contexts == ()
    (closeup,) = align(*paths, finding_contexts=True).finding_contexts
    assert closeup.rank == 1
