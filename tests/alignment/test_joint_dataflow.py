"""The dataflow of both sides, joined along the pairs of an alignment."""

import numpy as np
from traces import align_traces, remove_ops

from dumpdiff.alignment.joint_dataflow import _move_forward_first, _sort_topologically
from dumpdiff.model.int_lists import IntLists


def sort_nodes(parents, positions):
    places = np.array(positions)
    return _sort_topologically(IntLists.from_lists(parents), places, places).tolist()


class TestOrder:
    def test_parents_first_then_by_place(self):
        parents = [(), (0,), (), (1, 2)]
        assert sort_nodes(parents, [0.5, 0.6, 0.1, 0.7]) == [2, 0, 1, 3]

    def test_a_cycle_of_wrong_pairs_is_broken_at_its_earliest(self):
        parents = [(2,), (0,), (1,), (2,)]
        assert sort_nodes(parents, [0.3, 0.1, 0.2, 0.9]) == [1, 2, 0, 3]

    def test_the_forward_pass_comes_before_the_gradients(self):
        """The first gradient has no parents, and a cycle keeps forward values waiting."""
        phase = np.array(["backward", "forward", "forward", "backward", "forward"], dtype=object)
        parents = IntLists.from_lists([(), (2,), (1,), (0,), (3,)])
        order = _move_forward_first(np.array([0, 3, 4, 1, 2]), parents, phase)
        assert order.tolist() == [1, 2, 0, 3, 4]

    def test_nothing_has_no_order(self):
        assert sort_nodes([], []) == []


def count_pairs(alignment):
    return len(alignment.classes) + len(alignment.slot_pairs) + len(alignment.groups)


class TestDifferences:
    def test_without_differences_nothing_changes(self, trace):
        alignment = align_traces(trace("ms_mf_none"), trace("pt_none"))
        dataflow = alignment.joint_dataflow
        agrees = np.ones(count_pairs(alignment), dtype=bool)
        assert dataflow.add_differences(agrees) is dataflow

    def test_differences_add_edges_and_take_none(self, trace):
        """A value that no recorded op reads may lead to one that none wrote, if both differ."""
        without_product = remove_ops(trace("pt_none"), "Torch.matmul.1.forward")
        alignment = align_traces(without_product, without_product)
        dataflow = alignment.joint_dataflow
        changed = dataflow.add_differences(np.zeros(count_pairs(alignment), dtype=bool))
        assert sorted(changed.order) == sorted(dataflow.order)
        n_more = 0
        for parents, changed_parents in zip(dataflow.parents, changed.parents, strict=True):
            assert set(parents) <= set(changed_parents)
            n_more += len(changed_parents) - len(parents)
        assert n_more == 1
