"""Both dataflow graphs as one."""

import numpy as np
import pytest
from traces import classify_traces, find_op, find_outputs, skip_op, find_value, remove_ops, remove_tensors

from dumpdiff.divergence.joint_graph import _sort_topologically

MATMUL, DIVISION, MASKED = (
    "Torch.matmul.2.forward",
    "Tensor.__truediv__.1.forward",
    "Tensor.__add__.3.forward",
)
PAIRS = [("pt_none", "pt_none"), ("ms_mf_none", "pt_none"), ("ms_graph", "v6.0_api_stack_summary")]


def joined(target, reference):
    return classify_traces(target, reference)[0]


def node(graph, name, slot="output.0"):
    """Node of the target's value in a slot."""
    return int(graph.target_nodes[find_value(graph.comparison.alignment.target, name, slot)])


@pytest.mark.parametrize(("target", "reference"), PAIRS)
class TestEveryPair:
    def test_the_pairs_come_first_in_their_order(self, trace, target, reference):
        graph = joined(trace(target), trace(reference))
        pairs = graph.comparison.pairs
        assert graph.target_classes[: len(pairs)].tolist() == pairs["target"].tolist()
        assert graph.reference_classes[: len(pairs)].tolist() == pairs["reference"].tolist()

    def test_every_class_of_either_side_has_a_node(self, trace, target, reference):
        graph = joined(trace(target), trace(reference))
        for nodes, classes in ((graph.target_nodes, graph.target_classes), (graph.reference_nodes, graph.reference_classes)):
            assert classes[nodes].tolist() == list(range(len(nodes)))

    def test_parents_come_before_their_children(self, trace, target, reference):
        graph = joined(trace(target), trace(reference))
        place = np.argsort(graph.order)
        edges = [
            (parent, child) for child, parents in enumerate(graph.parents) for parent in parents
        ]
        early = sum(place[parent] < place[child] for parent, child in edges)
        assert sorted(graph.order) == list(range(graph.n_nodes))
        assert len(edges) > 300
        assert early == len(edges)

    def test_no_node_is_its_own_parent(self, trace, target, reference):
        graph = joined(trace(target), trace(reference))
        assert all(number not in parents for number, parents in enumerate(graph.parents))


def test_a_value_comes_from_what_its_maker_read(trace):
    graph = joined(trace("pt_none"), trace("pt_none"))
    assert set(graph.parents[node(graph, MASKED)]) == {
        node(graph, DIVISION),
        node(graph, MASKED, "input.1"),
    }


def test_a_gradient_comes_from_the_gradients_of_what_its_value_fed(trace):
    """The residual of layer 2 feeds the norm and the residual after it: autograd adds their gradients unseen."""
    graph = joined(trace("pt_none"), trace("pt_none"))
    parents = graph.parents[node(graph, "Tensor.__add__.7.backward", "input.0")]
    assert parents
    assert {str(graph.phase[parent]) for parent in parents} == {"backward"}


class TestHoles:
    def test_one_recorder_left_is_bridged_by_the_other(self, trace):
        whole = trace("pt_none")
        graph = joined(remove_tensors(whole, find_outputs(whole, DIVISION)), whole)
        assert node(graph, MATMUL) in graph.parents[node(graph, MASKED, "input.0")]
        assert graph.bridges["other side"] == 1 + joined(whole, whole).bridges["other side"]

    def test_both_left_are_bridged_by_what_the_module_was_given(self, trace):
        whole = trace("pt_none")
        cut = remove_tensors(whole, find_outputs(whole, DIVISION))
        graph = joined(cut, cut)
        assert graph.bridges["module call"] > joined(whole, whole).bridges["module call"]
        assert graph.parents[node(graph, MASKED, "input.0")]

    def test_are_counted_by_what_bridged_them(self, trace):
        graph = joined(trace("demo_pytorch"), trace("demo_pytorch"))
        assert graph.bridges["rearranged"] >= 6, (
            "halves of queries and keys, rotated, in three layers"
        )


class TestOneSideAlone:
    def test_a_value_of_the_reference_is_a_node_of_its_own(self, trace):
        whole = trace("pt_none")
        graph = joined(skip_op(whole, DIVISION), whole)
        alone = int(graph.reference_nodes[find_value(graph.comparison.alignment.reference, DIVISION, "output.0")])
        assert alone >= len(graph.comparison.pairs)
        assert (graph.target_classes[alone], str(graph.phase[alone])) == (-1, "forward")

    def test_it_lies_between_values_that_both_have(self, trace):
        whole = trace("pt_none")
        graph = joined(skip_op(whole, DIVISION), whole)
        alone = int(graph.reference_nodes[find_value(graph.comparison.alignment.reference, DIVISION, "output.0")])
        assert graph.parents[alone] == (node(graph, MATMUL),)
        assert set(graph.parents[node(graph, MASKED)]) >= {alone, node(graph, MATMUL)}


class TestOrder:
    def test_parents_first_then_by_place(self):
        parents = [(), (0,), (), (1, 2)]
        assert _sort_topologically(parents, np.array([0.5, 0.6, 0.1, 0.7])) == (2, 0, 1, 3)

    def test_a_circle_of_wrong_pairs_is_broken_at_its_earliest(self):
        parents = [(2,), (0,), (1,), (2,)]
        assert _sort_topologically(parents, np.array([0.3, 0.1, 0.2, 0.9])) == (1, 2, 0, 3)

    def test_nothing_has_no_order(self):
        assert _sort_topologically([], np.array([])) == ()


def test_an_op_that_only_the_target_recorded_stays_in_the_flow(trace):
    whole = trace("pt_none")
    graph = joined(whole, remove_ops(whole, DIVISION))
    assert graph.parents[node(graph, DIVISION)] == (node(graph, MATMUL),)
    assert (
        find_op(whole, DIVISION)
        == graph.comparison.alignment.target.producers[
            find_value(graph.comparison.alignment.target, DIVISION, "output.0")
        ]
    )
