"""Pairs that stand on their own: by value, by checksum, by name, by nearness, by a common factor."""

from dataclasses import replace

import numpy as np
import pytest
from traces import edit_tensors, find_tensors_like, start_matching, find_op, find_outputs, scale_result, load_shipped_rules, find_tensor, find_value, add_noise

from dumpdiff.alignment import anchors

RESIDUAL = "Tensor.__add__.4.forward"


def partner(pairs, name, slot="output.0"):
    """Class of the reference that the target's value was paired with, -1 if none."""
    return int(pairs.classes_t[find_value(pairs.target, name, slot)])


class TestByValue:
    def test_what_only_one_value_of_each_side_is_near_to_is_the_same(self, trace):
        whole = trace("pt_none")
        pairs = start_matching(whole, whole)
        anchors.pair_by_value(pairs)
        paired = np.flatnonzero(pairs.classes_t >= 0)
        assert len(paired) > 0.9 * len(pairs.classes_t)
        assert (pairs.classes_t[paired] == paired).all()

    def test_a_value_that_differs_beyond_the_tolerance_stays_alone(self, trace):
        whole = trace("pt_none")
        pairs = start_matching(scale_result(whole, RESIDUAL, 1.001), whole)
        anchors.pair_by_value(pairs)
        assert partner(pairs, RESIDUAL) == -1

    def test_two_values_that_could_be_the_same_both_stay_alone(self, trace):
        """As when two layers start from equal weights."""
        whole = trace("pt_none")
        weights = [
            find_value(start_matching(whole, whole).target, f"Functional.linear.{n}.forward", "input.1")
            for n in (0, 7)
        ]
        first = whole.tensors.iloc[find_tensor(whole, "Functional.linear.0.forward", "input.1")]
        other = find_tensors_like(whole, "Functional.linear.7.forward", "input.1")
        twins = edit_tensors(
            whole,
            other,
            **{name: first[name] * (1 + 2e-6) for name in ("max", "min", "mean", "norm")},
        )
        pairs = start_matching(twins, twins)
        found = anchors.pair_by_value(pairs)
        assert pairs.classes_t[weights].tolist() == [-1, -1]
        choices = set(zip(found.target.tolist(), found.reference.tolist(), strict=True))
        assert {(a, b) for a in weights for b in weights} <= choices, "a later stage has to choose"

    def test_all_ones_say_nothing(self, trace):
        whole = trace("pt_none")
        norm = find_tensors_like(whole, "Functional.layer_norm.3.forward", "input.2")
        ones = edit_tensors(whole, norm, max=1.0, min=1.0, mean=1.0, norm=8.0)
        pairs = start_matching(ones, ones)
        anchors.pair_by_value(pairs)
        assert partner(pairs, "Functional.layer_norm.3.forward", "input.2") == -1


class TestByChecksum:
    def test_equal_checksums_of_equal_sizes_are_equal_values(self, trace):
        sums = trace("v6.0_api_stack_md5")
        pairs = start_matching(sums, sums)
        anchors.pair_by_checksum(pairs)
        paired = np.flatnonzero(pairs.classes_t >= 0)
        assert len(paired) > 100
        assert (pairs.classes_t[paired] == paired).all()
        assert {pairs.evidence[t] for t in paired.tolist()} == {"value"}

    def test_without_checksums_there_are_no_such_pairs(self, trace):
        pairs = start_matching(trace("pt_none"), trace("pt_none"))
        anchors.pair_by_checksum(pairs)
        assert (pairs.classes_t < 0).all()


class TestByParameterName:
    def test_parameters_of_one_canonical_name_are_one_across_frameworks(self, trace):
        pairs = start_matching(trace("ms_mf_none"), trace("pt_none"))
        anchors.pair_by_parameter_name(pairs, load_shipped_rules())
        names_t, names_r = (
            flow.classes["parameter"].to_numpy() for flow in (pairs.target, pairs.reference)
        )
        found = {
            names_t[t]: names_r[r]
            for t, r in enumerate(pairs.classes_t.tolist())
            if r >= 0 and names_t[t]
        }
        assert (
            found["model.layers.1.feed_forward.w1.weight"] == "model.layers.1.mlp.gate_proj.weight"
        )
        assert len(found) == sum(names_r != "")

    def test_their_values_do_not_matter(self, trace):
        whole = trace("pt_none")
        weight = find_tensors_like(whole, "Functional.linear.7.forward", "input.1")
        pairs = start_matching(edit_tensors(whole, weight, max=9.0, norm=300.0), whole)
        anchors.pair_by_parameter_name(pairs, load_shipped_rules())
        assert partner(pairs, "Functional.linear.7.forward", "input.1") == find_value(
            pairs.reference, "Functional.linear.7.forward", "input.1"
        )

    def test_gradients_are_paired_by_the_name_of_their_parameter(self, trace):
        gradient = "Module.model.layers.1.mlp.up_proj.Linear.parameters_grad.0"
        whole = trace("pt_none")
        pairs = start_matching(edit_tensors(whole, find_outputs(whole, gradient), norm=1.0), whole)
        anchors.pair_by_parameter_name(pairs, load_shipped_rules())
        assert partner(pairs, gradient, "output.weight") == find_value(
            pairs.reference, gradient, "output.weight"
        )

    def test_parameters_of_other_sizes_are_not_paired(self, trace):
        whole = trace("pt_none")
        weight = find_tensors_like(whole, "Functional.linear.7.forward", "input.1")
        pairs = start_matching(edit_tensors(whole, weight, size=8192), whole)
        anchors.pair_by_parameter_name(pairs, load_shipped_rules())
        assert partner(pairs, "Functional.linear.7.forward", "input.1") == -1


class TestBySupport:
    def test_of_two_that_look_the_same_the_one_among_paired_neighbours_is_taken(self, trace):
        whole = trace("pt_none")
        twins = whole
        like_first = whole.tensors.iloc[find_tensor(whole, "Functional.linear.4.forward", "output.0")]
        rows = find_tensors_like(whole, "Functional.linear.11.forward", "output.0")
        twins = edit_tensors(
            twins,
            rows,
            **{name: like_first[name] * (1 + 2e-6) for name in ("max", "min", "mean", "norm")},
        )
        pairs = start_matching(twins, twins)
        found = anchors.pair_by_value(pairs)
        assert partner(pairs, "Functional.linear.11.forward") == -1
        assert anchors.pair_by_support(pairs, found)
        for name in ("Functional.linear.4.forward", "Functional.linear.11.forward"):
            assert partner(pairs, name) == find_value(pairs.reference, name, "output.0")

    def test_nothing_is_done_twice(self, trace):
        pairs = start_matching(trace("pt_none"), trace("pt_none"))
        found = anchors.pair_by_value(pairs)
        while anchors.pair_by_support(pairs, found):
            pass
        assert not anchors.pair_by_support(pairs, found)


class TestByNearness:
    @pytest.mark.parametrize("factor", [1.001, 1.04])
    def test_a_small_divergence_is_paired_with_what_it_is_nearest_to(self, trace, factor):
        whole = trace("pt_none")
        pairs = start_matching(scale_result(whole, RESIDUAL, factor), whole)
        anchors.pair_by_value(pairs)
        assert anchors.pair_by_near_value(pairs, True)
        assert partner(pairs, RESIDUAL) == find_value(pairs.reference, RESIDUAL, "output.0")
        assert pairs.evidence[find_value(pairs.target, RESIDUAL, "output.0")] == "near value"

    def test_a_large_one_is_not(self, trace):
        whole = trace("pt_none")
        pairs = start_matching(scale_result(whole, RESIDUAL, 1.3), whole)
        anchors.pair_by_value(pairs)
        anchors.pair_by_near_value(pairs, True)
        assert partner(pairs, RESIDUAL) == -1


class TestByACommonFactor:
    def gradients_scaled(self, trace, factor, least=0):
        flow = start_matching(trace, trace).target
        made = (flow.classes["phase"] == "backward").to_numpy()
        rows = np.flatnonzero((flow.tensor_class >= least) & made[np.maximum(flow.tensor_class, 0)])
        tensors = trace.tensors.copy()
        numbers = ["max", "min", "mean", "norm"]
        tensors.loc[rows, numbers] = tensors.loc[rows, numbers] * factor
        return replace(trace, tensors=tensors), len(set(flow.tensor_class[rows].tolist()))

    def test_gradients_of_a_loss_that_was_scaled_are_paired(self, trace):
        whole = trace("pt_none")
        loss_scaled, gradients = self.gradients_scaled(whole, 1024.0)
        pairs = start_matching(loss_scaled, whole)
        anchors.pair_by_value(pairs)
        assert anchors.pair_by_scaled_value(pairs)
        paired = [t for t, why in pairs.evidence.items() if why == "scaled value"]
        assert len(paired) > 0.5 * gradients
        assert all(pairs.classes_t[t] == t for t in paired)

    def test_a_factor_of_a_few_is_chance(self, trace):
        whole = trace("pt_none")
        pairs = start_matching(scale_result(whole, RESIDUAL, 2.0), whole)
        anchors.pair_by_value(pairs)
        assert not anchors.pair_by_scaled_value(pairs)


class TestByTheLastValue:
    def test_a_loss_that_several_ops_return_is_the_last_of_them(self, trace):
        pairs = start_matching(trace("ms_mf_none"), trace("pt_none"))
        anchors.pair_by_last_value(pairs)
        scalars = [t for t, why in pairs.evidence.items() if pairs.prints_t.size[t] == 1]
        assert scalars
        assert len(scalars) == len(pairs.evidence), "nothing but scalars"


class TestContradiction:
    def test_makers_that_read_the_same_do_not_contradict(self, trace):
        pairs = start_matching(trace("pt_none"), trace("pt_none"))
        anchors.pair_by_value(pairs)
        made = find_value(pairs.target, RESIDUAL, "output.0")
        assert not anchors.has_conflicting_inputs(pairs, made, made)

    def test_makers_that_read_nothing_in_common_do(self, trace):
        pairs = start_matching(trace("pt_none"), trace("pt_none"))
        anchors.pair_by_value(pairs)
        other = find_value(pairs.reference, "Tensor.__add__.1.forward", "output.0")
        assert anchors.has_conflicting_inputs(pairs, find_value(pairs.target, RESIDUAL, "output.0"), other)

    def test_so_does_a_value_that_only_one_side_made(self, trace):
        pairs = start_matching(trace("pt_none"), trace("pt_none"))
        weight = find_value(pairs.reference, "Functional.linear.7.forward", "input.1")
        assert anchors.has_conflicting_inputs(pairs, find_value(pairs.target, RESIDUAL, "output.0"), weight)

    def test_before_anything_is_paired_nothing_contradicts(self, trace):
        pairs = start_matching(trace("pt_none"), trace("pt_none"))
        other = find_value(pairs.reference, "Tensor.__add__.1.forward", "output.0")
        assert not anchors.has_conflicting_inputs(pairs, find_value(pairs.target, RESIDUAL, "output.0"), other)


def test_noise_does_not_unsettle_them(trace):
    whole = trace("pt_none")
    pairs = start_matching(add_noise(whole, 1e-6), whole)
    anchors.pair_by_value(pairs)
    paired = np.flatnonzero(pairs.classes_t >= 0)
    assert (pairs.classes_t[paired] == paired).all()
    assert find_op(whole, RESIDUAL) in pairs.producer_t[paired]
