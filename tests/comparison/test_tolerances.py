"""What error a pair may have: by its types and operator, and by the noise of the pair of dumps."""

from dataclasses import replace

import numpy as np
import pytest
from traces import (
    add_noise,
    compare_traces,
    edit_tensors,
    find_outputs,
    find_pair,
    find_tensors_like,
    load_shipped_rules,
    scale_result,
)

from dumpdiff.comparison import tolerances
from dumpdiff.comparison.noise import GRADIENT_FACTOR

LINEAR, SILU = "Functional.linear.11.forward", "Functional.silu.1.forward"


class TestExpected:
    def test_a_sum_may_err_more_than_a_copy(self, trace):
        comparison = compare_traces(trace("pt_none"), trace("pt_none"))
        assert (
            find_pair(comparison, LINEAR)["tolerance"]
            > find_pair(comparison, LINEAR, "input.1")["tolerance"]
        )

    def test_a_parameter_may_differ_by_its_rounding_only(self, trace):
        comparison = compare_traces(add_noise(trace("pt_none"), 3e-6), trace("pt_none"))
        assert find_pair(comparison, LINEAR, "input.1")["tolerance"] < 2e-6

    def test_the_finer_of_two_dtypes_counts(self, trace):
        """Where one side alone rounds coarsely, that is a difference and no noise."""
        clean_trace = trace("pt_none")
        half = edit_tensors(
            clean_trace, find_tensors_like(clean_trace, SILU, "output.0"), dtype="bfloat16"
        )
        assert (
            find_pair(compare_traces(half, clean_trace), SILU)["tolerance"]
            == find_pair(compare_traces(clean_trace, clean_trace), SILU)["tolerance"]
        )

    def test_a_coarse_dtype_of_many_values_widens_all_tolerances(self, trace):
        clean_trace = trace("pt_none")
        float_rows = [
            r for r, dtype in enumerate(clean_trace.tensors["dtype"]) if dtype == "float32"
        ]
        half = edit_tensors(clean_trace, float_rows[::2], dtype="bfloat16")
        comparison = compare_traces(half, clean_trace)
        assert find_pair(comparison, SILU)["tolerance"] > 1e-3

    def test_integers_have_to_be_equal_to_the_last_printed_digit(self, trace):
        comparison = compare_traces(trace("pt_none"), trace("pt_none"))
        tokens = find_pair(comparison, "Functional.embedding.0.forward", "input.0")
        assert tokens["tolerance"] == pytest.approx(10 * trace("pt_none").source.resolution)


def test_the_rounding_of_printed_numbers_is_always_allowed(trace):
    """Four digits: 1.000 means 0.9995 to 1.0005, five units of 1e-4 in either direction."""
    clean_trace = trace("pt_none")
    printed = replace(clean_trace, source=replace(clean_trace.source, resolution=1e-4))
    comparison = compare_traces(printed, clean_trace)
    assert tolerances.compute_print_resolution(comparison.alignment) == pytest.approx(
        5e-4, rel=0.01
    )


class TestMeasuredNoise:
    def test_noise_of_the_pair_widens_the_tolerance_of_what_is_computed(self, trace):
        quiet, loud = (
            compare_traces(add_noise(trace("pt_none"), size), trace("pt_none"))
            for size in (1e-7, 1e-5)
        )
        assert find_pair(loud, SILU)["tolerance"] > 2 * find_pair(quiet, SILU)["tolerance"]

    def test_all_pairs_agree_within_the_measured_noise(self, trace):
        assert (
            compare_traces(add_noise(trace("pt_none"), 2e-6), trace("pt_none"))
            .pairs["agrees"]
            .all()
        )

    def test_a_divergence_does_not_widen_the_measured_noise(self, trace):
        clean_trace = trace("pt_none")
        diverged_trace = scale_result(clean_trace, "Tensor.__add__.4.forward", 1.3, and_after=True)
        assert (
            find_pair(compare_traces(diverged_trace, clean_trace), SILU)["tolerance"]
            == find_pair(compare_traces(clean_trace, clean_trace), SILU)["tolerance"]
        )

    def test_forward_and_backward_have_their_own_noise(self, trace):
        clean_trace = trace("pt_none")
        quiet, loud = (add_noise(clean_trace, size) for size in (1e-6, 1e-5))
        flow = compare_traces(clean_trace, clean_trace).alignment.target
        phase = flow.classes["phase"].to_numpy()[np.maximum(flow.tensor_class, 0)]
        is_backward = np.flatnonzero(phase == "backward")
        tensors = quiet.tensors.copy()
        numbers = ["max", "min", "mean", "norm"]
        tensors.loc[is_backward, numbers] = loud.tensors.loc[is_backward, numbers]
        mixed = compare_traces(replace(clean_trace, tensors=tensors), clean_trace)
        uniform = compare_traces(quiet, clean_trace)
        gradient = "Module.model.layers.1.mlp.act_fn.SiLU.backward.0"
        assert find_pair(mixed, SILU)["tolerance"] == find_pair(uniform, SILU)["tolerance"]
        assert find_pair(mixed, gradient)["tolerance"] > find_pair(uniform, gradient)["tolerance"]


class TestReductionLength:
    def test_the_gradient_of_a_factor_of_a_product_is_a_product(self, trace):
        """It sums over the outputs of the layer: 256 logits; the record names no weight."""
        dump = trace("pt_none")
        pair = find_pair(compare_traces(dump, dump), "Module.lm_head.Linear.backward.0")
        expected = load_shipped_rules().compute_tolerance("float32", "float32", "matmul", 256)
        assert pair["tolerance"] == GRADIENT_FACTOR * expected  # only statistics were recorded

    @pytest.mark.parametrize(
        ("case", "inputs", "output", "terms"),
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
    def test_the_length_is_the_number_of_terms(self, case, inputs, output, terms):
        input_sizes = np.zeros((1, 2), dtype=np.int64)
        input_sizes[0, : len(inputs)] = inputs
        lengths = tolerances._compute_reduction_lengths(
            input_sizes, np.array([len(inputs)]), np.array([output])
        )
        assert lengths.tolist() == [terms]


def test_rules_give_the_tolerance_of_an_operator():
    assert load_shipped_rules().compute_tolerance(
        "bfloat16", "bfloat16", "matmul", 64
    ) > load_shipped_rules().compute_tolerance("float32", "float32", "matmul", 64)


def test_results_of_the_op_share_the_tolerance_of_the_module_around_it(trace):
    clean_trace = trace("pt_none")
    comparison = compare_traces(clean_trace, clean_trace)
    assert (
        len(
            {
                float(find_pair(comparison, name)["tolerance"])
                for name in (SILU, "Module.model.layers.1.mlp.act_fn.SiLU.forward.0")
            }
        )
        == 1
    )
    assert find_outputs(clean_trace, SILU)
