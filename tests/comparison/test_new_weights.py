"""New weights are judged by the step, states by the rounding of 1 - beta."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from traces import compare_traces, locate_divergence, replace_arrays

from dumpdiff.comparison.new_weights import (
    HIDDEN_STEP,
    NOISE_STEP,
    STATE_ROUNDING,
    _holds_noise,
    compute_adam_error,
)
from dumpdiff.graph import build_flow

#: Of a net of 33 forward ops, the unused gradients of the loss alone are a quarter of the backward.
TINY_NET_COVERAGE = 0.6


def drop_files(trace):
    """Return the trace with the statistics of its whole tensors only."""
    return replace(trace, tensors=build_flow(trace).tensors.assign(file=""))


def select_new_weights(comparison):
    """Return the rows of new weights, indexed by the parameter's name in the target."""
    names = comparison.alignment.target.list_column("update_of")
    classes = {new_weight.target for new_weight in comparison.alignment.new_weights}
    rows = comparison.pairs[comparison.pairs["target"].isin(classes)]
    return rows.set_index(rows["target"].map(lambda value: names[value]))


@pytest.mark.parametrize(
    ("target", "reference"),
    [("ms_update_adam", "pt_update_adam"), ("ms_update_assign_sub", "pt_update_sgd")],
)
@pytest.mark.parametrize("keep_form", [lambda trace: trace, drop_files])
def test_a_correct_step_is_aligned_and_its_new_weights_are_compared(
    trace, target, reference, keep_form
):
    sides = keep_form(trace(target)), keep_form(trace(reference))
    result = locate_divergence(*sides, min_coverage=TINY_NET_COVERAGE)
    assert (result.verdict, result.findings) == ("aligned", ())
    for phases in result.coverage.values():
        figures = phases["optimizer"]
        assert figures["compared"] + figures["reconverged"] >= 0.8 * figures["ops"]


def test_every_new_weight_has_the_partner_of_its_old_weight(trace):
    comparison = compare_traces(trace("ms_update_adam"), trace("pt_update_adam"))
    new_weights = select_new_weights(comparison)
    assert len(new_weights) == 6
    assert set(new_weights["evidence"]) == {"update"}
    is_compared = new_weights["comparable"]
    assert (new_weights["error"] < 1e-5)[is_compared].all()


def test_a_second_moment_may_be_off_by_the_rounding_of_one_minus_beta(trace):
    comparison = compare_traces(trace("ms_update_adam"), trace("pt_update_adam"))
    names = comparison.alignment.target.list_column("update_of")
    is_state = comparison.pairs["target"].isin(comparison.alignment.states)
    states = comparison.pairs[is_state]
    is_second = [names[value].startswith("moment2") for value in states["target"]]
    second_moments = states[is_second]
    assert len(second_moments) == 6
    # 1 - float32(0.999) is 1.3e-5 less than 0.001
    assert (second_moments["error"] > 1.2e-5).sum() >= 5
    assert (second_moments["tolerance"] == STATE_ROUNDING).all()


@pytest.mark.parametrize(
    ("lowest", "size", "is_noise"),
    [(1e-22, 40, True), (1e-9, 40, False), (1e-22, 10_000_000, False)],
    ids=["far below the others", "as small as others", "one of so many"],
)
def test_statistics_show_an_element_of_noise_if_chance_makes_none_so_small(lowest, size, is_noise):
    columns = {"min": [lowest], "mean": [6e-8]}
    flow = SimpleNamespace(list_column=columns.__getitem__, sizes=[size])
    assert _holds_noise(flow, 0, 1e-6) == is_noise
    assert not _holds_noise(flow, -1, 1e-6)


def test_adams_step_after_a_gradient_of_rounding_noise_is_not_compared(trace):
    """A bias before a batch norm has no gradient: Adam divides its noise by itself."""
    comparison = compare_traces(trace("ms_update_adam"), trace("pt_update_adam"))
    bias = select_new_weights(comparison).loc["first.bias"]
    assert not bias["comparable"]
    assert bias["reason"] == NOISE_STEP
    assert bias["error"] > 1e-4


@pytest.mark.parametrize("keep_form", [lambda trace: trace, drop_files])
def test_a_doubled_learning_rate_of_one_group_is_found_in_both_weights_of_it(trace, keep_form):
    target, reference = keep_form(trace("ms_update_adam")), keep_form(trace("pt_update_adam_rate"))
    result = locate_divergence(target, reference)
    assert result.verdict == "diverged"
    assert [finding.phase for finding in result.findings] == ["optimizer", "optimizer"]
    new_weights = select_new_weights(compare_traces(target, reference))
    is_wrong = ~new_weights["agrees"] & new_weights["comparable"]
    assert set(new_weights.index[is_wrong]) >= {"first.weight", "second.weight"}
    assert {finding.scope for finding in result.findings} == {"first", "second"}


def test_a_small_rate_is_found_when_doubled(trace):
    """The tolerance is four roundings of the weight, not the noise of the network."""
    comparison = compare_traces(trace("ms_update_assign_sub"), trace("pt_update_sgd"))
    pair = select_new_weights(comparison).loc["second.weight"]
    (old,) = [
        new_weight.old_reference
        for new_weight in comparison.alignment.new_weights
        if new_weight.target == pair["target"]
    ]
    reference = comparison.alignment.reference
    old_array = reference.trace.array(reference.list_column("tensor")[old])
    slots = {}
    for side, flow in (("target", comparison.alignment.target), ("reference", reference)):
        tensor = pair[f"{side}_tensor"]
        name = flow.trace.ops["name"].iat[flow.tensors["op"].iat[tensor]]
        slots[side] = (name, flow.tensors["slot"].iat[tensor])

    def shrink(factor):
        """Return the new weight after a step of so many thousandths of the recorded one."""
        return lambda array: (old_array + factor * (array - old_array) / 1000).astype("float32")

    target = replace_arrays(trace("ms_update_assign_sub"), *slots["target"], shrink(1))
    for factor, agrees in ((1, True), (2, False)):
        changed = replace_arrays(trace("pt_update_sgd"), *slots["reference"], shrink(factor))
        small_pair = select_new_weights(compare_traces(target, changed)).loc["second.weight"]
        assert small_pair["tolerance"] < 1e-6
        assert small_pair["comparable"]
        assert small_pair["agrees"] == agrees


def test_a_step_below_the_resolution_of_statistics_is_not_compared(trace):
    target, reference = (
        drop_files(trace(name)) for name in ("ms_update_assign_sub", "pt_update_sgd")
    )
    comparison = compare_traces(target, reference)
    pair = select_new_weights(comparison).loc["second.weight"]
    new_weight = next(
        item for item in comparison.alignment.new_weights if item.target == pair["target"]
    )
    old_t = comparison.alignment.classes.set_index("reference").loc[new_weight.old_reference]
    tensors_t, tensors_r = target.tensors.copy(), reference.tensors.copy()
    flow_t, flow_r = comparison.alignment.target, comparison.alignment.reference
    for tensors, new_row, flow, old, shift in (
        (tensors_t, pair["target_tensor"], flow_t, int(old_t["target"]), 1e-6),
        (tensors_r, pair["reference_tensor"], flow_r, new_weight.old_reference, 2e-6),
    ):
        for name in ("max", "min", "mean", "norm"):
            tensors.loc[new_row, name] = flow.list_column(name)[old] * (1 + shift)
    hidden = select_new_weights(
        compare_traces(replace(target, tensors=tensors_t), replace(reference, tensors=tensors_r))
    ).loc["second.weight"]
    assert not hidden["comparable"]
    assert hidden["reason"] == HIDDEN_STEP


class TestAdamError:
    def test_elements_far_above_the_noise_count_little(self):
        assert compute_adam_error(np.full(100, 1e-4), 1e-6) == pytest.approx(2e-6, rel=0.01)

    def test_an_element_below_the_noise_may_go_either_way(self):
        second_moment = np.full(100, 1e-4)
        second_moment[0] = 1e-20
        assert compute_adam_error(second_moment, 1e-6) == pytest.approx(0.2, rel=0.01)

    def test_an_element_without_gradient_has_no_step(self):
        assert compute_adam_error(np.zeros(8), 1e-6) == 0.0
