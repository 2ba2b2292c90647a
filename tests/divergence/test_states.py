"""What became of every value."""

import numpy as np
import pytest
from traces import (
    find_dependents,
    classify_traces,
    edit_tensors,
    find_tensors_like,
    find_op,
    find_outputs,
    find_result,
    scale_result,
    scale_tensors,
    find_value,
    add_noise,
    remove_tensors,
)

FIRST, SILU, SOFTMAX = (
    "Tensor.__add__.1.forward",
    "Functional.silu.1.forward",
    "Functional.softmax.1.forward",
)
GATE, DOWN = "Functional.linear.11.forward", "Functional.linear.13.forward"
PRODUCT, RESIDUAL = "Tensor.__mul__.1.forward", "Tensor.__add__.5.forward"


def state(target, reference, name, slot="output.0"):
    graph, states = classify_traces(target, reference)
    return states.state[graph.target_nodes[find_value(graph.comparison.alignment.target, name, slot)]]


@pytest.fixture(scope="module")
def parted(trace):
    """Everything computed from the activation of layer 1 differs: (graph, states, target's flow)."""
    whole = trace("pt_none")
    graph, states = classify_traces(scale_result(whole, SILU, 1.05, and_after=True), whole)
    return graph, states, graph.comparison.alignment.target


class TestTwoEqualRuns:
    @pytest.mark.parametrize("name", ["pt_none", "ms_mf_none", "demo_pytorch"])
    def test_agree_wherever_they_can_be_compared(self, trace, name):
        graph, states = classify_traces(trace(name), trace(name))
        comparable = graph.comparison.pairs["comparable"].to_numpy()
        assert set(states.state[: len(comparable)][comparable]) == {"agreeing"}

    def test_agree_with_noise_too(self, trace):
        _, states = classify_traces(add_noise(trace("pt_none"), 1e-6), trace("pt_none"))
        assert set(states.state) == {"agreeing"}


class TestADivergence:
    def test_is_introduced_once(self, parted):
        graph, states, flow = parted
        introduced = np.flatnonzero(states.state == "introduced")
        assert introduced.tolist() == [graph.target_nodes[find_value(flow, SILU, "output.0")]]

    def test_is_propagated_to_what_is_computed_from_it(self, parted, trace):
        graph, states, flow = parted
        changed = {flow.tensor_class[row] for row in find_dependents(trace("pt_none"), SILU)}
        changed -= {find_value(flow, SILU, "output.0")}
        assert {states.state[graph.target_nodes[v]] for v in changed} == {"propagated"}

    def test_leaves_the_rest_agreeing(self, parted, trace):
        graph, states, flow = parted
        changed = {flow.tensor_class[row] for row in find_dependents(trace("pt_none"), SILU)}
        rest = [graph.target_nodes[v] for v in range(len(flow.classes)) if v not in changed]
        assert {states.state[n] for n in rest} == {"agreeing"}

    def test_remembers_the_agreement_above_it(self, parted):
        graph, states, flow = parted
        above = states.ancestry[graph.target_nodes[find_value(flow, SILU, "output.0")]]
        assert above.ancestors == (graph.target_nodes[find_value(flow, GATE, "output.0")],)
        assert above.worst_agreeing_error == 0
        assert not above.has_diverged
        assert above.unpaired_nodes == ()

    def test_says_how_far_apart_what_it_was_computed_from_is(self, parted):
        graph, states, flow = parted
        below = states.ancestry[graph.target_nodes[find_value(flow, DOWN, "output.0")]]
        assert below.has_diverged
        assert below.worst_diverged_error == pytest.approx(0.05, rel=0.01)


def test_an_error_that_grows_beyond_conditioning_is_amplified(trace):
    whole = trace("pt_none")
    target = scale_result(scale_result(whole, FIRST, 1.0005, and_after=True), SOFTMAX, 1.5, and_after=True)
    assert state(target, whole, FIRST) == "introduced"
    assert state(target, whole, "Torch.matmul.2.forward") == "propagated"
    assert state(target, whole, SOFTMAX) == "amplified"


def test_after_a_divergence_of_the_forward_pass_no_gradient_is_introduced(trace):
    """Every gradient depends on the whole forward pass, though no recorder wrote that edge down."""
    whole = trace("pt_none")
    gradient = "Functional.silu.3.backward"
    later = np.flatnonzero(whole.tensors["op"] > find_op(whole, gradient))  # gradients add up unrecorded
    wrong = {*find_result(whole, gradient), *later}
    assert (
        state(scale_tensors(scale_result(whole, SILU, 1.05, and_after=True), wrong, 1.1), whole, gradient)
        == "propagated"
    )
    assert state(scale_tensors(whole, wrong, 1.1), whole, gradient) == "introduced"


class TestHealing:
    def test_what_differs_but_leads_only_to_agreement_is_another_way_to_compute_the_same(
        self, trace
    ):
        whole = trace("pt_none")
        assert state(scale_result(whole, SILU, 1.05), whole, SILU) == "reconverged"

    def test_what_leads_nowhere_is_not_reconverged(self, trace):
        """As the loss: nothing in the forward pass is computed from it."""
        whole = trace("pt_none")
        assert (
            state(scale_result(whole, "Tensor.add_.3.forward", 1.1), whole, "Tensor.add_.3.forward")
            == "introduced"
        )

    def test_what_gradients_alone_show_is_not_reconverged(self, trace):
        """All that follows in the forward pass looks equal; the backward pass does not, and nothing else is why."""
        whole = trace("pt_none")
        gradients = np.flatnonzero(
            (whole.ops["phase"] == "backward").to_numpy()[whole.tensors["op"]]
        )
        assert state(scale_tensors(scale_result(whole, SILU, 1.05), gradients, 1.1), whole, SILU) == "introduced"

    def test_a_parameter_that_differs_is_not_reconverged(self, trace):
        whole = trace("pt_none")
        target = scale_tensors(whole, find_tensors_like(whole, GATE, "input.1"), 1.01)
        assert state(target, whole, GATE, "input.1") == "introduced"


class TestWhoVouches:
    """What agrees below heals what is off above it only if it would have noticed."""

    @pytest.mark.parametrize(("error", "found"), [(1e-3, "reconverged"), (2e-4, "introduced")])
    def test_a_sum_notices_a_branch_by_its_share(self, trace, error, found):
        """The branch is 1/270 of the sum, whose tolerance is 1.9e-6: it shows from 5e-4 on."""
        whole = scale_result(trace("pt_none"), RESIDUAL, 100)
        assert state(scale_result(whole, DOWN, 1 + error), whole, DOWN) == found

    @pytest.mark.parametrize(("off", "below", "found"), [
        (0, 1.07, "reconverged"),
        (6e-6, 1.0, "reconverged"),
        (6e-6, 1.07, "incomparable"),
    ])  # fmt: skip
    def test_what_agrees_by_its_inputs_errors_alone_vouches_only_if_what_follows_agrees(
        self, trace, off, below, found
    ):
        """The gate is within its tolerance, its product three times beyond: allowed, for a product of what is off."""
        whole = trace("pt_none")
        target = scale_result(
            scale_result(scale_result(whole, GATE, 1 + 1.5e-6), PRODUCT, 1 + off), DOWN, below, and_after=True
        )
        graph, states = classify_traces(remove_tensors(target, find_tensors_like(whole, SILU, "output.0")), whole)
        reference = graph.comparison.alignment.reference
        at = {name: graph.reference_nodes[find_value(reference, name, "output.0")] for name in (SILU, PRODUCT)}
        assert (states.state[at[PRODUCT]], states.state[at[SILU]]) == ("agreeing", found)


class TestNothingToCompare:
    def test_a_value_that_one_side_lacks_stands_for_what_lies_above_it(self, trace):
        whole = trace("pt_none")
        division = "Tensor.__truediv__.1.forward"
        masked = "Tensor.__add__.3.forward"
        cut = remove_tensors(
            scale_result(whole, masked, 1.3, and_after=True), find_tensors_like(whole, division, "output.0")
        )
        graph, states = classify_traces(cut, whole)
        above = states.ancestry[
            graph.target_nodes[find_value(graph.comparison.alignment.target, masked, "output.0")]
        ]
        reference = graph.comparison.alignment.reference
        assert above.unpaired_nodes == (graph.reference_nodes[find_value(reference, division, "output.0")],)
        assert (
            graph.reference_nodes[find_value(reference, "Torch.matmul.2.forward", "output.0")] in above.ancestors
        )

    def test_a_pair_without_numbers_is_incomparable(self, trace):
        whole = trace("pt_none")
        bare = edit_tensors(
            whole,
            find_outputs(whole, "Tensor.add_.3.forward"),
            max=np.nan,
            min=np.nan,
            mean=np.nan,
            norm=np.nan,
        )
        found = state(bare, whole, "Tensor.add_.3.forward")
        assert found == "incomparable"
