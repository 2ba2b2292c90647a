"""How large an error may be when the inputs agree: conditioning and cancellation."""

from types import SimpleNamespace

import numpy as np
import pytest
from traces import (
    classify_traces,
    edit_tensors,
    find_result,
    find_tensor,
    find_tensors_like,
    find_value,
    load_shipped_rules,
    record_calls,
)

from dumpdiff import read
from dumpdiff.divergence.cancellation import _add_broadcast_terms, compute_cancellation
from dumpdiff.divergence.error_bounds import compute_conditioning
from dumpdiff.divergence.error_shares import build_visibility_function

RESIDUAL, SILU, LINEAR = (
    "Tensor.__add__.4.forward",
    "Functional.silu.1.forward",
    "Functional.linear.11.forward",
)


ROOT, SQUARE = "Tensor.sqrt.7.forward", "Tensor.pow.1.forward"


def find_node(graph, name, slot="output.0"):
    return int(graph.target_nodes[find_value(graph.comparison.alignment.target, name, slot)])


def cancel_residual(trace, share):
    """Scale the residual sum of layer 1 by a share, as if its two terms nearly canceled."""
    rows = find_result(trace, RESIDUAL)
    numbers = ("max", "min", "mean", "norm")
    return edit_tensors(
        trace, rows, **{name: trace.tensors[name].iat[rows[0]] * share for name in numbers}
    )


class TestConditioning:
    def test_conditioning_is_that_of_the_operator_in_the_rules(self, trace):
        graph, _ = classify_traces(trace("pt_none"), trace("pt_none"))
        factors = compute_conditioning(graph, load_shipped_rules())
        assert factors[find_node(graph, SILU)] == load_shipped_rules().get_conditioning("silu")
        assert factors[find_node(graph, LINEAR)] == load_shipped_rules().get_conditioning("matmul")

    def test_a_value_without_a_producer_has_none(self, trace):
        graph, _ = classify_traces(trace("pt_none"), trace("pt_none"))
        assert (
            compute_conditioning(graph, load_shipped_rules())[find_node(graph, LINEAR, "input.1")]
            == 1
        )

    def test_no_operator_makes_errors_smaller(self, trace):
        graph, _ = classify_traces(trace("ms_graph"), trace("v6.0_api_stack_summary"))
        assert (compute_conditioning(graph, load_shipped_rules()) >= 1).all()


class TestCancellation:
    @pytest.mark.parametrize("share", [1e-1, 1e-3])
    def test_cancellation_is_how_much_smaller_the_sum_is_than_its_terms(self, trace, share):
        clean_trace = trace("pt_none")
        graph, _ = classify_traces(
            cancel_residual(clean_trace, share), cancel_residual(clean_trace, share)
        )
        plain_graph, _ = classify_traces(clean_trace, clean_trace)
        flow = plain_graph.comparison.alignment.target
        terms = sum(flow.norms[find_value(flow, RESIDUAL, slot)] for slot in ("input.0", "input.1"))
        total = flow.norms[find_value(flow, RESIDUAL, "output.0")] * share
        assert compute_cancellation(graph)[find_node(graph, RESIDUAL)] == pytest.approx(
            terms / total
        )

    def test_cancellation_is_never_below_one(self, trace):
        graph, _ = classify_traces(trace("ms_graph"), trace("v6.0_api_stack_summary"))
        assert (compute_cancellation(graph) >= 1).all()

    def test_the_larger_sum_counts_whichever_side_it_is_of(self, trace):
        clean_trace = trace("pt_none")
        close = cancel_residual(clean_trace, 1e-3)
        for target, reference in ((close, clean_trace), (clean_trace, close)):
            graph, _ = classify_traces(target, reference)
            assert 1 <= compute_cancellation(graph)[find_node(graph, RESIDUAL)] <= 3

    def test_the_gradient_of_a_bias_is_a_sum_over_rows(self, trace):
        """The gradient of a key bias is zero: softmax ignores what all scores have in common."""
        graph, _ = classify_traces(trace("pt_gpt2"), trace("pt_gpt2"))
        cancellation = compute_cancellation(graph)
        flow = graph.comparison.alignment.target
        key_biases, other_biases, weights = [], [], []
        for value, producer in enumerate(flow.producers.tolist()):
            name = flow.trace.ops["name"].iat[producer]
            if producer < 0 or not name.endswith("Linear.parameters_grad.0"):
                continue
            factor = cancellation[graph.target_nodes[value]]
            if flow.sizes[value] > 1000:
                weights.append(factor)
            elif "k_proj" in name:
                key_biases.append(factor)
            else:
                other_biases.append(factor)
        assert len(key_biases) == 2
        assert min(key_biases) > 1e6
        assert 1 < min(other_biases) < max(other_biases) < 10
        assert set(weights) == {1.0}

    def test_the_gradient_of_a_bias_that_two_calls_share_is_one_sum(self, trace):
        """Only rounding is left of its two terms, so of their sum, which is an op of its own."""
        graph, _ = classify_traces(trace("ms_shared"), trace("pt_shared"))
        cancellation = compute_cancellation(graph)
        flow = graph.comparison.alignment.reference
        factors = {}
        for value, producer in enumerate(flow.producers.tolist()):
            name = flow.trace.ops["name"].iat[producer]
            if producer >= 0 and flow.sizes[value] == 8 and "Linear.parameters_grad" in name:
                factors[name.split(".")[2]] = cancellation[graph.reference_nodes[value]]
        assert set(factors) == {"query", "key", "value", "out"}
        assert factors.pop("key") > 1e6
        assert max(factors.values()) < 10

    def test_the_gradient_of_a_kernel_is_a_sum_of_products(self, dump):
        """Its record reads the given gradient only; the other factor is the input of the call."""
        call, record = "Functional.conv1d.0.forward", "Functional.conv1d.0.backward"
        net = read(dump("pt_coupling_forms") / "gate_inner")
        rows = find_tensors_like(net, record, "output.1")
        close = edit_tensors(net, rows, norm=1e-3 * net.tensors["norm"].iat[rows[0]])
        graph, _ = classify_traces(close, close)
        flow = graph.comparison.alignment.target
        x, kernel = (find_value(flow, call, f"input.{i}") for i in (0, 1))
        given_gradient = find_value(flow, record, "input.0")
        kernel_gradient = find_value(flow, record, "output.1")
        n_products = np.sqrt(flow.sizes[x] * flow.sizes[given_gradient] / flow.sizes[kernel])
        terms = np.sqrt(n_products) * flow.rms[x] * flow.rms[given_gradient]
        factor = compute_cancellation(graph)[graph.target_nodes[kernel_gradient]]
        assert factor == pytest.approx(terms / flow.rms[kernel_gradient])
        assert factor > 100

    def test_the_sum_in_a_softmax_takes_away_what_all_its_elements_share(self, trace):
        call, record = "Functional.softmax.1.forward", "Functional.softmax.1.backward"
        rows = find_tensors_like(trace("pt_none"), record, "output.0")
        norm = 1e-6 * trace("pt_none").tensors["norm"].iat[rows[0]]
        close = edit_tensors(trace("pt_none"), rows, norm=norm)
        graph, _ = classify_traces(close, close)
        flow = graph.comparison.alignment.target
        probabilities = find_value(flow, call, "output.0")
        given, result = (find_value(flow, record, slot) for slot in ("input.0", "output.0"))
        factor = compute_cancellation(graph)[graph.target_nodes[result]]
        terms = flow.rms[given] * flow.rms[probabilities]
        assert factor == pytest.approx(terms / flow.rms[result])
        assert factor > 1e4

    def test_only_sums_cancel(self, trace):
        graph, _ = classify_traces(trace("pt_none"), trace("pt_none"))
        factors = compute_cancellation(graph)
        for name in (SILU, "Functional.softmax.1.forward", "Functional.layer_norm.3.forward"):
            assert factors[find_node(graph, name)] == 1

    def test_products_of_random_sign_are_no_cancellation(self, trace):
        """The sum of n of them grows with the root of n, not with n."""
        graph, _ = classify_traces(trace("pt_none"), trace("pt_none"))
        assert compute_cancellation(graph)[find_node(graph, LINEAR)] < 3

    def test_a_difference_within_the_cancellation_agrees(self, trace):
        """1e-4 of a sum that is a thousandth of its terms is 1e-7 of the terms."""
        clean_trace = trace("pt_none")
        close = cancel_residual(clean_trace, 1e-3)
        rows = find_result(close, RESIDUAL)
        error = {
            name: close.tensors[name].iat[rows[0]] * (1 + 1e-4)
            for name in ("max", "min", "mean", "norm")
        }
        for target, reference, state in (
            (edit_tensors(close, rows, **error), close, "agreeing"),
            (cancel_residual(clean_trace, 1 + 1e-4), clean_trace, "isolated"),
        ):
            graph, states = classify_traces(target, reference)
            assert states.state[find_node(graph, RESIDUAL)] == state
            assert np.isfinite(compute_cancellation(graph)).all()


class TestCarried:
    def test_a_loss_shows_at_least_a_thirtieth_of_what_is_expected(self, trace):
        graph, _ = classify_traces(trace("pt_none"), trace("pt_none"))
        flow, share = graph.comparison.alignment.target, build_visibility_function(graph)
        norm, loss = (
            find_value(flow, SILU, "output.0"),
            find_value(flow, "Functional.cross_entropy.0.forward", "output.0"),
        )
        assert share(int(graph.target_nodes[norm]), int(graph.target_nodes[loss])) == pytest.approx(
            flow.sizes[norm] ** -0.5 / 30
        )

    def test_a_residual_sum_shows_a_branch_by_its_size(self, trace):
        graph, _ = classify_traces(trace("pt_none"), trace("pt_none"))
        flow, share = graph.comparison.alignment.target, build_visibility_function(graph)
        total = find_value(flow, RESIDUAL, "output.0")
        for slot in ("input.0", "input.1"):
            branch = find_value(flow, RESIDUAL, slot)
            expected = min(1, flow.rms[branch] / flow.rms[total])
            assert share(
                int(graph.target_nodes[branch]), int(graph.target_nodes[total])
            ) == pytest.approx(expected)

    def test_the_gradient_of_a_bias_has_the_whole_error_of_the_given_one(self, trace):
        record = "Tensor.__add__.0.backward"  # of positions, in each sequence of the batch
        graph, _ = classify_traces(trace("pt_gpt2"), trace("pt_gpt2"))
        flow, share = graph.comparison.alignment.target, build_visibility_function(graph)
        given, gradient = (find_value(flow, record, slot) for slot in ("input.0", "output.1"))
        assert flow.rms[given] < 0.9 * flow.rms[gradient]
        assert share(int(graph.target_nodes[given]), int(graph.target_nodes[gradient])) == 1

    def test_an_activation_shows_the_whole_carried_error(self, trace):
        graph, _ = classify_traces(trace("pt_none"), trace("pt_none"))
        share = build_visibility_function(graph)
        assert share(find_node(graph, SILU, "input.0"), find_node(graph, SILU)) == 1


class TestElementwiseErrors:
    """What single elements of an input differ by is in its extremes, not in its norm."""

    def edit(self, trace, name, statistic, input_factor, output_factor):
        for rows, factor in (
            (find_tensors_like(trace, name, "input.0"), input_factor),
            (find_result(trace, name), output_factor),
        ):
            number = trace.tensors[statistic].iat[rows[0]] * factor
            trace = edit_tensors(trace, rows, **{statistic: number})
        return trace

    @pytest.mark.parametrize(("input_factor", "agrees"), [(2.0, True), (1.0, False)])
    def test_the_root_of_a_number_near_zero_differs_by_more_than_the_number(
        self, trace, input_factor, agrees
    ):
        clean_trace = trace("parallel_pt_tp1")
        edited = self.edit(clean_trace, ROOT, "min", input_factor, 2**0.5)
        graph, states = classify_traces(edited, clean_trace)
        assert (states.state[find_node(graph, ROOT)] == "agreeing") is agrees

    @pytest.mark.parametrize(("norm_factor", "agrees"), [(1.0, True), (1 + 1e-4, False)])
    def test_an_extreme_after_a_multiplication_by_signs_may_be_any_element(
        self, dump, norm_factor, agrees
    ):
        name = "Torch.abs.0.backward"
        trace = read(dump("pt_distances") / "distance_plain")
        clean_trace = edit_tensors(trace, range(len(trace.tensors)), file="")
        edited = self.edit(clean_trace, name, "max", 1 + 1e-6, 1 + 1.2e-5)
        edited = self.edit(edited, name, "norm", 1, norm_factor)
        graph, states = classify_traces(edited, clean_trace)
        assert (states.state[find_node(graph, name)] == "agreeing") is agrees

    @pytest.mark.parametrize(("input_factor", "agrees"), [(3e-6, True), (0.0, False)])
    def test_the_norm_of_a_square_shows_the_error_of_the_largest_elements(
        self, trace, input_factor, agrees
    ):
        clean_trace = trace("parallel_pt_tp1")
        edited = self.edit(clean_trace, SQUARE, "max", 1 + input_factor, 1)
        edited = self.edit(edited, SQUARE, "norm", 1, 1 + 5e-6)
        graph, states = classify_traces(edited, clean_trace)
        assert (states.state[find_node(graph, SQUARE)] == "agreeing") is agrees


class TestMaskedScores:
    """A mask leaves scores near zero: their error is that of the scores it hides, too."""

    SCORES, MASKED, SOFTMAX = "call.0", "call.1", "call.2"

    @pytest.fixture
    def clean_trace(self):
        random = np.random.default_rng(5)
        x, weight = random.standard_normal((32, 8)), random.standard_normal((8, 8))
        scores = x @ weight.T
        is_hidden = np.abs(scores) > 0.3
        masked = np.where(is_hidden, -1e9, scores)
        exponentials = np.exp(masked - masked.max(axis=-1, keepdims=True))
        trace = record_calls(
            ("Functional.linear", (x, weight), scores),
            ("Tensor.masked_fill", (scores, is_hidden.astype(float)), masked),
            ("Functional.softmax", (masked,), exponentials / exponentials.sum(-1, keepdims=True)),
        )
        return edit_tensors(trace, find_tensor(trace, self.MASKED, "input.1"), dtype="bool")

    def change_maximum(self, trace, name, difference):
        """Return the trace with another maximum of what an op gives, and noise in the scores."""
        for op, change in ((self.SCORES, 1e-6), (self.MASKED, 1e-7), (name, difference)):
            rows = find_result(trace, op)
            trace = edit_tensors(trace, rows, max=trace.tensors["max"].iat[rows[0]] + change)
        return trace

    @pytest.mark.parametrize(("difference", "agrees"), [(6e-6, True), (3e-4, False)])
    def test_a_score_beside_the_mask_may_err_like_those_behind_it(
        self, clean_trace, difference, agrees
    ):
        edited = self.change_maximum(clean_trace, self.MASKED, difference)
        graph, states = classify_traces(edited, clean_trace)
        assert (states.state[find_node(graph, self.MASKED)] == "agreeing") is agrees

    @pytest.mark.parametrize(("difference", "agrees"), [(1e-5, True), (1e-3, False)])
    def test_a_probability_has_the_error_of_its_score(self, clean_trace, difference, agrees):
        edited = self.change_maximum(clean_trace, self.SOFTMAX, difference)
        graph, states = classify_traces(edited, clean_trace)
        assert (states.state[find_node(graph, self.SOFTMAX)] == "agreeing") is agrees


class TestBroadcastOperands:
    """The gradient of an operand of one number per row is a sum, which may cancel."""

    @pytest.mark.parametrize(("kind", "is_first"), [("mul", False), ("div", False), ("div", True)])
    def test_its_terms_add_up_to_what_the_numbers_give(self, kind: str, is_first: bool) -> None:
        rng = np.random.default_rng(3)
        gradient, whole = rng.uniform(1, 2, (2, 8, 64))
        single = rng.uniform(1, 2, (8, 1))
        if kind == "mul":
            terms = gradient * whole
        else:
            terms = gradient / whole if is_first else gradient * whole / single**2
        arrays = [single, whole, gradient, terms.sum(axis=1)]
        flow = SimpleNamespace(
            calls=[-1, 0],
            reads=[(0, 1), (2,)],
            operands=[(0, 1) if is_first else (1, 0), (2,)],
            rms=[float(np.sqrt(np.mean(array**2))) for array in arrays],
            list_column=lambda _: [array.size for array in arrays],
        )
        side = SimpleNamespace(flow=flow, kinds=[kind, f"grad:{kind}"])
        total = _add_broadcast_terms(side, 3, 1)
        assert total == pytest.approx(float(np.abs(terms).sum(axis=1).mean()), rel=0.2)
