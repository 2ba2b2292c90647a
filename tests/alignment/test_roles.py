"""Ops are paired by position in repeated layers, as learned from layers that agree."""

from types import SimpleNamespace

import numpy as np
import pytest
from traces import find_op, find_value, scale_result, start_matching

from dumpdiff.alignment import anchors, roles

SAME_ROLE = [
    "Functional.linear.7.forward",
    "Functional.linear.14.forward",
]  #: queries of layers 1 and 2
OTHER_ROLE = "Functional.linear.8.forward"  #: keys of layer 1


@pytest.fixture(scope="module")
def labeled_flow(trace):
    """Labels of the ops of the second model, by radius."""
    matching = start_matching(trace("pt_none"), trace("pt_none"))
    names, _ = roles._collect_leaf_names(matching)
    labels = roles._compute_labels(matching.target, matching.kinds_t, names, {})
    return labels, matching.target


class TestLabels:
    @pytest.mark.parametrize("radius", range(roles.RADIUS + 1))
    def test_ops_of_one_role_have_one_label_in_every_layer(self, labeled_flow, radius):
        labels, flow = labeled_flow
        first, second = (labels[radius][find_op(flow.trace, name)] for name in SAME_ROLE)
        assert first == second

    def test_ops_that_read_other_parameters_have_other_labels(self, labeled_flow):
        labels, flow = labeled_flow
        assert (
            labels[0][find_op(flow.trace, SAME_ROLE[0])]
            != labels[0][find_op(flow.trace, OTHER_ROLE)]
        )

    def test_the_first_layer_has_another_role_at_a_larger_radius(self, labeled_flow):
        """It reads the embedding, the others a residual: this shows three hops away."""
        labels, flow = labeled_flow
        first, later = (
            find_op(flow.trace, "Functional.linear.0.forward"),
            find_op(flow.trace, SAME_ROLE[0]),
        )
        assert labels[0][first] == labels[0][later]
        assert labels[3][first] != labels[3][later]

    def test_labels_of_larger_radius_distinguish_more(self, labeled_flow):
        counts = [len(np.unique(label)) for label in labeled_flow[0]]
        assert counts == sorted(counts)
        assert counts[0] < counts[-1]


class TestTransfer:
    def match_diverged_copies(self, trace):
        """Return two copies that diverge after the residual of layer 1, paired by value."""
        clean_trace = trace("pt_none")
        matching = start_matching(
            scale_result(clean_trace, "Tensor.__add__.4.forward", 1.3, and_after=True), clean_trace
        )
        anchors.pair_by_value(matching)
        return matching

    def test_values_are_paired_with_the_same_position_in_the_other_run(self, trace):
        matching = self.match_diverged_copies(trace)
        before = set(matching.evidence)
        assert any(roles.pair_by_role(matching))
        new = [t for t in matching.evidence if t not in before]
        assert len(new) > 20
        assert [int(matching.classes_t[t]) for t in new] == new
        assert {matching.evidence[t] for t in new} == {"role"}

    def test_confidence_grows_with_the_radius(self, trace):
        matching = self.match_diverged_copies(trace)
        list(roles.pair_by_role(matching))
        confidences = {
            matching.confidence[t]
            for t, evidence in matching.evidence.items()
            if evidence == "role"
        }
        assert confidences <= {0.5, 0.55, 0.6, 0.65}

    def test_without_agreement_no_role_is_learned(self, trace):
        matching = start_matching(trace("pt_none"), trace("pt_none"))
        assert not any(roles.pair_by_role(matching))

    @pytest.mark.parametrize(
        ("partners", "partner_roles"), [([7, 7, 7, 7, 8], {5: 7}), ([7, 7, 7, 8, 8], {})]
    )
    def test_a_role_is_learned_if_four_pairs_in_five_agree(self, trace, partners, partner_roles):
        matching = start_matching(trace("pt_none"), trace("pt_none"))
        roles_t, roles_r = (np.zeros(len(matching.classes_t), dtype=np.uint64) for _ in range(2))
        projections = [
            find_value(matching.target, f"Functional.linear.{n}.forward", "output.0")
            for n in (0, 1, 2, 7, 8)
        ]
        for output, partner in zip(projections, partners, strict=True):
            assert matching.pair(output, output, "value", 0.9)
            roles_t[output], roles_r[output] = 5, partner
        open_roles = np.array([5], dtype=np.uint64), np.array([7, 8], dtype=np.uint64)
        learned_roles = roles._learn_roles(matching, roles_t, roles_r, open_roles, 1)
        assert learned_roles == partner_roles

    def test_when_all_is_paired_nothing_is_left_to_transfer(self, trace):
        clean_trace = trace("pt_none")
        matching = start_matching(clean_trace, clean_trace)
        for number in range(len(matching.classes_t)):
            matching.pair(number, number, "value", 1.0)
        assert not any(roles.pair_by_role(matching))

    def test_the_partner_of_an_output_is_the_same_slot(self, trace):
        matching = self.match_diverged_copies(trace)
        list(roles.pair_by_role(matching))
        name = "Functional.silu.3.forward"
        assert matching.classes_t[find_value(matching.target, name, "output.0")] == find_value(
            matching.reference, name, "output.0"
        )


class TestGradientsOfOtherLayers:
    """The target computes gradient 2 from 0 in two steps, the reference 1 from 0 in one."""

    def make_matching(self, partner: int) -> SimpleNamespace:
        """Return the matching in which gradient 0 of the target has a partner, -1 for none."""
        target = SimpleNamespace(
            producers=np.array([-1, 0, 1]), reads=[(0,), (1,)], list_column=self.list_phases
        )
        reference = SimpleNamespace(
            producers=np.array([-1, 0, -1]), reads=[(0,)], list_column=self.list_phases
        )
        partners_r = np.array([-1, -1, -1])
        partners_r[[0, partner]] = 0
        return SimpleNamespace(
            target=target,
            reference=reference,
            classes_t=np.array([partner, -1, -1]),
            classes_r=partners_r,
        )

    def list_phases(self, _name: str) -> list[str]:
        return 3 * ["backward"]

    @pytest.mark.parametrize(("partner", "is_other"), [(0, False), (2, True), (-1, False)])
    def test_gradients_from_other_ones_are_no_partners(self, partner, is_other):
        matching = self.make_matching(partner)
        assert roles._follow_from_other_gradients(matching, 2, 1) == is_other
