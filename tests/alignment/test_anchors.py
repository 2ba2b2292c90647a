"""Pairs that need no structure: by value, checksum, name, near value, common factor."""

from dataclasses import replace

import numpy as np
import pytest
from traces import (
    add_noise,
    edit_tensors,
    find_op,
    find_outputs,
    find_tensor,
    find_tensors_like,
    find_value,
    load_shipped_rules,
    record_calls,
    scale_result,
    scale_tensors,
    start_matching,
)

from dumpdiff.alignment import anchors

RESIDUAL = "Tensor.__add__.4.forward"


def find_partner(pairs, name, slot="output.0"):
    """Class of the reference that the target's value was paired with, -1 if none."""
    return int(pairs.classes_t[find_value(pairs.target, name, slot)])


class TestByValue:
    def test_only_candidates_of_each_other_are_paired(self, trace):
        clean_trace = trace("pt_none")
        pairs = start_matching(clean_trace, clean_trace)
        anchors.pair_by_value(pairs)
        paired = np.flatnonzero(pairs.classes_t >= 0)
        assert len(paired) > 0.9 * len(pairs.classes_t)
        assert (pairs.classes_t[paired] == paired).all()

    def test_a_value_that_differs_beyond_the_tolerance_stays_unpaired(self, trace):
        clean_trace = trace("pt_none")
        pairs = start_matching(scale_result(clean_trace, RESIDUAL, 1.001), clean_trace)
        anchors.pair_by_value(pairs)
        assert find_partner(pairs, RESIDUAL) == -1

    def test_two_values_that_could_be_the_same_both_stay_unpaired(self, trace):
        """As when two layers start from equal weights."""
        clean_trace = trace("pt_none")
        weights = [
            find_value(
                start_matching(clean_trace, clean_trace).target,
                f"Functional.linear.{n}.forward",
                "input.1",
            )
            for n in (0, 7)
        ]
        first = clean_trace.tensors.iloc[
            find_tensor(clean_trace, "Functional.linear.0.forward", "input.1")
        ]
        other = find_tensors_like(clean_trace, "Functional.linear.7.forward", "input.1")
        equal_trace = edit_tensors(
            clean_trace,
            other,
            **{name: first[name] * (1 + 2e-6) for name in ("max", "min", "mean", "norm")},
        )
        pairs = start_matching(equal_trace, equal_trace)
        candidates = anchors.pair_by_value(pairs)
        assert pairs.classes_t[weights].tolist() == [-1, -1]
        choices = set(zip(candidates.target.tolist(), candidates.reference.tolist(), strict=True))
        assert {(a, b) for a in weights for b in weights} <= choices, "a later stage has to choose"

    def test_tensors_of_ones_carry_no_information(self, trace):
        clean_trace = trace("pt_none")
        norm = find_tensors_like(clean_trace, "Functional.layer_norm.3.forward", "input.2")
        ones_trace = edit_tensors(clean_trace, norm, max=1.0, min=1.0, mean=1.0, norm=8.0)
        pairs = start_matching(ones_trace, ones_trace)
        anchors.pair_by_value(pairs)
        assert find_partner(pairs, "Functional.layer_norm.3.forward", "input.2") == -1


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
    def test_parameters_of_one_canonical_name_are_paired_across_frameworks(self, trace):
        pairs = start_matching(trace("ms_mf_none"), trace("pt_none"))
        anchors.pair_by_parameter_name(pairs, load_shipped_rules())
        names_t, names_r = (
            flow.classes["parameter"].to_numpy() for flow in (pairs.target, pairs.reference)
        )
        partner_names = {
            names_t[t]: names_r[r]
            for t, r in enumerate(pairs.classes_t.tolist())
            if r >= 0 and names_t[t]
        }
        gate = partner_names["model.layers.1.feed_forward.w1.weight"]
        assert gate == "model.layers.1.mlp.gate_proj.weight"
        assert len(partner_names) == sum(names_r != "")

    def test_parameters_of_one_name_are_paired_whatever_their_values(self, trace):
        clean_trace = trace("pt_none")
        weight = find_tensors_like(clean_trace, "Functional.linear.7.forward", "input.1")
        pairs = start_matching(edit_tensors(clean_trace, weight, max=9.0, norm=300.0), clean_trace)
        anchors.pair_by_parameter_name(pairs, load_shipped_rules())
        assert find_partner(pairs, "Functional.linear.7.forward", "input.1") == find_value(
            pairs.reference, "Functional.linear.7.forward", "input.1"
        )

    def test_gradients_are_paired_by_the_name_of_their_parameter(self, trace):
        gradient = "Module.model.layers.1.mlp.up_proj.Linear.parameters_grad.0"
        clean_trace = trace("pt_none")
        pairs = start_matching(
            edit_tensors(clean_trace, find_outputs(clean_trace, gradient), norm=1.0), clean_trace
        )
        anchors.pair_by_parameter_name(pairs, load_shipped_rules())
        assert find_partner(pairs, gradient, "output.weight") == find_value(
            pairs.reference, gradient, "output.weight"
        )

    def test_of_one_canonical_name_those_of_equal_modules_are_paired(self, trace):
        calls = ("Functional.embedding.0.forward", "Functional.linear.7.forward")
        named_trace = trace("pt_none")
        for call, module in zip(calls, ("encoder", "decoder"), strict=True):
            rows = find_tensors_like(named_trace, call, "input.1")
            named_trace = edit_tensors(named_trace, rows, parameter=f"{module}.embedding.weight")
        rules = load_shipped_rules()
        names = {rules.resolve_parameter(f"{module}.embedding.weight")
                 for module in ("encoder", "decoder")}  # fmt: skip
        assert len(names) == 1
        pairs = start_matching(named_trace, named_trace)
        anchors.pair_by_parameter_name(pairs, rules)
        for call in calls:
            value = find_value(pairs.reference, call, "input.1")
            assert find_partner(pairs, call, "input.1") == value

    def test_parameters_of_other_sizes_are_not_paired(self, trace):
        clean_trace = trace("pt_none")
        weight = find_tensors_like(clean_trace, "Functional.linear.7.forward", "input.1")
        pairs = start_matching(edit_tensors(clean_trace, weight, size=8192), clean_trace)
        anchors.pair_by_parameter_name(pairs, load_shipped_rules())
        assert find_partner(pairs, "Functional.linear.7.forward", "input.1") == -1


class TestBySupport:
    def test_of_two_equal_candidates_the_one_with_paired_neighbors_is_paired(self, trace):
        clean_trace = trace("pt_none")
        like_first = clean_trace.tensors.iloc[
            find_tensor(clean_trace, "Functional.linear.4.forward", "output.0")
        ]
        rows = find_tensors_like(clean_trace, "Functional.linear.11.forward", "output.0")
        equal_trace = edit_tensors(
            clean_trace,
            rows,
            **{name: like_first[name] * (1 + 2e-6) for name in ("max", "min", "mean", "norm")},
        )
        pairs = start_matching(equal_trace, equal_trace)
        candidates = anchors.pair_by_value(pairs)
        assert find_partner(pairs, "Functional.linear.11.forward") == -1
        assert anchors.pair_by_support(pairs, candidates)
        for name in ("Functional.linear.4.forward", "Functional.linear.11.forward"):
            assert find_partner(pairs, name) == find_value(pairs.reference, name, "output.0")

    def test_a_second_run_adds_nothing(self, trace):
        pairs = start_matching(trace("pt_none"), trace("pt_none"))
        candidates = anchors.pair_by_value(pairs)
        while anchors.pair_by_support(pairs, candidates):
            pass
        assert not anchors.pair_by_support(pairs, candidates)


class TestByNearness:
    @pytest.mark.parametrize("factor", [1.001, 1.04])
    def test_a_small_divergence_is_paired_with_its_nearest_value(self, trace, factor):
        clean_trace = trace("pt_none")
        pairs = start_matching(scale_result(clean_trace, RESIDUAL, factor), clean_trace)
        anchors.pair_by_value(pairs)
        assert anchors.pair_by_near_value(pairs, runs_diverged=True)
        assert find_partner(pairs, RESIDUAL) == find_value(pairs.reference, RESIDUAL, "output.0")
        assert pairs.evidence[find_value(pairs.target, RESIDUAL, "output.0")] == "near value"

    def test_a_large_divergence_is_not_paired(self, trace):
        clean_trace = trace("pt_none")
        pairs = start_matching(scale_result(clean_trace, RESIDUAL, 1.3), clean_trace)
        anchors.pair_by_value(pairs)
        anchors.pair_by_near_value(pairs, runs_diverged=True)
        assert find_partner(pairs, RESIDUAL) == -1

    @pytest.mark.parametrize(
        ("shape", "is_chance"),
        [((2, 8, 2, 8), False), ((16, 1, 16), False), ((8, 8, 2, 2), False), ((64, 4), True)],
    )
    def test_values_whose_shapes_are_no_reshapes_are_near_by_chance(self, shape, is_chance):
        x = np.random.default_rng(3).standard_normal((2, 8, 2, 8))
        own = record_calls(("exp", [x + 1], x))
        other = record_calls(("exp", [x + 2], (1.01 * x).reshape(shape)))
        pairs = start_matching(own, other)
        values = (
            find_value(flow, "call.0", "output.0") for flow in (pairs.target, pairs.reference)
        )
        assert anchors._are_near_by_chance(pairs, *values) == is_chance

    @pytest.mark.parametrize(
        ("first", "second", "is_paired"), [(1.4, 1.01, False), (1.01, 1.4, True)]
    )
    def test_results_of_other_turns_of_an_iteration_are_not_paired(self, first, second, is_paired):
        """Both sides multiply by one weight twice; one result of the target is near the first."""
        random = np.random.default_rng(4)
        x, weight, y = random.standard_normal((3, 8, 8))
        own = record_calls(
            ("linear", (x + 1, weight), first * y), ("linear", (x + 2, weight), second * y)
        )
        other = record_calls(("linear", (x + 3, weight), y), ("linear", (x + 4, weight), 5 * x - y))
        pairs = start_matching(own, other)
        pairs.pair(
            *(find_value(flow, "call.0", "input.1") for flow in (pairs.target, pairs.reference)),
            "value",
            1.0,
        )
        anchors.pair_by_near_value(pairs, runs_diverged=True)
        value = find_value(pairs.reference, "call.0", "output.0")
        assert (pairs.classes_r[value] >= 0) == is_paired

    def test_weights_that_were_initialized_alike_are_not_paired(self, trace):
        clean_trace = trace("pt_none")
        name = "Functional.linear.4.forward"
        rows = find_tensors_like(clean_trace, name, "input.1")
        pairs = start_matching(scale_tensors(clean_trace, rows, 1.01), clean_trace)
        anchors.pair_by_value(pairs)
        anchors.pair_by_near_value(pairs, runs_diverged=True)
        assert pairs.classes_t[find_value(pairs.target, name, "input.1")] == -1


class TestByACommonFactor:
    def scale_gradients(self, trace, factor):
        """Return the trace with scaled gradients, and the number of their classes."""
        flow = start_matching(trace, trace).target
        output = (flow.classes["phase"] == "backward").to_numpy()
        rows = np.flatnonzero((flow.tensor_class >= 0) & output[np.maximum(flow.tensor_class, 0)])
        tensors = trace.tensors.copy()
        numbers = ["max", "min", "mean", "norm"]
        tensors.loc[rows, numbers] = tensors.loc[rows, numbers] * factor
        return replace(trace, tensors=tensors), len(set(flow.tensor_class[rows].tolist()))

    def test_gradients_of_a_loss_that_was_scaled_are_paired(self, trace):
        clean_trace = trace("pt_none")
        loss_scaled, gradients = self.scale_gradients(clean_trace, 1024.0)
        pairs = start_matching(loss_scaled, clean_trace)
        anchors.pair_by_value(pairs)
        assert anchors.pair_by_scaled_value(pairs)
        paired = [t for t, evidence in pairs.evidence.items() if evidence == "scaled value"]
        assert len(paired) > 0.5 * gradients
        assert all(pairs.classes_t[t] == t for t in paired)

    def test_a_factor_that_few_values_share_is_ignored(self, trace):
        clean_trace = trace("pt_none")
        pairs = start_matching(scale_result(clean_trace, RESIDUAL, 2.0), clean_trace)
        anchors.pair_by_value(pairs)
        assert not anchors.pair_by_scaled_value(pairs)


class TestByTheLastValue:
    def test_a_loss_that_several_ops_return_is_the_last_of_them(self, trace):
        pairs = start_matching(trace("ms_mf_none"), trace("pt_none"))
        anchors.pair_by_last_value(pairs)
        scalars = [t for t, evidence in pairs.evidence.items() if pairs.prints_t.size[t] == 1]
        assert scalars
        assert len(scalars) == len(pairs.evidence), "nothing but scalars"


class TestConflict:
    def test_producers_that_read_the_same_do_not_conflict(self, trace):
        pairs = start_matching(trace("pt_none"), trace("pt_none"))
        anchors.pair_by_value(pairs)
        output = find_value(pairs.target, RESIDUAL, "output.0")
        assert not anchors.has_conflicting_inputs(pairs, output, output)

    def test_producers_that_read_nothing_in_common_conflict(self, trace):
        pairs = start_matching(trace("pt_none"), trace("pt_none"))
        anchors.pair_by_value(pairs)
        other = find_value(pairs.reference, "Tensor.__add__.1.forward", "output.0")
        assert anchors.has_conflicting_inputs(
            pairs, find_value(pairs.target, RESIDUAL, "output.0"), other
        )

    def test_a_number_that_all_read_is_nothing_in_common(self, trace):
        """The gradients of two weights, both multiplied by the factor of the clipping."""
        pairs = start_matching(trace("parallel_ms_tp2"), trace("parallel_ms_tp2"))
        first, second = [
            find_value(
                pairs.target, f"Default/clip_grad_norm-ClipGradNorm/Mul-op{number}", "output.0"
            )
            for number in (0, 1)
        ]
        is_number = pairs.target.sizes == 1
        for value in np.flatnonzero(is_number | (pairs.target.producers >= 0)).tolist():
            pairs.pair(value, value, "value", 0.9)
        assert anchors.has_conflicting_inputs(pairs, first, second)
        assert not anchors.has_conflicting_inputs(pairs, first, first)

    def test_a_value_that_only_one_side_produced_conflicts(self, trace):
        pairs = start_matching(trace("pt_none"), trace("pt_none"))
        weight = find_value(pairs.reference, "Functional.linear.7.forward", "input.1")
        assert anchors.has_conflicting_inputs(
            pairs, find_value(pairs.target, RESIDUAL, "output.0"), weight
        )

    def test_products_of_one_input_with_other_parameters_conflict(self, trace):
        """Gate and up projection read one input; each is a product with a weight of its own."""
        pairs = start_matching(trace("pt_none"), trace("pt_none"))
        gate, up = [
            find_value(pairs.target, name, "output.0")
            for name in ("Functional.linear.4.forward", "Functional.linear.5.forward")
        ]
        for value in np.flatnonzero(pairs.target.producers < 0).tolist():
            pairs.pair(value, value, "value", 0.9)
        assert anchors.has_conflicting_inputs(pairs, gate, up)
        assert not anchors.has_conflicting_inputs(pairs, gate, gate)

    def test_without_any_pairs_nothing_conflicts(self, trace):
        pairs = start_matching(trace("pt_none"), trace("pt_none"))
        other = find_value(pairs.reference, "Tensor.__add__.1.forward", "output.0")
        assert not anchors.has_conflicting_inputs(
            pairs, find_value(pairs.target, RESIDUAL, "output.0"), other
        )


def test_pairs_by_value_tolerate_noise(trace):
    clean_trace = trace("pt_none")
    pairs = start_matching(add_noise(clean_trace, 1e-6), clean_trace)
    anchors.pair_by_value(pairs)
    paired = np.flatnonzero(pairs.classes_t >= 0)
    assert (pairs.classes_t[paired] == paired).all()
    assert find_op(clean_trace, RESIDUAL) in pairs.target.producers[paired]
