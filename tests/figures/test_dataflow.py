"""Ops and the values between them, on real dumps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from traces import compare_traces, find_op, find_value

from dumpdiff.divergence.joint_graph import build_joint_graph
from dumpdiff.figures.dataflow import Dataflow, build_dataflows
from dumpdiff.model.trace import Trace


@pytest.fixture(scope="module")
def sides(trace: Callable[[str], Trace]) -> tuple[Dataflow, Dataflow]:
    return build_dataflows(
        build_joint_graph(compare_traces(trace("demo_mindspore"), trace("demo_pytorch")))
    )


def name_producers(side: Dataflow, name: str) -> set[str]:
    ops = side.flow.trace.ops["name"]
    return {
        str(ops.iat[link.producer]) for link in side.list_inputs(find_op(side.flow.trace, name))
    }


def test_a_consumer_is_linked_to_the_op_that_computed_not_to_the_reshape_between(
    sides: tuple[Dataflow, Dataflow],
) -> None:
    scope = "Default/network-WithLoss/backbone-Llama/layers-CellList/1-Decoder"
    assert name_producers(sides[0], f"{scope}/mlp-FeedForward/w1-Dense/MatMul-op0") == {
        f"{scope}/post_norm-RMSNorm/Mul-op1"
    }


def test_links_follow_the_order_of_execution(sides: tuple[Dataflow, Dataflow]) -> None:
    for side in sides:
        assert side.links
        assert all(link.producer < link.consumer for link in side.links)


def test_a_gradient_without_a_recorded_producer_comes_from_the_backward_call_before(
    sides: tuple[Dataflow, Dataflow],
) -> None:
    assert "Tensor.__mul__.18.backward" in name_producers(sides[1], "Tensor.__mul__.17.backward")


def test_inputs_and_outputs_hold_the_same_links(sides: tuple[Dataflow, Dataflow]) -> None:
    for side in sides:
        ops = range(len(side.flow.reads))
        for list_links in (side.list_inputs, side.list_outputs):
            assert sorted(link for op in ops for link in list_links(op)) == sorted(side.links)


def test_the_results_of_a_backward_call_include_the_gradients_it_received(
    sides: tuple[Dataflow, Dataflow],
) -> None:
    flow, name = sides[1].flow, "Functional.linear.17.backward"
    assert find_value(flow, name, "input.0") in sides[1].list_results(find_op(flow.trace, name))


def test_a_parameter_can_be_an_op_of_its_own(sides: tuple[Dataflow, Dataflow]) -> None:
    reference = sides[1]
    name = "Functional.linear.11.forward"
    weight = find_value(reference.flow, name, "input.1")
    extended, parameter = reference.with_unrecorded_producer(weight)
    assert (
        reference.get_unrecorded_output(parameter),
        reference.list_results(parameter),
        reference.get_phase(parameter),
    ) == (
        weight,
        (weight,),
        "forward",
    )
    assert parameter in {
        link.producer for link in extended.list_inputs(find_op(reference.flow.trace, name))
    }


def test_an_op_for_an_unproduced_value_splits_the_bridged_link(
    trace: Callable[[str], Trace],
) -> None:
    side = build_dataflows(
        build_joint_graph(compare_traces(trace("v6.0_api_stack"), trace("v6.0_api_stack")))
    )[0]
    bridged = next(link for link in side.links if not side.is_produced(link.value))
    extended, stand_in = side.with_unrecorded_producer(bridged.value)
    assert bridged not in extended.links
    assert (bridged.producer, bridged.produced_value) in {
        (link.producer, link.value) for link in extended.list_inputs(stand_in)
    }
    assert bridged.consumer in {link.consumer for link in extended.list_outputs(stand_in)}
