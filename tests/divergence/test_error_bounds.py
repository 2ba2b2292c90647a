"""How far a value may be off though its inputs agree: conditioning, and cancellation."""

import numpy as np
import pytest
from traces import classify_traces, edit_tensors, find_result, load_shipped_rules, find_value

from dumpdiff.divergence.error_bounds import compute_cancellation, build_visibility_function, compute_conditioning

RESIDUAL, SILU, LINEAR = (
    "Tensor.__add__.4.forward",
    "Functional.silu.1.forward",
    "Functional.linear.11.forward",
)


def at(graph, name, slot="output.0"):
    return int(graph.target_nodes[find_value(graph.comparison.alignment.target, name, slot)])


def cancelling(trace, share):
    """Layer 1 as if its two residual terms nearly cancelled: their sum is this share of what it was."""
    rows = find_result(trace, RESIDUAL)
    numbers = ("max", "min", "mean", "norm")
    return edit_tensors(
        trace, rows, **{name: trace.tensors[name].iat[rows[0]] * share for name in numbers}
    )


class TestConditioning:
    def test_is_what_the_rules_say_of_the_operator(self, trace):
        graph, _ = classify_traces(trace("pt_none"), trace("pt_none"))
        factors = compute_conditioning(graph, load_shipped_rules())
        assert factors[at(graph, SILU)] == load_shipped_rules().get_conditioning("silu")
        assert factors[at(graph, LINEAR)] == load_shipped_rules().get_conditioning("matmul")

    def test_what_nobody_made_has_none(self, trace):
        graph, _ = classify_traces(trace("pt_none"), trace("pt_none"))
        assert compute_conditioning(graph, load_shipped_rules())[at(graph, LINEAR, "input.1")] == 1

    def test_no_operator_makes_errors_smaller(self, trace):
        graph, _ = classify_traces(trace("ms_graph"), trace("v6.0_api_stack_summary"))
        assert (compute_conditioning(graph, load_shipped_rules()) >= 1).all()


class TestCancellation:
    @pytest.mark.parametrize("share", [1e-1, 1e-3])
    def test_is_how_much_smaller_the_sum_is_than_its_terms(self, trace, share):
        whole = trace("pt_none")
        graph, _ = classify_traces(cancelling(whole, share), cancelling(whole, share))
        plain, _ = classify_traces(whole, whole)
        flow = plain.comparison.alignment.target
        terms = sum(flow.norms[find_value(flow, RESIDUAL, slot)] for slot in ("input.0", "input.1"))
        total = flow.norms[find_value(flow, RESIDUAL, "output.0")] * share
        assert compute_cancellation(graph)[at(graph, RESIDUAL)] == pytest.approx(terms / total)

    def test_is_never_below_one(self, trace):
        graph, _ = classify_traces(trace("ms_graph"), trace("v6.0_api_stack_summary"))
        assert (compute_cancellation(graph) >= 1).all()

    def test_only_sums_cancel(self, trace):
        graph, _ = classify_traces(trace("pt_none"), trace("pt_none"))
        factors = compute_cancellation(graph)
        for name in (SILU, "Functional.softmax.1.forward", "Functional.layer_norm.3.forward"):
            assert factors[at(graph, name)] == 1

    def test_products_of_random_sign_are_no_cancellation(self, trace):
        """The sum of n of them grows with the root of n, not with n."""
        graph, _ = classify_traces(trace("pt_none"), trace("pt_none"))
        assert compute_cancellation(graph)[at(graph, LINEAR)] < 3

    def test_a_difference_within_it_agrees(self, trace):
        """1e-4 of a sum that is a thousandth of its terms is 1e-7 of the terms."""
        whole = trace("pt_none")
        close = cancelling(whole, 1e-3)
        rows = find_result(close, RESIDUAL)
        error = {
            name: close.tensors[name].iat[rows[0]] * (1 + 1e-4)
            for name in ("max", "min", "mean", "norm")
        }
        for target, reference, state in (
            (edit_tensors(close, rows, **error), close, "agreeing"),
            (cancelling(whole, 1 + 1e-4), whole, "reconverged"),
        ):
            graph, states = classify_traces(target, reference)
            assert states.state[at(graph, RESIDUAL)] == state
            assert np.isfinite(compute_cancellation(graph)).all()


class TestCarried:
    def test_a_loss_shows_the_root_of_its_length_less(self, trace):
        graph, _ = classify_traces(trace("pt_none"), trace("pt_none"))
        flow, share = graph.comparison.alignment.target, build_visibility_function(graph)
        norm, loss = (
            find_value(flow, SILU, "output.0"),
            find_value(flow, "Functional.cross_entropy.0.forward", "output.0"),
        )
        assert share(int(graph.target_nodes[norm]), int(graph.target_nodes[loss])) == pytest.approx(
            flow.sizes[norm] ** -0.5
        )

    def test_a_residual_sum_shows_a_branch_by_its_size(self, trace):
        graph, _ = classify_traces(trace("pt_none"), trace("pt_none"))
        flow, share = graph.comparison.alignment.target, build_visibility_function(graph)
        total = find_value(flow, RESIDUAL, "output.0")
        for slot in ("input.0", "input.1"):
            branch = find_value(flow, RESIDUAL, slot)
            expected = min(1, flow.rms[branch] / flow.rms[total])
            assert share(int(graph.target_nodes[branch]), int(graph.target_nodes[total])) == pytest.approx(
                expected
            )

    def test_an_activation_shows_it_whole(self, trace):
        graph, _ = classify_traces(trace("pt_none"), trace("pt_none"))
        share = build_visibility_function(graph)
        assert share(at(graph, SILU, "input.0"), at(graph, SILU)) == 1
