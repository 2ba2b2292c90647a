"""Both dataflow graphs as one."""

import numpy as np
import pytest
from traces import (
    classify_traces,
    find_op,
    find_outputs,
    find_value,
    remove_ops,
    remove_tensors,
    skip_op,
)

MATMUL, DIVISION, MASKED = (
    "Torch.matmul.2.forward",
    "Tensor.__truediv__.1.forward",
    "Tensor.__add__.3.forward",
)
PAIRS = [("pt_none", "pt_none"), ("ms_mf_none", "pt_none"), ("ms_graph", "v6.0_api_stack_summary")]


def build_graph(target, reference):
    return classify_traces(target, reference)[0]


def find_node(graph, name, slot="output.0"):
    """Node of the target's value in a slot."""
    return int(graph.target_nodes[find_value(graph.comparison.alignment.target, name, slot)])


@pytest.mark.parametrize(("target", "reference"), PAIRS)
class TestEveryPair:
    def test_the_pairs_come_first_in_their_order(self, trace, target, reference):
        graph = build_graph(trace(target), trace(reference))
        pairs = graph.comparison.pairs
        assert graph.target_classes[: len(pairs)].tolist() == pairs["target"].tolist()
        assert graph.reference_classes[: len(pairs)].tolist() == pairs["reference"].tolist()

    def test_every_class_of_either_side_has_a_node(self, trace, target, reference):
        graph = build_graph(trace(target), trace(reference))
        for nodes, classes in (
            (graph.target_nodes, graph.target_classes),
            (graph.reference_nodes, graph.reference_classes),
        ):
            assert classes[nodes].tolist() == list(range(len(nodes)))

    def test_parents_come_before_their_children(self, trace, target, reference):
        graph = build_graph(trace(target), trace(reference))
        place = np.argsort(graph.order)
        edges = [
            (parent, child) for child, parents in enumerate(graph.parents) for parent in parents
        ]
        early = sum(place[parent] < place[child] for parent, child in edges)
        assert sorted(graph.order) == list(range(graph.n_nodes))
        assert len(edges) > 300
        assert early == len(edges)

    def test_no_node_is_its_own_parent(self, trace, target, reference):
        graph = build_graph(trace(target), trace(reference))
        assert all(number not in parents for number, parents in enumerate(graph.parents))


def test_a_value_comes_from_what_its_producer_read(trace):
    graph = build_graph(trace("pt_none"), trace("pt_none"))
    assert set(graph.parents[find_node(graph, MASKED)]) == {
        find_node(graph, DIVISION),
        find_node(graph, MASKED, "input.1"),
    }


def test_a_gradient_comes_from_the_gradients_of_what_its_value_fed(trace):
    """Layer 2's residual feeds a norm and the next residual: autograd adds their gradients."""
    graph = build_graph(trace("pt_none"), trace("pt_none"))
    parents = graph.parents[find_node(graph, "Tensor.__add__.7.backward", "input.0")]
    assert parents
    assert {str(graph.phase[parent]) for parent in parents} == {"backward"}


class TestMissingEdges:
    def test_missing_edges_of_one_recorder_are_bridged_by_the_other(self, trace):
        clean_trace = trace("pt_none")
        graph = build_graph(
            remove_tensors(clean_trace, find_outputs(clean_trace, DIVISION)), clean_trace
        )
        assert find_node(graph, MATMUL) in graph.parents[find_node(graph, MASKED, "input.0")]
        assert (
            graph.bridges["other side"]
            == 1 + build_graph(clean_trace, clean_trace).bridges["other side"]
        )

    def test_missing_edges_of_both_recorders_are_bridged_by_the_inputs_of_the_module(self, trace):
        clean_trace = trace("pt_none")
        cut = remove_tensors(clean_trace, find_outputs(clean_trace, DIVISION))
        graph = build_graph(cut, cut)
        assert (
            graph.bridges["module call"]
            > build_graph(clean_trace, clean_trace).bridges["module call"]
        )
        assert graph.parents[find_node(graph, MASKED, "input.0")]

    def test_bridged_edges_are_counted_by_evidence(self, trace):
        graph = build_graph(trace("demo_pytorch"), trace("demo_pytorch"))
        assert graph.bridges["rearranged"] >= 6, (
            "halves of queries and keys, rotated, in three layers"
        )


class TestUnpairedValues:
    def test_a_value_of_the_reference_is_a_node_of_its_own(self, trace):
        clean_trace = trace("pt_none")
        graph = build_graph(skip_op(clean_trace, DIVISION), clean_trace)
        unpaired_node = int(
            graph.reference_nodes[
                find_value(graph.comparison.alignment.reference, DIVISION, "output.0")
            ]
        )
        assert unpaired_node >= len(graph.comparison.pairs)
        assert (graph.target_classes[unpaired_node], str(graph.phase[unpaired_node])) == (
            -1,
            "forward",
        )

    def test_an_unpaired_value_lies_between_values_that_both_sides_have(self, trace):
        clean_trace = trace("pt_none")
        graph = build_graph(skip_op(clean_trace, DIVISION), clean_trace)
        unpaired_node = int(
            graph.reference_nodes[
                find_value(graph.comparison.alignment.reference, DIVISION, "output.0")
            ]
        )
        assert graph.parents[unpaired_node] == (find_node(graph, MATMUL),)
        assert set(graph.parents[find_node(graph, MASKED)]) >= {
            unpaired_node,
            find_node(graph, MATMUL),
        }


def test_an_op_that_only_the_target_recorded_stays_in_the_flow(trace):
    clean_trace = trace("pt_none")
    graph = build_graph(clean_trace, remove_ops(clean_trace, DIVISION))
    assert graph.parents[find_node(graph, DIVISION)] == (find_node(graph, MATMUL),)
    assert (
        find_op(clean_trace, DIVISION)
        == graph.comparison.alignment.target.producers[
            find_value(graph.comparison.alignment.target, DIVISION, "output.0")
        ]
    )


def test_the_dataflow_is_joined_again_only_if_other_pairs_agree(trace):
    comparison = build_graph(trace("ms_mf_none"), trace("pt_none")).comparison
    dataflow = comparison.join_dataflow()
    assert comparison.join_dataflow() is dataflow
    comparison.pairs["agrees"] = ~comparison.pairs["agrees"]
    assert comparison.join_dataflow() is not dataflow


def test_lists_of_parents_and_children_are_those_of_the_edges(trace):
    graph = build_graph(trace("pt_none"), trace("pt_none"))
    parents, children = graph.edges
    for node in range(graph.n_nodes):
        assert list(graph.parents[node]) == parents[children == node].tolist()
        assert list(graph.children[node]) == children[parents == node].tolist()


def test_chosen_nodes_are_sorted_parents_first(trace):
    graph = build_graph(trace("pt_none"), trace("pt_none"))
    is_chosen = np.arange(graph.n_nodes) % 3 == 0
    assert graph.sort_nodes(is_chosen) == [node for node in graph.order if is_chosen[node]]
