"""New weights and optimizer states: by name in graph dumps, by memory in API dumps."""

import numpy as np
import pytest

from dumpdiff import read
from dumpdiff.graph import build_flow, find_gradients, find_updated_weights, find_updates
from dumpdiff.graph.missing_edges import find_bridge
from dumpdiff.rulebook import load_rules

PARAMETERS = (
    "first.weight", "first.bias", "norm.gamma", "norm.beta", "second.weight", "second.bias",
)  # fmt: skip


@pytest.fixture(scope="module")
def find_named_updates(trace):
    """``find_named_updates("pt_update_adam")``: the flow, and parameter name -> its update."""

    def find(name):
        flow = build_flow(trace(name))
        kinds = [load_rules().resolve_kind(kind) for kind in flow.trace.ops["kind"]]
        updates = find_updates(flow, find_gradients(flow, kinds).by_value)
        names = flow.list_column("parameter")
        return flow, {names[weight]: update for weight, update in updates.items()}

    return find


@pytest.mark.parametrize(
    ("name", "n_weights", "n_states"),
    [("ms_update_adam", 6, 2), ("pt_update_adam", 6, 2), ("pt_update_sgd", 6, 0)],
)
def test_every_weight_has_a_new_value_and_the_states_of_its_rule(
    find_named_updates, name, n_weights, n_states
):
    _, updates = find_named_updates(name)
    assert len(updates) == n_weights
    for weight, update in updates.items():
        # the bias before the batch norm has no gradient but noise: SGD leaves it as it is
        is_unchanged = name == "pt_update_sgd" and weight == "first.bias"
        assert (update.is_unchanged, update.new_weight >= 0) == (is_unchanged, not is_unchanged)
        assert len(update.states) == n_states


def test_what_a_step_computes_belongs_to_the_weight_whose_moments_it_reads(trace):
    flow = build_flow(trace("pt_update_adam"))
    kinds = [load_rules().resolve_kind(kind) for kind in flow.trace.ops["kind"]]
    gradient_of = find_gradients(flow, kinds).by_value
    updates = find_updates(flow, gradient_of)
    weights = find_updated_weights(flow, gradient_of, updates)
    moments = {state: weight for weight, update in updates.items() for state in update.states}
    n_roots = 0
    for op in np.flatnonzero(flow.trace.ops["kind"] == "Tensor.sqrt").tolist():
        for value in set(flow.reads[op]) & set(moments):
            n_roots += 1
            assert [weights[root] for root in flow.writes[op]] == [moments[value]]
    assert n_roots == len(updates)


@pytest.mark.parametrize(
    ("name", "rank"),
    [("pt_variants/attention_written", None), ("data_parallel_ulysses", 0)],
    ids=["clipped", "added up by all_reduce and divided"],
)
def test_the_states_of_a_gradient_that_is_changed_before_the_update_are_found(dump, name, rank):
    """No record shows the product that clipping, or a mean over ranks, leaves in the gradient."""
    archive, _, folder = name.partition("/")
    flow = build_flow(read(dump(archive) / folder, rank=rank))
    kinds = [load_rules().resolve_kind(kind) for kind in flow.trace.ops["kind"]]
    updates = find_updates(flow, find_gradients(flow, kinds).by_value)
    assert updates
    for update in updates.values():
        assert update.new_weight >= 0
        assert len(update.states) == 2


def test_the_states_of_adam_are_its_moments_in_the_order_of_the_op(find_named_updates):
    flow, updates = find_named_updates("ms_update_adam")
    first, second = updates["first.weight"].states
    assert flow.list_column("update_of")[first] == "moment1.first.weight"
    assert flow.list_column("update_of")[second] == "moment2.first.weight"
    assert flow.list_column("min")[second] >= 0 > flow.list_column("min")[first]


def test_pytorchs_update_is_what_the_last_in_place_call_leaves(find_named_updates):
    flow, updates = find_named_updates("pt_update_adam")
    kinds = flow.trace.ops["kind"]
    for update in updates.values():
        producers = [flow.producers[value] for value in (update.new_weight, *update.states)]
        assert [kinds.iat[op] for op in producers] == [
            "Tensor.addcdiv_", "Tensor.lerp_", "Tensor.addcmul_",
        ]  # fmt: skip


def test_a_written_out_update_is_one_too(find_named_updates):
    flow, updates = find_named_updates("ms_update_assign_sub")
    kinds = flow.trace.ops["kind"]
    new_values = [updates[name].new_weight for name in PARAMETERS if name != "first.bias"]
    assert {kinds.iat[flow.producers[value]] for value in new_values} == {"AssignSub"}
    assert updates.get("first.bias") is None or updates["first.bias"].new_weight == -1


def test_what_an_op_overwrites_it_has_read(flow):
    flow = flow("ms_update_adam")
    (adam,) = [op for op, name in enumerate(flow.trace.ops["name"]) if name.endswith("/Adam-op0")]
    parameters = flow.list_column("parameter")
    assert "first.weight" in {parameters[value] for value in flow.reads[adam]}


def test_the_counts_of_steps_of_all_weights_are_one_value(flow):
    flow = flow("pt_update_adam")
    (count,) = flow.counters
    assert flow.list_column("max")[count] == 1
    rows = np.flatnonzero(flow.tensor_class == count)
    assert (flow.trace.ops["kind"].to_numpy()[flow.tensors["op"].to_numpy()[rows]]
            == "Tensor.__iadd__").sum() >= 6  # fmt: skip


def test_the_norm_of_stacked_norms_comes_from_all_of_them(flow):
    flow = flow("pt_update_adam")
    kinds = flow.trace.ops["kind"].tolist()
    last_norm = max(op for op, kind in enumerate(kinds) if kind == "Torch.vector_norm")
    bridge = find_bridge(flow, flow.reads[last_norm][0])
    assert bridge.evidence == "stack"
    assert len(bridge.parents) == 6
    assert {kinds[flow.producers[parent]] for parent in bridge.parents} == {"Torch.vector_norm"}
