"""A network repeats itself: what one layer taught holds in the others."""

import numpy as np
import pytest
from traces import start_matching, find_op, scale_result, find_value

from dumpdiff.alignment import anchors, roles

SAME_ROLE = [
    "Functional.linear.7.forward",
    "Functional.linear.14.forward",
]  #: queries of layers 1 and 2
OTHER_ROLE = "Functional.linear.8.forward"  #: keys of layer 1


@pytest.fixture(scope="module")
def labels(trace):
    """Labels of the ops of the second model, by radius."""
    pairs = start_matching(trace("pt_none"), trace("pt_none"))
    names, _ = roles._collect_leaf_names(pairs)
    return roles._compute_labels(pairs.target, pairs.kinds_t, names), pairs.target


class TestLabels:
    @pytest.mark.parametrize("radius", range(roles.RADIUS + 1))
    def test_ops_of_one_role_have_one_label_in_every_layer(self, labels, radius):
        found, flow = labels
        first, second = (found[radius][find_op(flow.trace, name)] for name in SAME_ROLE)
        assert first == second

    def test_ops_that_read_other_parameters_have_other_labels(self, labels):
        found, flow = labels
        assert found[0][find_op(flow.trace, SAME_ROLE[0])] != found[0][find_op(flow.trace, OTHER_ROLE)]

    def test_the_first_layer_is_another_role_farther_out(self, labels):
        """It reads the embedding, the others a residual: three hops away that shows."""
        found, flow = labels
        first, later = find_op(flow.trace, "Functional.linear.0.forward"), find_op(flow.trace, SAME_ROLE[0])
        assert found[0][first] == found[0][later]
        assert found[3][first] != found[3][later]

    def test_farther_labels_tell_more_apart(self, labels):
        counts = [len(np.unique(label)) for label in labels[0]]
        assert counts == sorted(counts)
        assert counts[0] < counts[-1]


class TestTransfer:
    def cut(self, trace):
        """Two copies that part after the residual of layer 1, paired by value where they agree."""
        whole = trace("pt_none")
        pairs = start_matching(scale_result(whole, "Tensor.__add__.4.forward", 1.3, and_after=True), whole)
        anchors.pair_by_value(pairs)
        return pairs

    def test_values_are_paired_with_the_same_place_of_the_other_run(self, trace):
        pairs = self.cut(trace)
        before = set(pairs.evidence)
        assert any(roles.pair_by_role(pairs))
        new = [t for t in pairs.evidence if t not in before]
        assert len(new) > 20
        assert [int(pairs.classes_t[t]) for t in new] == new
        assert {pairs.evidence[t] for t in new} == {"role"}

    def test_roles_seen_from_farther_are_surer(self, trace):
        pairs = self.cut(trace)
        list(roles.pair_by_role(pairs))
        confidences = {pairs.confidence[t] for t, why in pairs.evidence.items() if why == "role"}
        assert confidences <= {0.5, 0.55, 0.6, 0.65}

    def test_without_agreement_nothing_is_taught(self, trace):
        pairs = start_matching(trace("pt_none"), trace("pt_none"))
        assert not any(roles.pair_by_role(pairs))

    @pytest.mark.parametrize(
        ("partners", "taught"), [([7, 7, 7, 7, 8], {5: 7}), ([7, 7, 7, 8, 8], {})]
    )
    def test_a_role_is_taught_by_four_pairs_in_five(self, trace, partners, taught):
        pairs = start_matching(trace("pt_none"), trace("pt_none"))
        roles_t, roles_r = (np.zeros(len(pairs.classes_t), dtype=np.uint64) for _ in range(2))
        projections = [
            find_value(pairs.target, f"Functional.linear.{n}.forward", "output.0")
            for n in (0, 1, 2, 7, 8)
        ]
        for made, partner in zip(projections, partners, strict=True):
            assert pairs.pair(made, made, "value", 0.9)
            roles_t[made], roles_r[made] = 5, partner
        assert roles._learn_roles(pairs, roles_t, roles_r, {5}, 1) == taught

    def test_when_all_is_paired_nothing_is_left_to_transfer(self, trace):
        whole = trace("pt_none")
        pairs = start_matching(whole, whole)
        for number in range(len(pairs.classes_t)):
            pairs.pair(number, number, "value", 1.0)
        assert not any(roles.pair_by_role(pairs))

    def test_the_partner_is_the_same_slot(self, trace):
        pairs = self.cut(trace)
        list(roles.pair_by_role(pairs))
        name = "Functional.silu.3.forward"
        assert pairs.classes_t[find_value(pairs.target, name, "output.0")] == find_value(
            pairs.reference, name, "output.0"
        )
