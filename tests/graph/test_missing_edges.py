"""Missing edges: which values lack a producer, and what they are bridged to."""

from dataclasses import replace

import numpy as np
import pytest
from traces import (
    edit_tensors,
    find_op,
    find_outputs,
    find_tensor,
    find_value,
    record_calls,
    remove_tensors,
)

from dumpdiff.graph import build_flow
from dumpdiff.graph.missing_edges import (
    find_bridge,
    find_gradient_sums,
    has_missing_producer,
)
from dumpdiff.graph.recent_values import find_repeated_sources

LAYER = ("Functional.softmax.1.forward", "Torch.matmul.2.forward", "Tensor.__truediv__.1.forward")


def list_values_without_producer(flow, phase="forward"):
    values = [value for value in range(len(flow.classes)) if has_missing_producer(flow, value)]
    return [value for value in values if flow.phases[flow.consumers[value][0]] == phase]


def remove_result(trace, name):
    """Return (flow, value) as if the result of an op, the value, had not been recorded."""
    flow = build_flow(remove_tensors(trace, find_outputs(trace, name)))
    (value,) = list_values_without_producer(flow)
    return flow, value


class TestNoMissingProducer:
    @pytest.mark.parametrize("name", ["pt_none", "ms_mf_none"])
    def test_a_complete_forward_record_has_none(self, flow, name):
        """Its weights, its tokens and its mask are read and not produced, but they are inputs."""
        assert list_values_without_producer(flow(name)) == []
        assert (flow(name).producers < 0).sum() > 30

    def test_a_produced_value_has_none(self, flow):
        flow = flow("v6.0_api_stack")
        assert not any(
            has_missing_producer(flow, value)
            for value in np.flatnonzero(flow.producers >= 0).tolist()
        )

    def test_weights_without_a_name_have_none(self, flow):
        flow = flow("v6.0_api_stack")
        weights = {
            int(flow.tensor_class[row])
            for row in np.flatnonzero((flow.tensors["slot"] == "input.1").to_numpy())
            if flow.trace.ops["kind"].iat[flow.tensors["op"].iat[row]] == "Functional.linear"
        } - {-1}
        assert len(weights) == 29
        assert not any(has_missing_producer(flow, value) for value in weights)

    def test_a_table_that_every_layer_reads_has_none(self, trace):
        """As sines of positions are: here the mask, with the numbers of a table."""
        clean_trace = trace("pt_none")
        consumer = "Tensor.__add__.0.forward"
        mask = clean_trace.tensors.iloc[find_tensor(clean_trace, consumer, "input.1")]
        reads = np.flatnonzero(
            (clean_trace.tensors["size"] == mask["size"])
            & (clean_trace.tensors["min"] == mask["min"])
        )
        table = {
            "max": 0.8417,
            "min": -0.9589,
            "mean": 0.1234,
            "norm": 17.321,
            "shape": (1, 32, 32),
        }
        flow = build_flow(edit_tensors(clean_trace, reads.tolist(), **table))
        shared = find_value(flow, consumer, "input.1")
        assert flow.classes["evidence"].iat[shared] == 4
        assert len(flow.consumers[shared]) >= 4
        assert not has_missing_producer(flow, shared)

    def test_there_is_no_bridge_to_values_without_a_missing_producer(self, flow):
        flow = flow("pt_none")
        weight = flow.tensor_class[
            find_tensor(flow.trace, "Functional.linear.7.forward", "input.1")
        ]
        assert find_bridge(flow, int(weight)) is None


class TestInputsOfModuleCalls:
    """A module call is recorded when it returns, but its inputs are there before the ops inside."""

    @staticmethod
    def replace_input(trace, call):
        """Return (flow, value): another tensor as the input of a call, which no op inside reads."""
        clean_trace = trace("pt_none")
        row = find_tensor(clean_trace, call, "input.0")
        statistics = {"max": 2.5, "min": -2.25, "mean": 0.01, "norm": 61.5}
        columns = {"shape": (2, 32, 64), "size": 4096, "dtype": "float32", **statistics}
        flow = build_flow(edit_tensors(clean_trace, row, **columns))
        return flow, find_value(flow, call, "input.0")

    def test_what_the_model_is_given_lacks_no_producer(self, trace):
        flow, value = self.replace_input(trace, "Module.model.LlamaModel.forward.0")
        assert flow.first_reads[value] == 0
        assert flow.consumers[value] == (find_op(flow.trace, "Module.model.LlamaModel.forward.0"),)
        assert not has_missing_producer(flow, value)

    def test_what_a_layer_is_given_was_not_computed_inside(self, trace):
        call = "Module.model.layers.1.self_attn.LlamaAttention.forward.0"
        flow, value = self.replace_input(trace, call)
        assert flow.first_reads[value] == find_op(flow.trace, "Functional.linear.7.forward")
        producers = [flow.producers[parent] for parent in find_bridge(flow, value).parents]
        assert max(producers) < flow.first_reads[value]


def test_what_a_graph_names_as_its_parameter_lacks_no_producer(trace):
    """The batch, or a table: it has no name of a weight, and an op reads it late in the run."""
    clean_trace = trace("ms_graph")
    name = "n.n.layers.1.attention.wq.weight"
    rows = np.flatnonzero(clean_trace.tensors["parameter"] == name).tolist()
    anonymous_trace = edit_tensors(clean_trace, rows, parameter="", shape=(2, 32, 64))
    flow = build_flow(anonymous_trace)
    value = int(flow.tensor_class[rows[0]])
    assert flow.is_given[value]
    assert not has_missing_producer(flow, value)
    flow = build_flow(remove_tensors(anonymous_trace, rows[:1]))
    value = int(flow.tensor_class[rows[1] - 1])
    assert not flow.is_given[value]
    assert has_missing_producer(flow, value)


@pytest.mark.parametrize("name", LAYER)
def test_a_result_that_was_not_recorded_has_a_missing_producer(trace, name):
    flow, value = remove_result(trace("pt_none"), name)
    assert flow.consumers[value][0] == find_op(flow.trace, name) + 1


@pytest.mark.parametrize("name", LAYER)
def test_a_missing_producer_is_bridged_by_the_inputs_of_its_module_call(trace, name):
    flow, value = remove_result(trace("pt_none"), name)
    bridge = find_bridge(flow, value)
    assert bridge.evidence == "module call"
    assert (
        bridge.parents
        == flow.reads[
            find_op(flow.trace, "Module.model.layers.1.self_attn.LlamaAttention.forward.0")
        ]
    )


def test_a_missing_producer_between_modules_is_bridged_by_the_latest_value(trace):
    flow, value = remove_result(trace("pt_none"), "Functional.layer_norm.2.forward")
    bridge = find_bridge(flow, value)
    assert bridge.evidence == "order"
    assert bridge.parents == flow.writes[find_op(flow.trace, "Tensor.__add__.2.forward")]


class TestByValue:
    """Some functions show in the statistics: they identify what the value was computed from."""

    def bridge_scores(self, trace, **statistics):
        """Return the bridge of layer 1's scores with these statistics and no recorded producer."""
        name = "Tensor.__truediv__.1.forward"
        output_rows = find_outputs(trace, name)
        flow = build_flow(trace)
        rows = np.flatnonzero(flow.tensor_class == flow.writes[find_op(trace, name)][0]).tolist()
        changed = edit_tensors(trace, rows, **statistics)
        flow = build_flow(remove_tensors(changed, output_rows))
        (value,) = list_values_without_producer(flow)
        return flow, find_bridge(flow, value)

    def test_halves_rotated_and_negated_have_the_norm_of_the_whole(self, trace):
        clean_trace = trace("pt_none")
        scores = find_tensor(clean_trace, "Torch.matmul.2.forward", "output.0")
        norm = clean_trace.tensors["norm"].iat[scores]
        flow, bridge = self.bridge_scores(
            clean_trace, norm=norm * (1 + 1e-7), max=23.668879, min=-25.751286
        )
        assert bridge.evidence == "rearranged"
        assert bridge.parents == flow.writes[find_op(flow.trace, "Torch.matmul.2.forward")]

    def test_a_cast_has_the_statistics_of_what_was_cast_to_the_roundoff_of_its_type(self, trace):
        clean_trace = trace("pt_none")
        scores = clean_trace.tensors.iloc[
            find_tensor(clean_trace, "Torch.matmul.2.forward", "output.0")
        ]
        statistics = {name: scores[name] * (1 + 2e-3) for name in ("max", "min", "mean", "norm")}
        flow, bridge = self.bridge_scores(clean_trace, dtype="bfloat16", **statistics)
        assert bridge.evidence == "cast"
        assert bridge.parents == flow.writes[find_op(flow.trace, "Torch.matmul.2.forward")]

    def test_a_chunk_shares_an_extreme_with_the_whole(self, trace):
        clean_trace = trace("pt_none")
        scores = clean_trace.tensors.iloc[
            find_tensor(clean_trace, "Torch.matmul.2.forward", "output.0")
        ]
        size = int(scores["size"]) // 2
        flow, bridge = self.bridge_scores(
            clean_trace, size=size, max=scores["max"], min=-20.0, norm=0.7 * scores["norm"]
        )
        assert bridge.evidence == "part"
        assert bridge.parents == flow.writes[find_op(flow.trace, "Torch.matmul.2.forward")]


def test_rotated_halves_of_a_real_dump_are_found(flow):
    """ptdbg_ascend records neither the negation nor the split in ``cat((-x2, x1))``."""
    flow = flow("v6.0_api_stack")
    rotations = [find_op(flow.trace, f"Torch.cat.{number}.forward") for number in range(8)]
    for rotation in rotations:
        (value,) = (value for value in flow.reads[rotation] if has_missing_producer(flow, value))
        bridge = find_bridge(flow, value)
        assert bridge.evidence == "rearranged"
        assert {
            flow.trace.ops["kind"].iat[flow.producers[parent]] for parent in bridge.parents
        } == {"Tensor.__getitem__"}


class TestBackward:
    def test_a_gradient_without_a_producer_comes_from_earlier_gradients(self, flow):
        """A residual adds two gradients: autograd does it, and no recorder sees it."""
        flow = flow("pt_none")
        value = int(
            flow.tensor_class[find_tensor(flow.trace, "Tensor.__add__.7.backward", "input.0")]
        )
        bridge = find_bridge(flow, value)
        phases = flow.classes["phase"].to_numpy()
        assert bridge.parents
        assert all(phases[parent] == "backward" for parent in bridge.parents)

    def test_the_first_gradient_comes_from_nothing(self, flow):
        flow = flow("pt_none")
        seed = int(
            flow.tensor_class[
                find_tensor(flow.trace, "Functional.cross_entropy.0.backward", "input.0")
            ]
        )
        assert find_bridge(flow, seed) is None


@pytest.mark.parametrize(("factor", "is_found"), [(1.0, True), (1.001, False)])
def test_a_tensor_may_repeat_a_recent_one(factor, is_found):
    """Keys of one head serve two: the op that repeats them is not recorded."""
    rng = np.random.default_rng(0)
    keys, weight, scores = (rng.normal(size=shape) for shape in ((3, 4), (4, 4), (6, 6)))
    product = keys @ weight
    repeated = factor * np.concatenate([product, product])
    trace = record_calls(
        ("matmul", [keys, weight], product), ("matmul", [scores, repeated], scores @ repeated)
    )
    flow = build_flow(trace)
    value, source = (
        find_value(flow, *slot) for slot in (("call.1", "input.1"), ("call.0", "output.0"))
    )
    assert find_repeated_sources(flow, [value]) == ({value: source} if is_found else {})


@pytest.mark.parametrize(("shape", "is_term"), [((6, 5), True), ((5, 6), False)])
def test_an_unread_gradient_is_a_term_of_the_sum_that_a_backward_function_is_given(shape, is_term):
    x, gradient, term = np.random.default_rng(4).standard_normal((3, 6, 5))
    total = np.random.default_rng(5).standard_normal(shape)
    slope = np.abs(x).reshape(shape)
    trace = record_calls(
        ("linear", [x / 2], x),
        ("mul", [gradient], term),
        ("abs", [x], slope),
        ("mul", [total, slope], total * slope),
    )
    phases = ["forward", "backward", "backward", "backward"]
    flow = build_flow(replace(trace, ops=trace.ops.assign(phase=phases)))
    expected = (find_value(flow, "call.3", "input.0"),) if is_term else ()
    assert find_gradient_sums(flow, find_value(flow, "call.1", "output.0")) == expected
    assert find_gradient_sums(flow, find_value(flow, "call.2", "output.0")) == ()
