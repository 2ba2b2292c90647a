"""Joins that msprobe does not record: the parts that a value was joined from."""

import pytest
from traces import edit_tensors, find_outputs, remove_tensors

from dumpdiff import read
from dumpdiff.graph import build_flow
from dumpdiff.graph.joins import find_joined_parts
from dumpdiff.graph.missing_edges import find_bridge, find_unrecorded_results


@pytest.fixture(scope="module")
def flow(dump):
    flows = {}

    def build(variant):
        if variant not in flows:
            flows[variant] = build_flow(read(dump("pt_variants") / variant))
        return flows[variant]

    return build


def find_op(flow, name):
    return flow.trace.ops["name"].tolist().index(name)


def list_producers(flow, values):
    return [flow.trace.ops["name"].iat[flow.producers[value]] for value in values]


@pytest.mark.parametrize(
    ("position", "parts"),
    [
        (0, ["Tensor.__sub__.0.forward", "Tensor.__add__.0.forward"]),
        (1, ["Tensor.__sub__.1.forward", "Tensor.__add__.1.forward"]),
    ],
)
def test_two_halves_are_stacked(flow, position, parts):
    """The rotated queries and keys: (2, 4, 2, 2) each, stacked on a last axis."""
    flow = flow("rotation_pairs")
    value = flow.reads[find_op(flow, "Torch.matmul.0.forward")][position]
    assert flow.producers[value] < 0
    assert list_producers(flow, find_joined_parts(flow, value)) == parts
    assert find_bridge(flow, value).evidence == "joined"


def test_the_steps_of_a_recurrence_are_stacked(dump):
    """Four hidden states, with other values of their size between one and the next.

    The module call that has the stacked states as its output is left out.
    """
    trace = read(dump("pt_variants") / "recurrence_steps")
    module_outputs = find_outputs(trace, "Module.module.Recurrence.forward.0")
    flow = build_flow(remove_tensors(trace, module_outputs))
    value = flow.reads[find_op(flow, "Tensor.__add__.8.forward")][1]
    assert flow.sizes[value] == 2 * 4 * 8
    assert list_producers(flow, find_joined_parts(flow, value)) == [
        "Tensor.__mul__.2.forward",
        "Tensor.__mul__.5.forward",
        "Tensor.__mul__.8.forward",
        "Tensor.__mul__.11.forward",
    ]


def test_the_gradients_of_four_gates_are_joined(flow):
    """``chunk`` cut the sum into gates; between their gradients are others of their size."""
    flow = flow("recurrence_steps")
    value = flow.reads[find_op(flow, "Functional.linear.7.backward")][0]
    assert list_producers(flow, find_joined_parts(flow, value)) == [
        "Torch.sigmoid.11.backward",
        "Torch.tanh.6.backward",
        "Torch.sigmoid.10.backward",
        "Torch.sigmoid.9.backward",
    ]


def test_values_of_other_norms_are_no_parts(dump):
    """One of the halves has another norm: its square no longer adds up."""
    trace = read(dump("pt_variants") / "rotation_pairs")
    half = find_outputs(trace, "Tensor.__sub__.0.forward")
    changed = edit_tensors(trace, half, norm=trace.tensors["norm"].iloc[half].iat[0] * 1.001)
    flow = build_flow(changed)
    value = flow.reads[find_op(flow, "Torch.matmul.0.forward")][0]
    assert find_joined_parts(flow, value) == ()


class TestUnreadResults:
    def test_a_complex_product_leads_to_what_is_read_next(self, flow):
        """``view_as_real`` was not recorded, and a complex value has no norm to compare."""
        flow = flow("rotation_complex")
        (product,) = flow.writes[find_op(flow, "Tensor.__mul__.1.forward")]
        matmul = find_op(flow, "Torch.matmul.0.forward")
        assert find_unrecorded_results(flow, product) == flow.reads[matmul]

    def test_a_value_that_an_op_reads_leads_nowhere_else(self, flow):
        flow = flow("rotation_pairs")
        (product,) = flow.writes[find_op(flow, "Tensor.__mul__.0.forward")]
        assert find_unrecorded_results(flow, product) == ()

    def test_the_loss_leads_nowhere(self, flow):
        flow = flow("rotation_pairs")
        (loss,) = flow.writes[find_op(flow, "Functional.cross_entropy.0.forward")]
        assert find_unrecorded_results(flow, loss) == ()
