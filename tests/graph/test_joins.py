"""Joins that msprobe does not record: the parts that a value was joined from."""

import numpy as np
import pytest
from traces import edit_tensors, find_outputs, find_value, remove_tensors

from dumpdiff import read
from dumpdiff.graph import build_flow
from dumpdiff.graph.joins import find_joined_parts
from dumpdiff.graph.missing_edges import find_bridge, find_unrecorded_results, is_graph_input
from dumpdiff.model.trace import Source, Trace, build_op_table, build_tensor_table


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


def test_a_sum_of_gradients_is_joined_with_another_gradient(dump):
    """No op wrote the sum, but the backward record of the module read it before."""
    flow = build_flow(read(dump("pt_halves") / "halves_written"))
    value = flow.reads[find_op(flow, "Functional.linear.0.backward")][0]
    first, second = find_joined_parts(flow, value)
    assert list_producers(flow, [first]) == ["Torch.sigmoid.0.backward"]
    assert flow.producers[second] < 0


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


def record_experts(token_counts, factor=1.0):
    """Record experts that each compute the outputs of their own tokens, and what reads them all.

    The outputs are assigned to rows of one tensor. The recorder leaves out how they are joined.
    """
    random = np.random.default_rng(3)
    names, rows, outputs = [], [], []

    def record(name, phase, call, inputs, output):
        names.append((name, phase, call))
        slots = [(f"input.{i}", "input", value) for i, value in enumerate(inputs)]
        for slot, slot_kind, value in [*slots, ("output.0", "output", output)]:
            is_empty = value.size == 0
            rows.append({
                "op": len(names) - 1, "slot": slot, "slot_kind": slot_kind, "size": value.size,
                "shape": value.shape, "dtype": "float32",
                "max": np.nan if is_empty else float(value.max()),
                "min": np.nan if is_empty else float(value.min()),
                "mean": np.nan if is_empty else float(value.mean()),
                "norm": float(np.linalg.norm(value.astype(float))), "nonfinite": 0,
            })  # fmt: skip

    for count in token_counts:
        tokens = random.standard_normal((count, 8)).astype(np.float32)
        outputs.append(random.standard_normal((count, 8)).astype(np.float32))
        record("Functional.linear", "forward", -1, [tokens], outputs[-1])
    joined = factor * np.concatenate(outputs)
    record("Tensor.__setitem__", "forward", -1, [np.zeros_like(joined), joined], joined[::-1] / 2)
    for call, output in reversed(list(enumerate(outputs))):
        gradient = random.standard_normal(output.shape).astype(np.float32)
        record("Functional.linear", "backward", call, [gradient], gradient / 3)
    ops = build_op_table({
        "name": [f"{name}.{i}.{phase}" for i, (name, phase, _) in enumerate(names)],
        "kind": [name for name, _, _ in names],
        "phase": [phase for _, phase, _ in names],
        "forward": [call for _, _, call in names],
    })  # fmt: skip
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return Trace(Source("/dump", "msprobe", "", "pytorch"), ops, build_tensor_table(columns))


class TestOutputsOfExperts:
    def test_outputs_of_any_sizes_are_joined_and_assigned(self):
        """One expert has no token. The assignment reads the joined outputs last."""
        flow = build_flow(record_experts([3, 0, 7, 2]))
        value = find_value(flow, "Tensor.__setitem__.4.forward", "input.1")
        assert list_producers(flow, find_joined_parts(flow, value)) == [
            "Functional.linear.0.forward",
            "Functional.linear.2.forward",
            "Functional.linear.3.forward",
        ]
        assert find_bridge(flow, value).evidence == "joined"
        assert not is_graph_input(flow, value)

    def test_other_numbers_are_not_joined_from_them(self):
        flow = build_flow(record_experts([3, 7, 2], factor=1.01))
        value = find_value(flow, "Tensor.__setitem__.3.forward", "input.1")
        assert find_joined_parts(flow, value) == ()
        assert is_graph_input(flow, value)
