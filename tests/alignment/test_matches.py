"""The growing match: what may be paired with what, and what a match teaches."""

import pytest
from traces import start_matching, find_op, find_value

from dumpdiff.alignment import anchors

LINEAR = "Functional.linear.7.forward"


@pytest.fixture
def pairs(trace):
    return start_matching(trace("pt_none"), trace("pt_none"))


class TestValues:
    def test_are_paired_both_ways(self, pairs):
        made = find_value(pairs.target, LINEAR, "output.0")
        assert pairs.pair(made, made, "name", 0.5)
        assert pairs.classes_t[made] == pairs.classes_r[made] == made
        assert (pairs.evidence[made], pairs.confidence[made]) == ("name", 0.5)

    def test_have_one_partner_only(self, pairs):
        made, other = (
            find_value(pairs.target, LINEAR, "output.0"),
            find_value(pairs.target, LINEAR, "input.0"),
        )
        assert pairs.pair(made, made, "value", 1.0)
        assert not pairs.pair(other, made, "value", 1.0)
        assert not pairs.pair(made, other, "value", 1.0)

    def test_of_other_sizes_are_not_the_same(self, pairs):
        scores = find_value(pairs.target, "Torch.matmul.2.forward", "output.0")
        assert not pairs.can_pair(find_value(pairs.target, LINEAR, "output.0"), scores)

    def test_made_in_the_forward_pass_are_no_gradients(self, pairs):
        gradient = find_value(
            pairs.reference, "Module.model.layers.1.mlp.up_proj.Linear.backward.0", "output.0"
        )
        made = find_value(pairs.target, LINEAR, "output.0")
        assert pairs.prints_t.size[made] == pairs.prints_r.size[gradient]
        assert not pairs.can_pair(made, gradient)

    def test_that_nobody_made_may_be_of_any_phase(self, pairs):
        gradient = find_value(
            pairs.reference,
            "Module.model.layers.1.self_attn.q_proj.Linear.parameters_grad.0",
            "output.weight",
        )
        assert pairs.can_pair(find_value(pairs.target, LINEAR, "input.1"), gradient)


class TestOps:
    def test_have_one_partner_only(self, pairs):
        assert pairs.pair_ops(4, 4)
        assert not pairs.pair_ops(4, 6)
        assert not pairs.pair_ops(6, 4)

    def test_can_be_paired_again_with_the_same(self, pairs):
        assert pairs.pair_ops(4, 4)
        assert pairs.pair_ops(4, 4)


def test_pairs_by_value_teach_which_kind_is_which(trace):
    pairs = start_matching(trace("ms_graph"), trace("v6.0_api_stack"), 3e-6)
    anchors.pair_by_value(pairs)
    taught = pairs.count_kind_pairs()
    assert taught["matmul", "matmul"] > 20
    assert ("matmul", "softmax") not in taught


def test_pairs_by_anything_else_teach_nothing(trace, pairs):
    made = find_value(pairs.target, LINEAR, "output.0")
    pairs.pair(made, made, "structure", 0.9)
    assert not pairs.count_kind_pairs()


def test_distance_is_that_of_the_statistics(pairs):
    made = find_value(pairs.target, LINEAR, "output.0")
    assert pairs.compute_distance(made, made) == 0
    assert pairs.compute_distance(made, find_value(pairs.target, LINEAR, "input.0")) > 0.1
    assert find_op(pairs.target.trace, LINEAR) == pairs.producer_t[made]
