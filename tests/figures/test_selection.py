"""Which ops are drawn, and on which level: on the dataflow of a real run beside itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from traces import compare_traces, find_op

from dumpdiff.divergence.joint_graph import build_joint_graph
from dumpdiff.figures.dataflow import Dataflow, build_dataflows
from dumpdiff.figures.selection import MAX_OPS, Flows, Unit, assign_levels, select_nearest
from dumpdiff.model.trace import Trace

MATMUL, SCALE = "Torch.matmul.2.forward", "Tensor.__truediv__.1.forward"
ADD, SOFTMAX = "Tensor.__add__.3.forward", "Functional.softmax.1.forward"


@pytest.fixture(scope="module")
def flows(trace: Callable[[str], Trace]) -> Flows:
    """A PyTorch run on both sides."""
    return build_dataflows(build_joint_graph(compare_traces(trace("pt_none"), trace("pt_none"))))


def unit(flows: Flows, target: str = "", reference: str = "") -> Unit:
    ours, theirs = (
        find_op(flow.flow.trace, name) if name else -1
        for flow, name in zip(flows, (target, reference), strict=True)
    )
    return ours, theirs


def names(side: Dataflow, ops: list[int]) -> list[str]:
    return [str(side.flow.trace.ops["name"].iat[op]) for op in ops]


def everyone(flows: Flows) -> tuple[dict[int, int], dict[int, int]]:
    same = {op: op for op in range(len(flows[0].flow.trace.ops))}
    return same, same


def test_the_nearest_are_what_it_was_computed_from_then_what_follows(flows: Flows) -> None:
    units, _ = select_nearest(flows, everyone(flows), [unit(flows, SCALE, SCALE)])
    assert names(flows[0], [one[0] for one in units[:3]]) == [SCALE, MATMUL, ADD]


def test_a_partner_is_brought_along(flows: Flows) -> None:
    units, _ = select_nearest(flows, everyone(flows), [unit(flows, SCALE, SCALE)])
    assert all(ours == theirs for ours, theirs in units)
    assert len(units) == MAX_OPS


def test_without_partners_the_sides_are_walked_apart(flows: Flows) -> None:
    units, _ = select_nearest(flows, ({}, {}), [unit(flows, SCALE), unit(flows, "", SOFTMAX)])
    ours, theirs = ({one[side] for one in units} - {-1} for side in (0, 1))
    assert len(ours) == len(theirs) == MAX_OPS
    assert all(-1 in one for one in units)


def test_what_was_left_out_is_counted(flows: Flows) -> None:
    units, omitted = select_nearest(
        flows, everyone(flows), [unit(flows, "Functional.embedding.0.forward")]
    )
    assert len(units) <= MAX_OPS
    assert omitted[0] > 0


def test_the_backward_pass_is_far_from_the_forward_pass(flows: Flows) -> None:
    units, _ = select_nearest(flows, everyone(flows), [unit(flows, SCALE, SCALE)])
    assert {flows[0].get_phase(one[0]) for one in units} == {"forward"}


def test_nothing_is_around_nothing(flows: Flows) -> None:
    assert select_nearest(flows, everyone(flows), []) == ([], (0, 0))


def test_levels_follow_the_dataflow(flows: Flows) -> None:
    chain = [unit(flows, name, name) for name in (SOFTMAX, SCALE, MATMUL, ADD)]
    found = assign_levels(chain, flows)
    assert [found[one] for one in chain] == [3, 1, 0, 2]


def test_an_op_stands_just_above_its_first_reader(flows: Flows) -> None:
    """The values that a late matmul reads beside the softmax are no top of the drawing."""
    late = "Torch.matmul.3.forward"
    above = flows[0].inputs[find_op(flows[0].flow.trace, late)]
    value = next(link.producer for link in above if names(flows[0], [link.producer]) != [SOFTMAX])
    found = assign_levels(
        [*(unit(flows, name, name) for name in (SCALE, ADD, SOFTMAX, late)), (value, value)], flows
    )
    assert found[value, value] == found[unit(flows, SOFTMAX, SOFTMAX)] == 2


def test_partners_that_would_close_a_circle_stand_apart(flows: Flows) -> None:
    crossed = [unit(flows, MATMUL, SCALE), unit(flows, SCALE, MATMUL)]
    found = assign_levels(crossed, flows)
    assert set(found) == {crossed[0], unit(flows, SCALE), unit(flows, "", MATMUL)}
    assert found[unit(flows, "", MATMUL)] < found[crossed[0]] < found[unit(flows, SCALE)]
