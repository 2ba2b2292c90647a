"""The state of every value."""

import numpy as np
import pytest
from parallel_runs import read_ranks
from traces import (
    add_noise,
    classify_traces,
    edit_tensors,
    find_dependents,
    find_op,
    find_outputs,
    find_result,
    find_tensor,
    find_tensors_like,
    find_value,
    locate_divergence,
    record_calls,
    remove_tensors,
    rename_kind,
    scale_arrays,
    scale_result,
    scale_tensors,
)

from dumpdiff import read
from dumpdiff.comparison.new_weights import HIDDEN_STEP

FIRST, SILU, SOFTMAX = (
    "Tensor.__add__.1.forward",
    "Functional.silu.1.forward",
    "Functional.softmax.1.forward",
)
GRADIENTS = "Module.module.Rotation.parameters_grad.0"
GATE, DOWN = "Functional.linear.11.forward", "Functional.linear.13.forward"
PRODUCT, RESIDUAL = "Tensor.__mul__.1.forward", "Tensor.__add__.5.forward"


def find_state(target, reference, name, slot="output.0"):
    graph, states = classify_traces(target, reference)
    return states.state[
        graph.target_nodes[find_value(graph.comparison.alignment.target, name, slot)]
    ]


@pytest.fixture(scope="module")
def diverged_states(trace):
    """(graph, states, target's flow) if everything after the activation of layer 1 differs."""
    clean_trace = trace("pt_none")
    graph, states = classify_traces(
        scale_result(clean_trace, SILU, 1.05, and_after=True), clean_trace
    )
    return graph, states, graph.comparison.alignment.target


class TestTwoEqualRuns:
    @pytest.mark.parametrize("name", ["pt_none", "ms_mf_none", "demo_pytorch"])
    def test_two_equal_runs_agree_wherever_they_can_be_compared(self, trace, name):
        graph, states = classify_traces(trace(name), trace(name))
        comparable = graph.comparison.pairs["comparable"].to_numpy()
        assert set(states.state[: len(comparable)][comparable]) == {"agreeing"}

    def test_two_equal_runs_agree_with_noise_too(self, trace):
        graph, states = classify_traces(add_noise(trace("pt_none"), 1e-6), trace("pt_none"))
        # the embedding's step is as small as the noise of its statistics
        is_hidden = (graph.comparison.pairs["reason"] == HIDDEN_STEP).to_numpy()
        assert is_hidden.sum() == 1
        assert set(states.state[: len(is_hidden)][~is_hidden]) == {"agreeing"}


class TestADivergence:
    def test_a_divergence_is_introduced_once(self, diverged_states):
        graph, states, flow = diverged_states
        introduced = np.flatnonzero(states.state == "introduced")
        assert introduced.tolist() == [graph.target_nodes[find_value(flow, SILU, "output.0")]]

    def test_a_divergence_is_propagated_to_all_computed_values(self, diverged_states, trace):
        graph, states, flow = diverged_states
        changed = {flow.tensor_class[row] for row in find_dependents(trace("pt_none"), SILU)}
        changed -= {find_value(flow, SILU, "output.0")}
        assert {states.state[graph.target_nodes[v]] for v in changed} == {"propagated"}

    def test_leaves_the_rest_agreeing(self, diverged_states, trace):
        graph, states, flow = diverged_states
        changed = {flow.tensor_class[row] for row in find_dependents(trace("pt_none"), SILU)}
        other_nodes = [graph.target_nodes[v] for v in range(len(flow.classes)) if v not in changed]
        assert {states.state[n] for n in other_nodes} == {"agreeing"}

    def test_a_divergence_knows_the_agreeing_values_above_it(self, diverged_states):
        graph, states, flow = diverged_states
        ancestry = states.ancestry[graph.target_nodes[find_value(flow, SILU, "output.0")]]
        assert ancestry.ancestors == (graph.target_nodes[find_value(flow, GATE, "output.0")],)
        assert ancestry.worst_agreeing_error == 0
        assert not ancestry.has_diverged
        assert ancestry.unpaired_nodes == ()

    def test_a_value_computed_from_a_divergence_has_the_error_of_its_input(self, diverged_states):
        graph, states, flow = diverged_states
        descendant = states.ancestry[graph.target_nodes[find_value(flow, DOWN, "output.0")]]
        assert descendant.has_diverged
        assert descendant.worst_diverged_error == pytest.approx(0.05 / 1.05, rel=0.01)


def test_an_error_that_grows_beyond_conditioning_is_amplified(trace):
    clean_trace = trace("pt_none")
    target = scale_result(
        scale_result(clean_trace, FIRST, 1.0005, and_after=True), SOFTMAX, 1.5, and_after=True
    )
    assert find_state(target, clean_trace, FIRST) == "introduced"
    assert find_state(target, clean_trace, "Torch.matmul.2.forward") == "propagated"
    assert find_state(target, clean_trace, SOFTMAX) == "amplified"


def test_after_a_divergence_of_the_forward_pass_no_gradient_is_introduced(trace):
    """Every gradient depends on the whole forward pass, though no recorder wrote that edge down."""
    clean_trace = trace("pt_none")
    gradient = "Functional.silu.3.backward"
    later = np.flatnonzero(
        clean_trace.tensors["op"] > find_op(clean_trace, gradient)
    )  # gradients add up unrecorded
    wrong_rows = {*find_result(clean_trace, gradient), *later}
    assert (
        find_state(
            scale_tensors(scale_result(clean_trace, SILU, 1.05, and_after=True), wrong_rows, 1.1),
            clean_trace,
            gradient,
        )
        == "propagated"
    )
    assert (
        find_state(scale_tensors(clean_trace, wrong_rows, 1.1), clean_trace, gradient)
        == "introduced"
    )


class TestReconvergence:
    def test_a_value_of_another_decomposition_may_differ(self, trace):
        """The target divides by 4 after the bias of 0: as kinds go, it is another operator."""
        clean_trace = trace("pt_none")
        target = scale_result(clean_trace, SILU, 1.05)
        other_kind = rename_kind(target, SILU, "Functional.gelu")
        assert find_state(other_kind, clean_trace, SILU) == "reconverged"

    @pytest.mark.parametrize("factor", [1.05, 1.3, 0.78, -1.0])
    def test_the_same_operator_on_the_same_inputs_is_no_other_decomposition(self, trace, factor):
        """All that is computed from it agrees: the record holds something else."""
        clean_trace = trace("pt_none")
        assert find_state(scale_result(clean_trace, SILU, factor), clean_trace, SILU) == "isolated"

    def test_a_difference_with_consequences_that_cancel_later_is_introduced(self, trace):
        """As a gradient that is doubled until clipping divides by its norm."""
        clean_trace = trace("pt_none")
        target = scale_result(scale_result(clean_trace, SILU, 2.0), PRODUCT, 2.0)
        assert find_state(target, clean_trace, SILU) == "introduced"
        assert find_state(target, clean_trace, PRODUCT) == "propagated"
        assert find_state(target, clean_trace, DOWN) == "agreeing"

    def test_what_leads_nowhere_is_not_reconverged(self, trace):
        """As the loss: nothing in the forward pass is computed from it."""
        clean_trace = trace("pt_none")
        assert (
            find_state(
                scale_result(clean_trace, "Tensor.add_.3.forward", 1.1),
                clean_trace,
                "Tensor.add_.3.forward",
            )
            == "introduced"
        )

    def test_what_gradients_alone_show_is_not_reconverged(self, trace):
        """All that follows looks equal, but gradients differ without another cause."""
        clean_trace = trace("pt_none")
        gradients = np.flatnonzero(
            (clean_trace.ops["phase"] == "backward").to_numpy()[clean_trace.tensors["op"]]
        )
        assert (
            find_state(
                scale_tensors(scale_result(clean_trace, SILU, 1.05), gradients, 1.1),
                clean_trace,
                SILU,
            )
            == "introduced"
        )

    def test_a_parameter_that_differs_is_not_reconverged(self, trace):
        clean_trace = trace("pt_none")
        target = scale_tensors(clean_trace, find_tensors_like(clean_trace, GATE, "input.1"), 1.01)
        assert find_state(target, clean_trace, GATE, "input.1") == "introduced"


class TestNoticedErrors:
    """What agrees speaks for a value above it only if it would have shown the error."""

    @pytest.mark.parametrize(("error", "expected"), [(1e-3, "isolated"), (2e-4, "introduced")])
    def test_a_sum_shows_a_branch_by_its_share(self, trace, error, expected):
        """The branch is 1/270 of the sum, whose tolerance is 1.9e-6: it shows from 5e-4 on."""
        clean_trace = scale_result(trace("pt_none"), RESIDUAL, 100)
        assert find_state(scale_result(clean_trace, DOWN, 1 + error), clean_trace, DOWN) == expected

    @pytest.mark.parametrize(("product_error", "later_factor", "expected"), [
        (0, 1.07, "reconverged"),
        (6e-6, 1.0, "reconverged"),
        (6e-6, 1.07, "unpaired"),
    ])  # fmt: skip
    def test_agreement_explained_by_input_errors_counts_only_if_what_follows_agrees(
        self, trace, product_error, later_factor, expected
    ):
        """The gate is within its tolerance; its product is not, which the gate's error explains."""
        clean_trace = trace("pt_none")
        target = scale_result(clean_trace, GATE, 1 + 1.5e-6)
        target = scale_result(target, PRODUCT, 1 + product_error)
        target = scale_result(target, DOWN, later_factor, and_after=True)
        graph, states = classify_traces(
            remove_tensors(target, find_tensors_like(clean_trace, SILU, "output.0")), clean_trace
        )
        reference = graph.comparison.alignment.reference
        nodes = {
            name: graph.reference_nodes[find_value(reference, name, "output.0")]
            for name in (SILU, PRODUCT)
        }
        assert (states.state[nodes[PRODUCT]], states.state[nodes[SILU]]) == ("agreeing", expected)


class TestNothingToCompare:
    def test_a_value_that_one_side_lacks_is_replaced_by_its_ancestry(self, trace):
        clean_trace = trace("pt_none")
        division = "Tensor.__truediv__.1.forward"
        masked = "Tensor.__add__.3.forward"
        cut = remove_tensors(
            scale_result(clean_trace, masked, 1.3, and_after=True),
            find_tensors_like(clean_trace, division, "output.0"),
        )
        graph, states = classify_traces(cut, clean_trace)
        ancestry = states.ancestry[
            graph.target_nodes[find_value(graph.comparison.alignment.target, masked, "output.0")]
        ]
        reference = graph.comparison.alignment.reference
        assert ancestry.unpaired_nodes == (
            graph.reference_nodes[find_value(reference, division, "output.0")],
        )
        assert (
            graph.reference_nodes[find_value(reference, "Torch.matmul.2.forward", "output.0")]
            in ancestry.ancestors
        )

    def test_a_pair_without_numbers_is_incomparable(self, trace):
        clean_trace = trace("pt_none")
        bare_trace = edit_tensors(
            clean_trace,
            find_outputs(clean_trace, "Tensor.add_.3.forward"),
            max=np.nan,
            min=np.nan,
            mean=np.nan,
            norm=np.nan,
        )
        expected = find_state(bare_trace, clean_trace, "Tensor.add_.3.forward")
        assert expected == "incomparable"


class TestGradientsAfterAnotherDecomposition:
    """Rotated pairs against rotated halves: five forward values differ and reconverge."""

    @pytest.fixture
    def sides(self, dump):
        return [read(dump("pt_variants") / f"rotation_{name}") for name in ("pairs", "halves")]

    @pytest.mark.parametrize("is_exchanged", [False, True])
    def test_a_wrong_gradient_is_introduced_where_the_gradients_before_it_agree(
        self, sides, is_exchanged
    ):
        """The forward values are no cause of it and stay reconverged."""
        rows = find_dependents(sides[0], "Torch.softmax.0.backward")
        rows += [find_tensor(sides[0], GRADIENTS, f"output.{name}") for name in ("query", "key")]
        wrong = scale_arrays(scale_tensors(sides[0], rows, 1.3), rows, 1.3)
        pair = (wrong, sides[1])
        graph, states = classify_traces(*(pair[::-1] if is_exchanged else pair))
        pair_states = states.state[: len(graph.comparison.pairs)]
        phases = graph.phase[: len(pair_states)]
        (node,) = np.flatnonzero(pair_states == "introduced").tolist()
        side = graph.sides[is_exchanged]
        producer = side.flow.producers[side.classes[node]]
        assert side.flow.trace.ops["name"].iat[producer] == "Torch.softmax.0.backward"
        assert set(pair_states[phases == "forward"]) == {"agreeing", "reconverged"}
        assert (pair_states[phases == "forward"] == "reconverged").sum() >= 5

    def test_a_gradient_that_no_gradient_of_a_parameter_shows_is_none_of_both(self, sides):
        """The gradients of queries and keys agree, so their scores have none that differs."""
        rows = find_dependents(sides[0], "Torch.softmax.0.backward")
        wrong = scale_arrays(scale_tensors(sides[0], rows, 1.3), rows, 1.3)
        graph, states = classify_traces(wrong, sides[1])
        flow = graph.comparison.alignment.target
        node = graph.target_nodes[find_value(flow, "Torch.softmax.0.backward", "output.0")]
        assert graph.comparison.pairs["error"].iat[node] == pytest.approx(0.3, rel=0.01)
        assert states.state[node] == "reconverged"

    @pytest.mark.parametrize(("error", "expected"), [(1e-4, "agreeing"), (4e-4, "introduced")])
    def test_a_lone_gradient_may_differ_by_less_than_rounding_to_float16(
        self, sides, error, expected
    ):
        rows = [find_tensor(sides[0], GRADIENTS, "output.key")]
        graph, states = classify_traces(scale_arrays(sides[0], rows, 1 + error), sides[0])
        flow = graph.comparison.alignment.target
        node = graph.target_nodes[find_value(flow, GRADIENTS, "output.key")]
        assert states.state[node] == expected
        assert (states.allowed_errors[node] >= error / 2) == (expected == "agreeing")

    def test_without_a_wrong_gradient_all_agree_again(self, sides):
        graph, states = classify_traces(*sides)
        assert set(states.state[: len(graph.comparison.pairs)]) == {"agreeing", "reconverged"}


def test_a_mask_added_in_place_of_a_fill_is_not_blamed_for_a_later_error(dump):
    """The softmax after each mask agrees: it shows that the masked scores reconverged.

    A rank that only receives an error has no other value that is introduced.
    """
    target = read_ranks(dump("parallel_ms_tp2"))[0]
    reference = read_ranks(dump("parallel_pt_tp2"))[0]
    names = target.ops["name"].tolist()
    reductions = [name for name in names if "AllReduce" in name and "layers-CellList/1" in name]
    result = locate_divergence(scale_result(target, reductions[0], 1.01, and_after=True), reference)
    assert result.findings[0].target_ops == (reductions[0],)


class TestOtherStages:
    """Ops of one kind, of which one side's gives out another value that agrees."""

    X = np.random.default_rng(8).uniform(0.2, 0.9, (6, 7))
    COLORS = np.random.default_rng(9).standard_normal((6, 7))

    @staticmethod
    def find_states(target, reference):
        states = classify_traces(record_calls(*target), record_calls(*reference))[1]
        return set(states.state.tolist())

    def record_compositing(self, is_exclusive, factor=1.0):
        """What is left behind each point, with or without the point itself, times its color."""
        products = np.cumprod(self.X, axis=0)
        left = np.concatenate([np.ones((1, 7)), products[:-1]])
        sums = (left * self.COLORS * factor).sum(axis=0)
        return [
            ("CumProd", (self.X,), left if is_exclusive else products),
            ("Mul", (left, self.COLORS), left * self.COLORS * factor),
            ("ReduceSum", (left * self.COLORS * factor,), sums),
        ]

    def test_a_running_product_may_leave_out_the_current_element(self):
        """No record shows how the other side moves its result by one place."""
        pair = self.record_compositing(True), self.record_compositing(False)
        for target, reference in (pair, pair[::-1]):
            states = self.find_states(target, reference)
            assert "isolated" not in states
            assert "introduced" not in states

    def test_an_error_behind_it_is_found(self):
        states = self.find_states(
            self.record_compositing(True), self.record_compositing(False, factor=1.01)
        )
        assert "introduced" in states
