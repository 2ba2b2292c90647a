"""Which ops are drawn, and at which level: on the dataflow of a real run against itself."""

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


def find_unit(flows: Flows, target: str = "", reference: str = "") -> Unit:
    target_op, reference_op = (
        find_op(flow.flow.trace, name) if name else -1
        for flow, name in zip(flows, (target, reference), strict=True)
    )
    return target_op, reference_op


def list_names(side: Dataflow, ops: list[int]) -> list[str]:
    return [str(side.flow.trace.ops["name"].iat[op]) for op in ops]


def pair_all_ops(flows: Flows) -> tuple[dict[int, int], dict[int, int]]:
    partners = {op: op for op in range(len(flows[0].flow.trace.ops))}
    return partners, partners


def test_the_nearest_are_what_it_was_computed_from_then_what_follows(flows: Flows) -> None:
    units, _ = select_nearest(flows, pair_all_ops(flows), [find_unit(flows, SCALE, SCALE)])
    assert list_names(flows[0], [target_op for target_op, _ in units[:3]]) == [SCALE, MATMUL, ADD]


def test_an_op_is_selected_with_its_partner(flows: Flows) -> None:
    units, _ = select_nearest(flows, pair_all_ops(flows), [find_unit(flows, SCALE, SCALE)])
    assert all(target_op == reference_op for target_op, reference_op in units)
    assert len(units) == MAX_OPS


def test_without_partners_the_sides_are_selected_independently(flows: Flows) -> None:
    units, _ = select_nearest(
        flows, ({}, {}), [find_unit(flows, SCALE), find_unit(flows, "", SOFTMAX)]
    )
    target_ops = {target_op for target_op, _ in units} - {-1}
    reference_ops = {reference_op for _, reference_op in units} - {-1}
    assert len(target_ops) == len(reference_ops) == MAX_OPS
    assert all(-1 in unit for unit in units)


def test_omitted_ops_are_counted(flows: Flows) -> None:
    units, omitted = select_nearest(
        flows, pair_all_ops(flows), [find_unit(flows, "Functional.embedding.0.forward")]
    )
    assert len(units) <= MAX_OPS
    assert omitted[0] > 0


def test_the_backward_pass_is_far_from_the_forward_pass(flows: Flows) -> None:
    units, _ = select_nearest(flows, pair_all_ops(flows), [find_unit(flows, SCALE, SCALE)])
    assert {flows[0].get_phase(target_op) for target_op, _ in units} == {"forward"}


def test_without_seeds_nothing_is_selected(flows: Flows) -> None:
    assert select_nearest(flows, pair_all_ops(flows), []) == ([], (0, 0))


def test_levels_follow_the_dataflow(flows: Flows) -> None:
    chain = [find_unit(flows, name, name) for name in (SOFTMAX, SCALE, MATMUL, ADD)]
    levels = assign_levels(chain, flows)
    assert [levels[unit] for unit in chain] == [3, 1, 0, 2]


def test_an_op_is_one_level_above_its_first_consumer(flows: Flows) -> None:
    """The other input of a late matmul is not at the top of the drawing."""
    late = "Torch.matmul.3.forward"
    links = flows[0].list_inputs(find_op(flows[0].flow.trace, late))
    value = next(
        link.producer for link in links if list_names(flows[0], [link.producer]) != [SOFTMAX]
    )
    levels = assign_levels(
        [*(find_unit(flows, name, name) for name in (SCALE, ADD, SOFTMAX, late)), (value, value)],
        flows,
    )
    assert levels[value, value] == levels[find_unit(flows, SOFTMAX, SOFTMAX)] == 2


def test_partners_that_would_close_a_cycle_become_two_units(flows: Flows) -> None:
    crossed = [find_unit(flows, MATMUL, SCALE), find_unit(flows, SCALE, MATMUL)]
    levels = assign_levels(crossed, flows)
    assert set(levels) == {crossed[0], find_unit(flows, SCALE), find_unit(flows, "", MATMUL)}
    assert (
        levels[find_unit(flows, "", MATMUL)] < levels[crossed[0]] < levels[find_unit(flows, SCALE)]
    )
