"""Fused tensors: one weight for queries, keys and values against three."""

import numpy as np
import pytest
from traces import align_traces, edit_tensors, find_tensors_like, find_outputs, select_ops, find_tensor, find_value, remove_ops

from dumpdiff.alignment import FusedGroup

Q, K, V = (f"Functional.linear.{number}.forward" for number in (7, 8, 9))
MODULE = "Module.model.layers.1.self_attn.{}_proj.Linear.{}"
NUMBERS = ("max", "min", "mean", "norm")


def together(trace, slot):
    """Statistics of the tensors in a slot of the three projections, taken as one."""
    rows = trace.tensors.iloc[[find_tensor(trace, name, slot) for name in (Q, K, V)]]
    norm = float(np.sqrt((rows["norm"] ** 2).sum()))
    return {
        "max": rows["max"].max(),
        "min": rows["min"].min(),
        "mean": rows["mean"].mean(),
        "norm": norm,
    }


def fused(trace, parameter=""):
    """Layer 1 as if one call with one weight projected to queries, keys and values; the split is not recorded."""
    weight, output = find_tensors_like(trace, Q, "input.1"), find_outputs(trace, Q)
    size = 3 * int(trace.tensors["size"].iat[weight[0]])
    changed = edit_tensors(trace, weight, size=size, parameter=parameter, **together(trace, "input.1"))
    changed = edit_tensors(changed, output, size=size, **together(trace, "output.0"))
    modules = [
        MODULE.format(which, end) for which in "kv" for end in ("forward.0", "parameters_grad.0")
    ]
    return remove_ops(changed, K, V, MODULE.format("q", "parameters_grad.0"), *modules)


def weights(flow, *names):
    return tuple(find_value(flow, name, "input.1") for name in names)


@pytest.fixture(scope="module")
def plain(trace):
    """Without the optimizer, which reads and updates every weight on its own."""
    whole = trace("pt_none")
    return select_ops(whole, np.flatnonzero(whole.ops["phase"] != "optimizer").tolist())


@pytest.fixture(scope="module")
def named(plain):
    return fused(plain, "model.layers.1.self_attn.qkv_proj.weight")


@pytest.fixture(scope="module")
def nameless(plain):
    return fused(plain)


class TestByName:
    def test_the_parts_of_a_fused_parameter_are_known_by_the_rules(self, named, plain):
        found = align_traces(named, plain)
        assert FusedGroup(weights(found.target, Q), weights(found.reference, Q, K, V)) in found.groups

    def test_whichever_side_is_fused(self, named, plain):
        found = align_traces(plain, named)
        assert FusedGroup(weights(found.target, Q, K, V), weights(found.reference, Q)) in found.groups


def test_without_a_name_it_is_what_is_read_beside_the_same_value(nameless, plain):
    found = align_traces(nameless, plain)
    assert FusedGroup(weights(found.target, Q), weights(found.reference, Q, K, V)) in found.groups


def test_sizes_that_do_not_add_up_are_no_fusion(named, plain):
    smaller = edit_tensors(named, find_tensors_like(named, Q, "input.1"), size=8192)
    found = align_traces(smaller, plain)
    assert not [group for group in found.groups if weights(found.target, Q)[0] in group.target]


def test_two_runs_of_the_same_model_have_none(trace, plain):
    assert align_traces(plain, plain).groups == ()
    assert align_traces(trace("ms_mf_none"), trace("pt_none")).groups == ()


def test_no_value_is_in_two_groups(named, plain):
    found = align_traces(named, plain)
    members = [value for group in found.groups for value in group.reference]
    assert len(members) == len(set(members))
