"""Ops and the values between them, on real dumps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from traces import compared, op, value

from dumpdiff.divergence.joint_graph import joined
from dumpdiff.figures.dataflow import Dataflow, dataflows
from dumpdiff.model.trace import Trace


@pytest.fixture(scope="module")
def sides(trace: Callable[[str], Trace]) -> tuple[Dataflow, Dataflow]:
    return dataflows(joined(compared(trace("demo_mindspore"), trace("demo_pytorch"))))


def makers(side: Dataflow, name: str) -> set[str]:
    ops = side.flow.trace.ops["name"]
    return {str(ops.iat[link.maker]) for link in side.above.get(op(side.flow.trace, name), [])}


def test_a_reader_reads_from_the_op_that_computed_not_from_the_reshape_between(
    sides: tuple[Dataflow, Dataflow],
) -> None:
    scope = "Default/network-WithLoss/backbone-Llama/layers-CellList/1-Decoder"
    assert makers(sides[0], f"{scope}/mlp-FeedForward/w1-Dense/MatMul-op0") == {
        f"{scope}/post_norm-RMSNorm/Mul-op1"
    }


def test_values_are_handed_on_in_the_order_of_execution(sides: tuple[Dataflow, Dataflow]) -> None:
    for side in sides:
        assert side.links
        assert all(link.maker < link.reader for link in side.links)


def test_gradients_that_only_their_readers_recorded_come_from_the_backward_call_before(
    sides: tuple[Dataflow, Dataflow],
) -> None:
    assert "Tensor.__mul__.18.backward" in makers(sides[1], "Tensor.__mul__.17.backward")


def test_both_ways_tell_the_same(sides: tuple[Dataflow, Dataflow]) -> None:
    for side in sides:
        for table in (side.above, side.below):
            assert sorted(link for links in table.values() for link in links) == sorted(side.links)


def test_the_results_of_a_backward_call_are_the_gradients_it_was_given(
    sides: tuple[Dataflow, Dataflow],
) -> None:
    flow, name = sides[1].flow, "Functional.linear.17.backward"
    assert value(flow, name, "input.0") in sides[1].results(op(flow.trace, name))


def test_a_parameter_can_be_an_op_of_its_own(sides: tuple[Dataflow, Dataflow]) -> None:
    reference = sides[1]
    name = "Functional.linear.11.forward"
    weight = value(reference.flow, name, "input.1")
    extended, parameter = reference.with_given(weight)
    assert (reference.given(parameter), reference.results(parameter), reference.phase(parameter)) == (
        weight, (weight,), "forward",
    )  # fmt: skip
    assert parameter in {link.maker for link in extended.above[op(reference.flow.trace, name)]}


def test_a_value_whose_maker_was_not_recorded_can_stand_between_what_was_bridged(
    trace: Callable[[str], Trace],
) -> None:
    side = dataflows(joined(compared(trace("v6.0_api_stack"), trace("v6.0_api_stack"))))[0]
    bridged = next(link for link in side.links if not side.is_made(link.value))
    extended, hole = side.with_given(bridged.value)
    assert bridged not in extended.links
    assert (bridged.maker, bridged.made) in {
        (link.maker, link.value) for link in extended.above[hole]
    }
    assert bridged.reader in {link.reader for link in extended.below[hole]}
