"""What error a pair may have: by its types and operator, and by the noise of the pair of dumps."""

from dataclasses import replace

import numpy as np
import pytest
from traces import compared, edited, like, outputs, pair_of, scaled, shipped, with_noise

from dumpdiff.comparison import tolerances

LINEAR, SILU = "Functional.linear.11.forward", "Functional.silu.1.forward"


class TestExpected:
    def test_a_sum_may_err_more_than_a_copy(self, trace):
        found = compared(trace("pt_none"), trace("pt_none"))
        assert pair_of(found, LINEAR)["tolerance"] > pair_of(found, LINEAR, "input.1")["tolerance"]

    def test_a_parameter_may_be_off_by_its_rounding_only(self, trace):
        found = compared(with_noise(trace("pt_none"), 3e-6), trace("pt_none"))
        assert pair_of(found, LINEAR, "input.1")["tolerance"] < 2e-6

    def test_of_two_types_the_finer_counts(self, trace):
        """Where one side alone rounds coarsely, that is a difference and no noise."""
        whole = trace("pt_none")
        half = edited(whole, like(whole, SILU, "output.0"), dtype="bfloat16")
        assert (
            pair_of(compared(half, whole), SILU)["tolerance"]
            == pair_of(compared(whole, whole), SILU)["tolerance"]
        )

    def test_where_much_is_coarse_its_errors_are_everywhere(self, trace):
        whole = trace("pt_none")
        everything = [r for r, dtype in enumerate(whole.tensors["dtype"]) if dtype == "float32"]
        half = edited(whole, everything[::2], dtype="bfloat16")
        found = compared(half, whole)
        assert pair_of(found, SILU)["tolerance"] > 1e-3

    def test_integers_have_to_be_equal_to_the_last_printed_digit(self, trace):
        found = compared(trace("pt_none"), trace("pt_none"))
        tokens = pair_of(found, "Functional.embedding.0.forward", "input.0")
        assert tokens["tolerance"] == pytest.approx(10 * trace("pt_none").source.resolution)


def test_the_rounding_of_printed_numbers_is_always_allowed(trace):
    """To four digits: 1.000 stands for anything from 0.9995 to 1.0005, five units of 1e-4 either way."""
    whole = trace("pt_none")
    printed = replace(whole, source=replace(whole.source, resolution=1e-4))
    found = compared(printed, whole)
    assert tolerances.resolution(found.alignment) == pytest.approx(5e-4, rel=0.01)
    assert (found.pairs["tolerance"] >= 5e-4).all()


class TestMeasuredNoise:
    def test_noise_of_the_pair_widens_the_tolerance_of_what_is_computed(self, trace):
        quiet, loud = (
            compared(with_noise(trace("pt_none"), size), trace("pt_none")) for size in (1e-7, 2e-6)
        )
        assert pair_of(loud, SILU)["tolerance"] > 2 * pair_of(quiet, SILU)["tolerance"]

    def test_all_pairs_agree_within_it(self, trace):
        assert compared(with_noise(trace("pt_none"), 2e-6), trace("pt_none")).pairs["agrees"].all()

    def test_a_divergence_does_not_widen_it(self, trace):
        whole = trace("pt_none")
        apart = scaled(whole, "Tensor.__add__.4.forward", 1.3, and_after=True)
        assert (
            pair_of(compared(apart, whole), SILU)["tolerance"]
            == pair_of(compared(whole, whole), SILU)["tolerance"]
        )

    def test_forward_and_backward_have_their_own(self, trace):
        whole = trace("pt_none")
        noisy = with_noise(whole, 3e-6)
        forward = noisy.tensors.copy()
        flow = compared(whole, whole).alignment.target
        phase = flow.classes["phase"].to_numpy()[np.maximum(flow.tensor_class, 0)]
        numbers = ["max", "min", "mean", "norm"]
        still = np.flatnonzero(phase == "forward")
        forward.loc[still, numbers] = whole.tensors.loc[still, numbers]
        found = compared(replace(whole, tensors=forward), whole)
        assert (
            pair_of(found, SILU)["tolerance"] == pair_of(compared(whole, whole), SILU)["tolerance"]
        )
        gradient = "Module.model.layers.1.mlp.act_fn.SiLU.backward.0"
        assert (
            pair_of(found, gradient)["tolerance"]
            > pair_of(compared(whole, whole), gradient)["tolerance"]
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
        assert tolerances._reduction_length(inputs, output) == terms


def test_rules_say_what_an_operator_may_err():
    assert shipped().tolerance("bfloat16", "bfloat16", "matmul", 64) > shipped().tolerance(
        "float32", "float32", "matmul", 64
    )


def test_results_of_the_op_share_the_tolerance_of_the_module_around_it(trace):
    whole = trace("pt_none")
    found = compared(whole, whole)
    assert (
        len(
            {
                float(pair_of(found, name)["tolerance"])
                for name in (SILU, "Module.model.layers.1.mlp.act_fn.SiLU.forward.0")
            }
        )
        == 1
    )
    assert outputs(whole, SILU)
