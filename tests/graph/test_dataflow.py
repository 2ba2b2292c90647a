"""The dataflow of real dumps: producers, consumers and representatives of values."""

import networkx as nx
import numpy as np
import pytest
from traces import edit_tensors, find_op, find_outputs, find_tensor, find_value, remove_ops

from dumpdiff import read
from dumpdiff.graph import build_flow, mark_shape_reads
from dumpdiff.graph.value_parents import collect_parents
from dumpdiff.rulebook import load_rules

NAMES = ["pt_none", "ms_mf_none", "ms_graph", "v6.0_api_stack_summary", "edge_v6.0_all_filterOFF"]


def list_written(flow, name):
    return flow.writes[find_op(flow.trace, name)]


@pytest.mark.parametrize("name", NAMES)
class TestEveryDump:
    def test_consumers_are_the_inverse_of_reads(self, flow, name):
        flow = flow(name)
        assert {(o, v) for o, reads in enumerate(flow.reads) for v in reads} == {
            (o, v) for v, consumers in enumerate(flow.consumers) for o in consumers
        }

    def test_no_op_writes_what_it_reads(self, flow, name):
        assert all(
            not set(r) & set(w) for r, w in zip(flow(name).reads, flow(name).writes, strict=True)
        )

    def test_what_is_written_has_a_producer_that_writes_it(self, flow, name):
        flow = flow(name)
        for value, producer in enumerate(flow.producers.tolist()):
            assert producer < 0 or value in flow.writes[producer]
        list_written = {value for writes in flow.writes for value in writes}
        assert list_written == set(np.flatnonzero(flow.producers >= 0).tolist())

    def test_classes_are_numbered_as_they_appear(self, flow, name):
        classes = flow(name).tensor_class[flow(name).tensor_class >= 0]
        values, first = np.unique(classes, return_index=True)
        assert values.tolist() == list(range(len(flow(name).classes)))
        assert (np.diff(first) > 0).all()

    def test_every_tensor_belongs_to_its_op(self, flow, name):
        flow = flow(name)
        ops = flow.tensors["op"].to_numpy()
        assert sum(len(flow.get_tensor_ids(o)) for o in range(len(flow.trace.ops))) == len(ops)
        assert all((ops[flow.get_tensor_ids(o)] == o).all() for o in range(len(flow.trace.ops)))

    def test_every_class_is_represented_by_one_of_its_tensors(self, flow, name):
        flow = flow(name)
        assert flow.tensor_class[flow.classes["tensor"]].tolist() == list(range(len(flow.classes)))


def test_statistics_are_enough_to_see_which_tensors_are_one_value(flow):
    clean_trace, summary = flow("v6.0_api_stack"), flow("v6.0_api_stack_summary")
    assert clean_trace.tensor_class.tolist() == summary.tensor_class.tolist()


class TestModuleCalls:
    """A module call repeats what the op inside it read and produced."""

    CALL = "Module.model.layers.1.self_attn.q_proj.Linear.forward.0"
    INSIDE = "Functional.linear.7.forward"

    def test_a_module_call_reads_and_writes_the_values_of_its_ops(self, flow):
        flow = flow("pt_none")
        assert list_written(flow, self.CALL) == list_written(flow, self.INSIDE)
        assert (
            flow.reads[find_op(flow.trace, self.CALL)]
            == flow.reads[find_op(flow.trace, self.INSIDE)]
        )

    def test_the_op_inside_is_the_producer(self, flow):
        flow = flow("pt_none")
        (value,) = list_written(flow, self.CALL)
        assert flow.producers[value] == find_op(flow.trace, self.INSIDE)

    def test_a_module_call_is_the_producer_if_nothing_inside_was_recorded(self, trace):
        flow = build_flow(remove_ops(trace("pt_none"), self.INSIDE))
        (value,) = list_written(flow, self.CALL)
        assert flow.producers[value] == find_op(flow.trace, self.CALL)


class TestUnseenOps:
    """A coupling that cuts its channels in two and joins them again, without a record of either."""

    @pytest.fixture
    def flow(self, dump):
        return build_flow(read(dump("pt_coupling_forms") / "couple_chained"))

    def test_what_a_module_cut_and_passes_on_was_not_computed_by_it(self, flow):
        linear = find_op(flow.trace, "Functional.linear.0.forward")
        kept = next(value for value in flow.reads[linear] if flow.sizes[value] == 2 * 6 * 8)
        assert flow.producers[kept] == -1

    def test_what_a_module_joined_comes_from_what_no_op_inside_reads(self, flow):
        call = find_op(flow.trace, "Module.body.couplings.0.Coupling.forward.0")
        changed = find_value(flow, "Tensor.__mul__.1.forward", "output.0")
        total = find_value(flow, "Tensor.__add__.3.forward", "output.0")
        joined = next(value for value in flow.writes[call] if flow.sizes[value] == 2 * 6 * 16)
        assert not flow.consumers[changed]
        assert changed in collect_parents(flow)[joined]
        assert total not in collect_parents(flow)[joined]


class TestParameters:
    def test_a_value_that_a_module_calls_a_parameter_has_its_name_wherever_it_is_read(self, flow):
        flow = flow("pt_none")
        weight = flow.tensor_class[
            find_tensor(flow.trace, "Functional.linear.7.forward", "input.1")
        ]
        assert flow.classes["parameter"].iat[weight] == "model.layers.1.self_attn.q_proj.weight"
        assert flow.producers[weight] == -1

    def test_gradients_name_their_parameter(self, flow):
        flow = flow("pt_none")
        (gradient,) = list_written(
            flow, "Module.model.layers.1.mlp.up_proj.Linear.parameters_grad.0"
        )
        assert flow.classes["gradient_of"].iat[gradient] == "model.layers.1.mlp.up_proj.weight"
        assert flow.classes["phase"].iat[gradient] == "backward"

    def test_mindspore_writes_parameters_as_ops_but_they_have_no_producer(self, flow):
        flow = flow("ms_graph")
        ops = np.flatnonzero((flow.trace.ops["kind"] == "Parameter").to_numpy())
        assert len(ops) == 41
        assert not any(flow.writes[o] for o in ops)
        assert not np.isin(flow.producers, ops).any()


class TestNothingToTell:
    def test_scalar_arguments_are_no_values(self, flow):
        flow = flow("pt_none")
        epsilon = find_tensor(flow.trace, "Functional.layer_norm.3.forward", "input.4")
        assert flow.tensor_class[epsilon] == -1

    def test_what_a_recorder_gets_wrong_is_no_value(self, flow):
        flow = flow("pt_none")
        untrusted = find_tensor(flow.trace, "Functional.linear.12.backward", "output.0")
        assert not flow.trace.tensors["trusted"].iat[untrusted]
        assert flow.tensor_class[untrusted] == -1


class TestLayoutOps:
    def test_a_transpose_makes_nothing(self, flow):
        flow = flow("ms_graph")
        transposes = np.flatnonzero((flow.trace.ops["kind"] == "Transpose").to_numpy())
        assert len(transposes) == 56
        assert flow.is_layout[transposes].all()

    @pytest.mark.parametrize("kind", ["MatMul", "Mul", "Softmax", "Rsqrt"])
    def test_a_computation_does(self, flow, kind):
        flow = flow("ms_graph")
        ops = np.flatnonzero((flow.trace.ops["kind"] == kind).to_numpy())
        assert len(ops)
        assert not flow.is_layout[ops].any()


class TestGradients:
    def test_what_a_backward_record_was_given_is_the_gradient_of_what_its_call_made(self, flow):
        flow = flow("pt_none")
        (output,) = list_written(flow, "Functional.linear.12.forward")
        gradient = find_tensor(flow.trace, "Functional.linear.12.backward", "input.0")
        assert flow.recorded_gradients[output] == flow.tensor_class[gradient]

    def test_every_linear_layer_has_a_gradient(self, flow):
        flow = flow("pt_none")
        calls = [o for o, kind in enumerate(flow.trace.ops["kind"]) if kind == "Functional.linear"]
        forward = [o for o in calls if flow.phases[o] == "forward"]
        assert len(forward) == 29
        assert all(flow.writes[o][0] in flow.recorded_gradients for o in forward)


class TestChecksums:
    def test_a_value_has_the_checksum_of_every_layout_it_was_recorded_in(self, flow):
        flow = flow("v6.0_api_stack_md5")
        recorded_graph = flow.trace.tensors["hash"].to_numpy()
        rows = np.flatnonzero((recorded_graph != "") & (flow.tensor_class >= 0))
        assert len(rows) > 500
        assert all(recorded_graph[row] in flow.checksums[flow.tensor_class[row]] for row in rows)

    def test_dumps_without_checksums_have_none(self, flow):
        assert not any(flow("pt_none").checksums)


def test_a_value_that_changes_between_write_and_read_is_two_values(trace):
    """As when a recorder writes the input of an op after the op updated it in place."""
    clean_trace = trace("pt_none")
    row = find_tensor(clean_trace, "Functional.softmax.1.forward", "input.0")
    flow = build_flow(
        edit_tensors(clean_trace, row, norm=1.5 * clean_trace.tensors["norm"].iat[row])
    )
    (output_value,) = list_written(flow, "Tensor.__add__.3.forward")
    assert output_value not in flow.reads[find_op(clean_trace, "Functional.softmax.1.forward")]


def test_outputs_of_a_call_are_those_of_the_module_around_it_too(trace):
    """What these tests mean when they remove or scale a result."""
    rows = find_outputs(trace("pt_none"), "Functional.linear.7.forward")
    assert len(rows) == 2


class TestDataflowGraph:
    def test_a_compiled_graph_is_recorded_whole(self, trace):
        recorded_graph = trace("ms_graph").graph
        assert nx.is_directed_acyclic_graph(recorded_graph)
        assert recorded_graph.number_of_nodes() == len(trace("ms_graph").ops)
        (embedding,) = [o for o, kind in recorded_graph.nodes(data="kind") if kind == "Gather"]
        assert len(nx.descendants(recorded_graph, embedding)) > 600, (
            "nearly everything is computed from the embedding"
        )

    def test_equal_values_prove_the_edges_of_an_api_dump(self, trace, flow):
        assert trace("pt_none").graph.number_of_edges() == 0
        inferred_graph = flow("pt_none").graph
        names = dict(inferred_graph.nodes(data="name"))
        embedding, head = (
            next(o for o, name in names.items() if name == call_name) for call_name in CALLS
        )
        assert nx.has_path(inferred_graph, embedding, head)


CALLS = (
    "Functional.embedding.0.forward",
    "Functional.linear.28.forward",
)  #: the first and the last layer of pt_none


def test_no_value_flows_through_an_op_that_reads_only_a_shape(trace):
    """``ones_like(loss)`` starts the backward pass; the loss is not what its ones come from."""
    flow = mark_shape_reads(build_flow(trace("v6.0_api_stack_summary")), load_rules())
    op = flow.trace.ops["name"].tolist().index("Torch.ones_like.0.forward")
    (value,) = flow.reads[op]
    assert flow.operands[op] == ()
    assert op in flow.consumers[value]
    assert op not in flow.users[value]


def test_a_flow_without_such_ops_computes_with_all_that_it_reads(trace):
    flow = mark_shape_reads(build_flow(trace("pt_gpt2")), load_rules())
    assert flow.operands == flow.reads
    assert flow.users == flow.consumers
