"""What error a pair may have: by its types and operator, and by the noise of the pair of dumps."""

from dataclasses import replace

import numpy as np
import pytest
from traces import compare_traces, edit_tensors, find_tensors_like, find_outputs, find_pair, scale_result, load_shipped_rules, add_noise

from dumpdiff.comparison import tolerances

LINEAR, SILU = "Functional.linear.11.forward", "Functional.silu.1.forward"


class TestExpected:
    def test_a_sum_may_err_more_than_a_copy(self, trace):
        found = compare_traces(trace("pt_none"), trace("pt_none"))
        assert find_pair(found, LINEAR)["tolerance"] > find_pair(found, LINEAR, "input.1")["tolerance"]

    def test_a_parameter_may_be_off_by_its_rounding_only(self, trace):
        found = compare_traces(add_noise(trace("pt_none"), 3e-6), trace("pt_none"))
        assert find_pair(found, LINEAR, "input.1")["tolerance"] < 2e-6

    def test_of_two_types_the_finer_counts(self, trace):
        """Where one side alone rounds coarsely, that is a difference and no noise."""
        whole = trace("pt_none")
        half = edit_tensors(whole, find_tensors_like(whole, SILU, "output.0"), dtype="bfloat16")
        assert (
            find_pair(compare_traces(half, whole), SILU)["tolerance"]
            == find_pair(compare_traces(whole, whole), SILU)["tolerance"]
        )

    def test_where_much_is_coarse_its_errors_are_everywhere(self, trace):
        whole = trace("pt_none")
        everything = [r for r, dtype in enumerate(whole.tensors["dtype"]) if dtype == "float32"]
        half = edit_tensors(whole, everything[::2], dtype="bfloat16")
        found = compare_traces(half, whole)
        assert find_pair(found, SILU)["tolerance"] > 1e-3

    def test_integers_have_to_be_equal_to_the_last_printed_digit(self, trace):
        found = compare_traces(trace("pt_none"), trace("pt_none"))
        tokens = find_pair(found, "Functional.embedding.0.forward", "input.0")
        assert tokens["tolerance"] == pytest.approx(10 * trace("pt_none").source.resolution)


def test_the_rounding_of_printed_numbers_is_always_allowed(trace):
    """To four digits: 1.000 stands for anything from 0.9995 to 1.0005, five units of 1e-4 either way."""
    whole = trace("pt_none")
    printed = replace(whole, source=replace(whole.source, resolution=1e-4))
    found = compare_traces(printed, whole)
    assert tolerances.compute_print_resolution(found.alignment) == pytest.approx(5e-4, rel=0.01)
    assert (found.pairs["tolerance"] >= 5e-4).all()


class TestMeasuredNoise:
    def test_noise_of_the_pair_widens_the_tolerance_of_what_is_computed(self, trace):
        quiet, loud = (
            compare_traces(add_noise(trace("pt_none"), size), trace("pt_none")) for size in (1e-7, 2e-6)
        )
        assert find_pair(loud, SILU)["tolerance"] > 2 * find_pair(quiet, SILU)["tolerance"]

    def test_all_pairs_agree_within_it(self, trace):
        assert compare_traces(add_noise(trace("pt_none"), 2e-6), trace("pt_none")).pairs["agrees"].all()

    def test_a_divergence_does_not_widen_it(self, trace):
        whole = trace("pt_none")
        apart = scale_result(whole, "Tensor.__add__.4.forward", 1.3, and_after=True)
        assert (
            find_pair(compare_traces(apart, whole), SILU)["tolerance"]
            == find_pair(compare_traces(whole, whole), SILU)["tolerance"]
        )

    def test_forward_and_backward_have_their_own(self, trace):
        whole = trace("pt_none")
        noisy = add_noise(whole, 3e-6)
        forward = noisy.tensors.copy()
        flow = compare_traces(whole, whole).alignment.target
        phase = flow.classes["phase"].to_numpy()[np.maximum(flow.tensor_class, 0)]
        numbers = ["max", "min", "mean", "norm"]
        still = np.flatnonzero(phase == "forward")
        forward.loc[still, numbers] = whole.tensors.loc[still, numbers]
        found = compare_traces(replace(whole, tensors=forward), whole)
        assert (
            find_pair(found, SILU)["tolerance"] == find_pair(compare_traces(whole, whole), SILU)["tolerance"]
        )
        gradient = "Module.model.layers.1.mlp.act_fn.SiLU.backward.0"
        assert (
            find_pair(found, gradient)["tolerance"]
            > find_pair(compare_traces(whole, whole), gradient)["tolerance"]
        )


class TestReductionLength:
    @pytest.mark.parametrize(
        ("what", "inputs", "output", "terms"),
        [
            ("(3, 5) x (5, 7)", [15, 35], 21, 5),
            ("a batch of 4 products, taken for longer ones", [60, 140], 84, 10),
            ("the sum of 100", [100], 1, 100),
            ("the mean over the last axis of (8, 16)", [128], 8, 16),
            ("an elementwise call", [64, 64], 64, 8),
            ("a copy", [64], 64, 1),
            ("nothing known", [], 64, 1),
            ("an empty result", [64], 0, 1),
        ],
    )
    def test_is_the_number_of_terms(self, what, inputs, output, terms):
        assert tolerances._compute_reduction_length(inputs, output) == terms


def test_rules_say_what_an_operator_may_err():
    assert load_shipped_rules().compute_tolerance("bfloat16", "bfloat16", "matmul", 64) > load_shipped_rules().compute_tolerance(
        "float32", "float32", "matmul", 64
    )


def test_results_of_the_op_share_the_tolerance_of_the_module_around_it(trace):
    whole = trace("pt_none")
    found = compare_traces(whole, whole)
    assert (
        len(
            {
                float(find_pair(found, name)["tolerance"])
                for name in (SILU, "Module.model.layers.1.mlp.act_fn.SiLU.forward.0")
            }
        )
        == 1
    )
    assert find_outputs(whole, SILU)
