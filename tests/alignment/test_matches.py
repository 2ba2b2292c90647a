"""The matching: what can be paired with what, and what the pairs teach."""

import numpy as np
import pytest
from traces import find_op, find_value, start_matching

from dumpdiff.alignment import anchors

LINEAR = "Functional.linear.7.forward"


@pytest.fixture
def matching(trace):
    return start_matching(trace("pt_none"), trace("pt_none"))


class TestValues:
    def test_a_pair_of_values_is_known_from_both_sides(self, matching):
        output = find_value(matching.target, LINEAR, "output.0")
        assert matching.pair(output, output, "name", 0.5)
        assert matching.classes_t[output] == matching.classes_r[output] == output
        assert (matching.evidence[output], matching.confidence[output]) == ("name", 0.5)

    def test_a_value_has_one_partner_only(self, matching):
        output, input_value = (
            find_value(matching.target, LINEAR, "output.0"),
            find_value(matching.target, LINEAR, "input.0"),
        )
        assert matching.pair(output, output, "value", 1.0)
        assert not matching.pair(input_value, output, "value", 1.0)
        assert not matching.pair(output, input_value, "value", 1.0)

    def test_values_of_different_sizes_cannot_be_paired(self, matching):
        scores = find_value(matching.target, "Torch.matmul.2.forward", "output.0")
        assert not matching.can_pair(find_value(matching.target, LINEAR, "output.0"), scores)

    def test_values_of_the_forward_pass_cannot_be_paired_with_gradients(self, matching):
        gradient = find_value(
            matching.reference, "Module.model.layers.1.mlp.up_proj.Linear.backward.0", "output.0"
        )
        output = find_value(matching.target, LINEAR, "output.0")
        assert matching.prints_t.size[output] == matching.prints_r.size[gradient]
        assert not matching.can_pair(output, gradient)

    def test_without_a_producer_may_be_of_any_phase(self, matching):
        gradient = find_value(
            matching.reference,
            "Module.model.layers.1.self_attn.q_proj.Linear.parameters_grad.0",
            "output.weight",
        )
        assert matching.can_pair(find_value(matching.target, LINEAR, "input.1"), gradient)


class TestOps:
    def test_an_op_has_one_partner_only(self, matching):
        assert matching.pair_ops(4, 4)
        assert not matching.pair_ops(4, 6)
        assert not matching.pair_ops(6, 4)

    def test_an_op_can_be_paired_again_with_the_same_op(self, matching):
        assert matching.pair_ops(4, 4)
        assert matching.pair_ops(4, 4)


def test_pairs_of_ops_are_made_one_after_the_other(trace):
    """A pair that an earlier one excludes excludes no later one."""
    pairs = [(1, 1), (1, 2), (3, 2), (4, 4), (5, 4), (5, 6), (7, 7), (7, 7)]
    matchings = [start_matching(trace("pt_none"), trace("pt_none")) for _ in range(2)]
    for t, r in pairs:
        matchings[0].pair_ops(t, r)
    matchings[1].pair_all_ops(*np.array(pairs).T)
    for matching in matchings:
        paired = np.flatnonzero(matching.ops_t >= 0)
        assert dict(zip(paired.tolist(), matching.ops_t[paired].tolist(), strict=True)) == {
            1: 1, 3: 2, 4: 4, 5: 6, 7: 7
        }  # fmt: skip


def test_pairs_by_value_teach_equivalent_kinds(trace):
    matching = start_matching(trace("ms_graph"), trace("v6.0_api_stack"), 3e-6)
    anchors.pair_by_value(matching)
    kind_counts = matching.count_kind_pairs()
    assert kind_counts["matmul", "matmul"] > 20
    assert ("matmul", "softmax") not in kind_counts


def test_gradients_teach_nothing_about_forward_ops_but_about_modules(trace):
    """Equal gradients pass through a sum and a difference alike."""
    matching = start_matching(trace("ms_mf_none"), trace("pt_none"))
    anchors.pair_by_value(matching)
    with_gradients = matching.count_kind_pairs()
    without_gradients = matching.count_kind_pairs(with_gradients=False)
    assert (with_gradients["matmul", "matmul"], without_gradients["matmul", "matmul"]) == (66, 46)
    assert (with_gradients["mul", "div"], without_gradients["mul", "div"]) == (8, 4)
    assert without_gradients["mfattention", "llamaattention"] == 4


@pytest.mark.parametrize("with_gradients", [True, False])
def test_what_pairs_teach_does_not_depend_on_the_direction(trace, with_gradients):
    """Graph mode records the gradients of ops, PyTorch those of modules."""
    traces = trace("ms_gpt2"), trace("pt_gpt2")
    counts = []
    for target, reference in (traces, traces[::-1]):
        matching = start_matching(target, reference)
        anchors.pair_by_value(matching)
        counts.append(matching.count_kind_pairs(with_gradients=with_gradients))
    assert counts[1] == {kinds[::-1]: count for kinds, count in counts[0].items()}


def test_pairs_by_anything_else_teach_nothing(trace, matching):
    output = find_value(matching.target, LINEAR, "output.0")
    matching.pair(output, output, "structure", 0.9)
    assert not matching.count_kind_pairs()


def test_distance_is_that_of_the_statistics(matching):
    output = find_value(matching.target, LINEAR, "output.0")
    assert matching.compute_distance(output, output) == 0
    assert matching.compute_distance(output, find_value(matching.target, LINEAR, "input.0")) > 0.1
    assert find_op(matching.target.trace, LINEAR) == matching.producer_t[output]
