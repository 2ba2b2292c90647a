"""An operator run again in float64: what it makes of errors, and which side is nearer to the exact result."""

import numpy as np
import pytest
from traces import classify_traces, compare_traces, edit_tensors, find_tensors_like, replace_arrays, find_tensor, find_value

from dumpdiff.divergence.joint_graph import build_joint_graph
from dumpdiff.divergence.recomputation import Recomputation, recompute_op
from dumpdiff.graph.statistics import STATISTICS, compute_statistics

LINEAR, SILU, SOFTMAX = (
    "Functional.linear.11.forward",
    "Functional.silu.1.forward",
    "Functional.softmax.1.forward",
)
RESIDUAL, RSQRT, MEAN = "Tensor.__add__.4.forward", "Torch.rsqrt.2.forward", "Tensor.mean.2.forward"


@pytest.fixture(scope="module")
def whole(trace):
    """Whole tensors of a real run."""
    return trace("v6.0_api_stack")


def array(trace, name, slot="output.0"):
    return trace.array(find_tensor(trace, name, slot))


def with_array(trace, name, slot, made):
    """The trace with another array for one value, wherever it is: in the files and in the statistics."""
    rows = find_tensors_like(trace, name, slot)
    made = np.asarray(made, dtype=np.float32)
    figures = dict(zip(STATISTICS, compute_statistics(made)[:4], strict=True))
    return edit_tensors(replace_arrays(trace, name, slot, lambda old: made.reshape(old.shape)), rows, **figures)


def noise(array, size, seed=0):
    return array * (1 + size * np.random.default_rng(seed).standard_normal(array.shape))


def off(trace, name, slot, size=1e-6):
    """The trace with relative errors of this size in one value, too small to be a disagreement."""
    return with_array(trace, name, slot, noise(array(trace, name, slot), size))


def again(target, reference, name):
    graph = build_joint_graph(compare_traces(target, reference))
    return recompute_op(
        graph, int(graph.reference_nodes[find_value(graph.comparison.alignment.reference, name, "output.0")])
    )


class TestError:
    @pytest.mark.parametrize("name", [LINEAR, SILU, SOFTMAX, RESIDUAL, RSQRT, MEAN])
    def test_of_what_was_recorded_is_rounding(self, whole, name):
        found = again(whole, whole, name)
        assert 0 < found.reference_error < 1e-6
        assert found.target_error == found.reference_error
        assert found.ratio == 1

    def test_of_a_target_that_is_off_is_how_far_it_is_off(self, whole):
        found = again(off(whole, LINEAR, "output.0", 1e-4), whole, LINEAR)
        assert found.target_error == pytest.approx(1e-4, rel=0.1)
        assert found.ratio > 100

    def test_cannot_be_told_from_statistics(self, trace):
        summary = trace("v6.0_api_stack_summary")
        assert again(summary, summary, LINEAR) is None


class TestAmplification:
    def test_equal_inputs_have_nothing_to_enlarge(self, whole):
        assert np.isnan(again(whole, whole, SILU).amplification)

    @pytest.mark.parametrize(
        ("name", "least", "most"), [(LINEAR, 0.5, 2), (SILU, 0.5, 3), (RSQRT, 0.4, 0.6)]
    )
    def test_is_three_times_the_condition_number(self, whole, name, least, most):
        """rsqrt halves a relative error; a product of random vectors keeps it."""
        found = again(off(whole, name, "input.0"), whole, name)
        assert 3 * least < found.amplification < 3 * most

    def test_of_a_sum_that_cancels_is_how_much_smaller_it_is_than_its_terms(self, whole):
        first = array(whole, RESIDUAL, "input.0")
        close = with_array(whole, RESIDUAL, "input.1", -0.999 * first)
        close = with_array(close, RESIDUAL, "output.0", first + array(close, RESIDUAL, "input.1"))
        found = again(off(close, RESIDUAL, "input.0"), close, RESIDUAL)
        assert found.amplification == pytest.approx(3 * 1000, rel=0.1)

    def test_is_the_same_every_time(self, whole):
        target = off(whole, SILU, "input.0")
        assert again(target, whole, SILU) == again(target, whole, SILU)


class TestEquallyRight:
    def right(self, *, target, reference=1e-7, amplification=np.nan, factor=2.0, given=0.0):
        return Recomputation(amplification, reference, target, factor).is_equally_accurate(2e-6, given)

    def test_within_twice_the_reference_s_error(self):
        assert self.right(target=1.9e-7)
        assert not self.right(target=2.1e-7)

    def test_three_times_where_types_are_narrow_or_elements_few(self):
        assert self.right(target=2.9e-7, factor=3.0)

    def test_what_the_inputs_are_off_by_is_carried(self):
        assert self.right(target=3e-6, amplification=4.0, given=1e-6)
        assert not self.right(target=5e-6, amplification=4.0, given=1e-6)

    def test_not_if_the_reference_is_not_explained_either(self):
        assert not self.right(target=1e-3, reference=1e-3)

    def test_the_factor_follows_dtype_and_size(self, whole):
        assert again(whole, whole, LINEAR).factor == 2.0
        assert again(whole, whole, RSQRT).factor == 3.0


class TestStates:
    def test_a_pair_within_tolerance_is_never_run_again(self, whole):
        _, states = classify_traces(whole, whole)
        assert not states.recomputations

    def test_a_fault_is_introduced_and_its_ratio_known(self, whole):
        graph, states = classify_traces(off(whole, SILU, "output.0", 1e-2), whole)
        node = int(graph.target_nodes[find_value(graph.comparison.alignment.target, SILU, "output.0")])
        assert states.recomputations[node].ratio > 1000
