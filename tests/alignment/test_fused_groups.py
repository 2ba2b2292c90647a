"""Fused tensors: one weight for queries, keys and values on one side, three on the other."""

from dataclasses import replace

import numpy as np
import pytest
from traces import (
    align_traces,
    edit_tensors,
    find_outputs,
    find_tensor,
    find_tensors_like,
    find_value,
    record_calls,
    remove_ops,
    select_ops,
)

from dumpdiff.alignment import FusedGroup
from dumpdiff.model.trace import BACKWARD, FORWARD

Q, K, V = (f"Functional.linear.{number}.forward" for number in (7, 8, 9))
MODULE = "Module.model.layers.1.self_attn.{}_proj.Linear.{}"
NUMBERS = ("max", "min", "mean", "norm")


def compute_joint_statistics(trace, slot):
    """Return the statistics of the tensors in a slot of the three projections, concatenated."""
    rows = trace.tensors.iloc[[find_tensor(trace, name, slot) for name in (Q, K, V)]]
    norm = float(np.sqrt((rows["norm"] ** 2).sum()))
    return {
        "max": rows["max"].max(),
        "min": rows["min"].min(),
        "mean": rows["mean"].mean(),
        "norm": norm,
    }


def fuse_projections(trace, parameter=""):
    """Fuse the three projections of layer 1 into one call; the split is not recorded."""
    weight, output = find_tensors_like(trace, Q, "input.1"), find_outputs(trace, Q)
    size = 3 * int(trace.tensors["size"].iat[weight[0]])
    changed = edit_tensors(
        trace, weight, size=size, parameter=parameter, **compute_joint_statistics(trace, "input.1")
    )
    changed = edit_tensors(
        changed, output, size=size, **compute_joint_statistics(trace, "output.0")
    )
    modules = [
        MODULE.format(letter, end) for letter in "kv" for end in ("forward.0", "parameters_grad.0")
    ]
    return remove_ops(changed, K, V, MODULE.format("q", "parameters_grad.0"), *modules)


def mark_backward(trace, first):
    """Return the trace with the ops from ``first`` on in the backward phase."""
    phases = np.where(np.arange(len(trace.ops)) < first, FORWARD, BACKWARD)
    return replace(trace, ops=trace.ops.assign(phase=phases))


def find_weights(flow, *names):
    return tuple(find_value(flow, name, "input.1") for name in names)


@pytest.fixture(scope="module")
def plain_trace(trace):
    """Without the optimizer, which reads and updates every weight on its own."""
    clean_trace = trace("pt_none")
    return select_ops(clean_trace, np.flatnonzero(clean_trace.ops["phase"] != "optimizer").tolist())


@pytest.fixture(scope="module")
def named_trace(plain_trace):
    return fuse_projections(plain_trace, "model.layers.1.self_attn.qkv_proj.weight")


@pytest.fixture(scope="module")
def nameless_trace(plain_trace):
    return fuse_projections(plain_trace)


@pytest.fixture(scope="module")
def numbered_trace(plain_trace):
    changed = plain_trace
    for number, name in enumerate((Q, K, V)):
        changed = edit_tensors(
            changed,
            find_tensors_like(changed, name, "input.1"),
            parameter=f"model.layers.1.experts.{number}.weight",
        )
    return changed


@pytest.fixture(scope="module")
def stacked_trace(plain_trace):
    return fuse_projections(plain_trace, "model.layers.1.experts")


class TestByName:
    def test_the_parts_of_a_fused_parameter_are_known_by_the_rules(self, named_trace, plain_trace):
        alignment = align_traces(named_trace, plain_trace)
        assert (
            FusedGroup(
                find_weights(alignment.target, Q), find_weights(alignment.reference, Q, K, V)
            )
            in alignment.groups
        )

    def test_whichever_side_is_fused(self, named_trace, plain_trace):
        alignment = align_traces(plain_trace, named_trace)
        assert (
            FusedGroup(
                find_weights(alignment.target, Q, K, V), find_weights(alignment.reference, Q)
            )
            in alignment.groups
        )


def test_without_names_a_fused_group_is_found_by_the_value_read_with_it(
    nameless_trace, plain_trace
):
    alignment = align_traces(nameless_trace, plain_trace)
    assert (
        FusedGroup(find_weights(alignment.target, Q), find_weights(alignment.reference, Q, K, V))
        in alignment.groups
    )


class TestByNumbers:
    """Experts in a list on one side, in one stack on the other: here the three projections."""

    def test_parts_that_are_numbered_make_up_the_one_with_their_statistics(
        self, stacked_trace, numbered_trace
    ):
        alignment = align_traces(stacked_trace, numbered_trace)
        assert (
            FusedGroup(
                find_weights(alignment.target, Q),
                find_weights(alignment.reference, Q, K, V),
                is_numbered=True,
            )
            in alignment.groups
        )

    def test_whichever_side_is_stacked(self, stacked_trace, numbered_trace):
        alignment = align_traces(numbered_trace, stacked_trace)
        parts = find_weights(alignment.target, Q, K, V)
        assert parts in [group.target for group in alignment.groups if group.is_numbered]

    def test_a_number_that_is_missing_leaves_them_separate(self, stacked_trace, numbered_trace):
        incomplete = edit_tensors(
            numbered_trace,
            find_tensors_like(numbered_trace, V, "input.1"),
            parameter="model.layers.1.experts.3.weight",
        )
        alignment = align_traces(stacked_trace, incomplete)
        assert not any(group.is_numbered for group in alignment.groups)

    def test_other_statistics_are_another_tensor(self, stacked_trace, numbered_trace):
        rows = find_tensors_like(numbered_trace, K, "input.1")
        norm = float(numbered_trace.tensors["norm"].iat[rows[0]])
        other = edit_tensors(numbered_trace, rows, norm=1.1 * norm)
        alignment = align_traces(stacked_trace, other)
        assert not any(group.is_numbered for group in alignment.groups)


def test_sizes_that_do_not_add_up_are_no_fusion(named_trace, plain_trace):
    smaller = edit_tensors(named_trace, find_tensors_like(named_trace, Q, "input.1"), size=8192)
    alignment = align_traces(smaller, plain_trace)
    assert not [
        group for group in alignment.groups if find_weights(alignment.target, Q)[0] in group.target
    ]


def test_two_runs_of_the_same_model_have_none(trace, plain_trace):
    assert align_traces(plain_trace, plain_trace).groups == ()
    assert align_traces(trace("ms_mf_none"), trace("pt_none")).groups == ()


def test_no_value_is_in_two_groups(named_trace, plain_trace):
    alignment = align_traces(named_trace, plain_trace)
    members = [value for group in alignment.groups for value in group.reference]
    assert len(members) == len(set(members))


def test_two_weights_of_one_op_may_be_one_kernel_on_the_other_side():
    """A cell with weights for input and state, and one that multiplies both, joined."""
    random = np.random.default_rng(3)
    x, state = random.standard_normal((4, 5)), random.standard_normal((4, 2))
    of_input, of_state = random.standard_normal((8, 5)), random.standard_normal((8, 2))
    kernel = np.concatenate([of_input, of_state], axis=1).T
    gates = np.concatenate([x, state], axis=1) @ kernel
    fused = record_calls(("Functional.linear", (np.concatenate([x, state], axis=1), kernel), gates))
    cell = record_calls(("Functional.cell", (x, state, of_input, of_state), gates))
    fused = edit_tensors(fused, find_tensor(fused, "call.0", "input.1"), parameter="cell.kernel")
    for slot, name in (("input.2", "cell.weight_ih"), ("input.3", "cell.weight_hh")):
        cell = edit_tensors(cell, find_tensor(cell, "call.0", slot), parameter=name)
    alignment = align_traces(fused, cell)
    parts = tuple(find_value(alignment.reference, "call.0", f"input.{n}") for n in (2, 3))
    whole = find_value(alignment.target, "call.0", "input.1")
    assert FusedGroup((whole,), parts) in alignment.groups


def test_the_weights_of_one_module_may_be_one_layer_of_joined_inputs():
    """A layer that reads joined tensors is written as one layer for each of them."""
    random = np.random.default_rng(4)
    inputs = [random.standard_normal((4, n)) for n in (3, 5, 2)]
    weights = [random.standard_normal((6, x.shape[1])) for x in inputs]
    joined_x, joined_weight = np.concatenate(inputs, axis=1), np.concatenate(weights, axis=1)
    parted = record_calls(
        *(("Functional.linear", (x, w), x @ w.T) for x, w in zip(inputs, weights, strict=True))
    )
    joined = record_calls(
        ("Functional.linear", (joined_x, joined_weight), joined_x @ joined_weight.T)
    )
    joined = edit_tensors(
        joined, find_tensor(joined, "call.0", "input.1"), parameter="mlp.0.weight"
    )
    for call, name in enumerate(("reader", "neighbour", "distance")):
        row = find_tensor(parted, f"call.{call}", "input.1")
        parted = edit_tensors(parted, row, parameter=f"mlp.{name}.weight")
    alignment = align_traces(parted, joined)
    parts = tuple(find_value(alignment.target, f"call.{call}", "input.1") for call in range(3))
    whole = find_value(alignment.reference, "call.0", "input.1")
    assert (sorted(parts), (whole,)) in [(sorted(g.target), g.reference) for g in alignment.groups]


def test_the_gradient_of_a_weight_that_is_read_in_slices_is_made_of_those_of_its_slices():
    """One side keeps the last column of a weight as a vector of its own."""
    random = np.random.default_rng(5)
    x, load = random.standard_normal((4, 6)), random.standard_normal((4, 1))
    weight, gradient = random.standard_normal((2, 3, 7))
    matrix, vector = weight[:, :6].copy(), weight[:, 6].copy()
    product = x @ matrix.T
    sliced = record_calls(
        ("slice", (weight,), matrix),
        ("slice", (weight,), vector),
        ("Functional.linear", (x, matrix), product),
        ("Tensor.mul", (load, vector), load * vector),
        ("Tensor.add", (random.standard_normal((3, 7)),), gradient),
    )
    parted = record_calls(
        ("Functional.linear", (x, matrix), product),
        ("Tensor.mul", (load, vector), load * vector),
        ("matrix_grad", (random.standard_normal(3),), gradient[:, :6].copy()),
        ("vector_grad", (random.standard_normal(3),), gradient[:, 6].copy()),
    )
    sliced = edit_tensors(sliced, find_tensor(sliced, "call.0", "input.0"), parameter="query")
    sliced = edit_tensors(sliced, find_tensor(sliced, "call.1", "input.0"), parameter="query")
    for call, name in ((0, "node_query"), (1, "load_query")):
        row = find_tensor(parted, f"call.{call}", "input.1")
        parted = edit_tensors(parted, row, parameter=name)
        row = find_tensor(parted, f"call.{call + 2}", "output.0")
        parted = edit_tensors(parted, row, gradient_of=name)
    alignment = align_traces(mark_backward(sliced, 4), mark_backward(parted, 2))
    whole = find_value(alignment.target, "call.4", "output.0")
    parts = tuple(find_value(alignment.reference, f"call.{call}", "output.0") for call in (2, 3))
    assert FusedGroup((whole,), parts) in alignment.groups
