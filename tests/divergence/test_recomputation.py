"""An operator run again in float64: how it enlarges errors, and which side is more exact."""

import numpy as np
import pytest
from traces import (
    classify_traces,
    compare_traces,
    edit_tensors,
    find_tensor,
    find_tensors_like,
    find_value,
    replace_arrays,
)

from dumpdiff.divergence.joint_graph import build_joint_graph
from dumpdiff.divergence.recomputation import Recomputation, recompute_op
from dumpdiff.graph.statistics import STATISTICS, compute_statistics

LINEAR, SILU, SOFTMAX = (
    "Functional.linear.11.forward",
    "Functional.silu.1.forward",
    "Functional.softmax.1.forward",
)
MASKED = "Tensor.__add__.3.forward"
RESIDUAL, RSQRT, MEAN = "Tensor.__add__.4.forward", "Torch.rsqrt.2.forward", "Tensor.mean.2.forward"


@pytest.fixture(scope="module")
def clean_trace(trace):
    """Whole tensors of a real run."""
    return trace("v6.0_api_stack")


def load_array(trace, name, slot="output.0"):
    return trace.array(find_tensor(trace, name, slot))


def set_array(trace, name, slot, output):
    """Return the trace with another array for one value, in the files and in the statistics."""
    rows = find_tensors_like(trace, name, slot)
    output = np.asarray(output, dtype=np.float32)
    figures = dict(zip(STATISTICS, compute_statistics(output)[:4], strict=True))
    return edit_tensors(
        replace_arrays(trace, name, slot, lambda old: output.reshape(old.shape)), rows, **figures
    )


def add_array_noise(load_array, size, seed=0):
    return load_array * (1 + size * np.random.default_rng(seed).standard_normal(load_array.shape))


def perturb(trace, name, slot, size=1e-6):
    """Return the trace with relative errors of this size in one value."""
    return set_array(trace, name, slot, add_array_noise(load_array(trace, name, slot), size))


def recompute(target, reference, name, side=1):
    graph = build_joint_graph(compare_traces(target, reference))
    own = graph.sides[side]
    return recompute_op(graph, int(own.nodes[find_value(own.flow, name, "output.0")]), side)


class TestError:
    @pytest.mark.parametrize("name", [LINEAR, SILU, SOFTMAX, RESIDUAL, RSQRT, MEAN])
    def test_the_error_of_recorded_values_is_rounding(self, clean_trace, name):
        recomputation = recompute(clean_trace, clean_trace, name)
        assert 0 < recomputation.error < 1e-6
        assert recomputation.other_error == recomputation.error
        assert recomputation.ratio == 1

    def test_the_error_of_a_wrong_target_is_the_size_of_its_errors(self, clean_trace):
        recomputation = recompute(
            perturb(clean_trace, LINEAR, "output.0", 1e-4), clean_trace, LINEAR
        )
        assert recomputation.other_error == pytest.approx(1e-4, rel=0.1)
        assert recomputation.ratio > 100

    def test_mask_fill_hides_no_error_of_the_scores_beside_it(self, trace):
        """The fill is -1e9: as a share of all elements' norm, wrong scores would be rounding."""
        clean = trace("demo_pytorch")
        masked_scores = load_array(clean, MASKED, "output.0")
        scaled_scores = np.where(masked_scores > -1e8, 1.5 * masked_scores, masked_scores)
        target = set_array(clean, MASKED, "output.0", scaled_scores)
        recomputation = recompute(target, clean, MASKED)
        assert recomputation.error < 1e-6
        assert recomputation.other_error == pytest.approx(0.5)
        assert not recomputation.is_explained(1e-6, 0.0)

    def test_cannot_be_told_from_statistics(self, trace):
        summary = trace("v6.0_api_stack_summary")
        assert recompute(summary, summary, LINEAR) is None


class TestAmplification:
    def test_equal_inputs_have_nothing_to_enlarge(self, clean_trace):
        assert np.isnan(recompute(clean_trace, clean_trace, SILU).amplification)

    @pytest.mark.parametrize(
        ("name", "smallest", "largest"), [(LINEAR, 0.5, 2), (SILU, 0.5, 3), (RSQRT, 0.4, 0.6)]
    )
    def test_the_amplification_is_three_times_the_condition_number(
        self, clean_trace, name, smallest, largest
    ):
        """rsqrt halves a relative error; a product of random vectors keeps it."""
        recomputation = recompute(perturb(clean_trace, name, "input.0"), clean_trace, name)
        assert 3 * smallest < recomputation.amplification < 3 * largest

    def test_the_amplification_of_a_sum_that_cancels_is_three_times_terms_over_sum(
        self, clean_trace
    ):
        first = load_array(clean_trace, RESIDUAL, "input.0")
        close = set_array(clean_trace, RESIDUAL, "input.1", -0.999 * first)
        close = set_array(
            close, RESIDUAL, "output.0", first + load_array(close, RESIDUAL, "input.1")
        )
        recomputation = recompute(perturb(close, RESIDUAL, "input.0"), close, RESIDUAL)
        assert recomputation.amplification == pytest.approx(3 * 1000, rel=0.1)

    def test_the_amplification_is_the_same_on_either_side(self, clean_trace):
        target = perturb(clean_trace, SILU, "input.0")
        amplifications = [
            recompute(target, clean_trace, SILU, side).amplification for side in (0, 1)
        ]
        assert amplifications[0] == pytest.approx(amplifications[1], rel=1e-3)

    def test_the_amplification_is_the_same_every_time(self, clean_trace):
        target = perturb(clean_trace, SILU, "input.0")
        assert recompute(target, clean_trace, SILU) == recompute(target, clean_trace, SILU)


class TestExchangedInputs:
    """The output of one side against the other side's op on the inputs of that side."""

    def set_output(self, target, noise=0.0):
        """Return the trace in which softmax gives what its input does, with relative errors."""
        scores = load_array(target, SOFTMAX, "input.0").astype(np.float64)
        exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
        output = exponentials / exponentials.sum(axis=-1, keepdims=True)
        return set_array(target, SOFTMAX, "output.0", add_array_noise(output, noise, seed=1))

    def test_an_output_that_follows_from_other_agreeing_inputs_is_explained(self, clean_trace):
        target = self.set_output(perturb(clean_trace, SOFTMAX, "input.0", 1e-6))
        recomputation = recompute(target, clean_trace, SOFTMAX)
        assert recomputation.other_error > 3e-7
        assert recomputation.exchanged_error < 1e-7
        assert recomputation.follows_inputs(2e-7)

    def test_it_is_explained_in_the_other_direction_too(self, clean_trace):
        target = self.set_output(perturb(clean_trace, SOFTMAX, "input.0", 1e-6))
        assert recompute(clean_trace, target, SOFTMAX, side=0).follows_inputs(2e-7)
        assert recompute(target, clean_trace, SOFTMAX, side=0).follows_inputs(2e-7)

    def test_a_change_of_the_same_size_is_not(self, clean_trace):
        target = self.set_output(perturb(clean_trace, SOFTMAX, "input.0", 1e-6), noise=1e-6)
        recomputation = recompute(target, clean_trace, SOFTMAX)
        assert recomputation.exchanged_error == pytest.approx(1e-6, rel=0.2)
        assert not recomputation.follows_inputs(2e-7)

    def test_inputs_that_do_not_agree_explain_nothing(self, clean_trace):
        """The scores were rounded to bfloat16 before the op: this is the divergence."""
        target = self.set_output(perturb(clean_trace, SOFTMAX, "input.0", 1e-3))
        recomputation = recompute(target, clean_trace, SOFTMAX)
        assert np.isnan(recomputation.exchanged_error)
        assert not recomputation.follows_inputs(1.0)


class TestEquallyAccurate:
    def is_equally_accurate(
        self, *, target, reference=1e-7, amplification=np.nan, factor=2.0, input_error=0.0
    ):
        return Recomputation(amplification, reference, target, factor).is_equally_accurate(
            2e-6, input_error
        )

    def test_within_twice_the_reference_s_error(self):
        assert self.is_equally_accurate(target=1.9e-7)
        assert not self.is_equally_accurate(target=2.1e-7)

    def test_three_times_where_types_are_narrow_or_elements_few(self):
        assert self.is_equally_accurate(target=2.9e-7, factor=3.0)

    def test_the_error_of_the_inputs_is_carried(self):
        assert self.is_equally_accurate(target=3e-6, amplification=4.0, input_error=1e-6)
        assert not self.is_equally_accurate(target=5e-6, amplification=4.0, input_error=1e-6)

    def test_not_if_the_reference_is_not_explained_either(self):
        assert not self.is_equally_accurate(target=1e-3, reference=1e-3)

    def test_the_factor_follows_dtype_and_size(self, clean_trace):
        assert recompute(clean_trace, clean_trace, LINEAR).factor == 2.0
        assert recompute(clean_trace, clean_trace, RSQRT).factor == 3.0


class TestStates:
    def test_a_pair_within_tolerance_is_never_run_again(self, clean_trace):
        _, states = classify_traces(clean_trace, clean_trace)
        assert not states.recomputations

    def test_a_fault_is_introduced_and_its_ratio_known(self, clean_trace):
        graph, states = classify_traces(perturb(clean_trace, SILU, "output.0", 1e-2), clean_trace)
        node = int(
            graph.target_nodes[find_value(graph.comparison.alignment.target, SILU, "output.0")]
        )
        assert [run.ratio > 1000 for run in states.recomputations[node]] == [False, True]
