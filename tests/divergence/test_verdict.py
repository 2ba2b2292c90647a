"""The verdict: diverged, aligned or inconclusive, and why."""

import math
from dataclasses import replace

import numpy as np
import pytest
from traces import (
    add_noise,
    align_traces,
    edit_tensors,
    find_tensor,
    find_tensors_like,
    locate_divergence,
    record_calls,
    scale_result,
    select_ops,
)

from dumpdiff.divergence.verdict import _have_equal_weights
from dumpdiff.model.trace import Problem

SILU, DIVISION = "Functional.silu.1.forward", "Tensor.__truediv__.1.forward"


def select_phases(trace, *phases):
    return select_ops(trace, np.flatnonzero(trace.ops["phase"].isin(phases)).tolist())


class TestIsolated:
    """Values that differ although everything computed from them agrees."""

    def test_one_value_makes_the_answer_inconclusive(self, trace):
        clean_trace = trace("pt_none")
        result = locate_divergence(scale_result(clean_trace, SILU, 1.3), clean_trace)
        assert (result.verdict, result.first_divergence) == ("inconclusive", None)
        (finding,) = result.findings
        assert result.notes[0] == (
            f"1 value differs without consequence: {finding.title}; "
            "check the records with dumpdiff verify"
        )

    def test_several_values_are_counted(self, trace):
        clean_trace = trace("pt_none")
        damaged_trace = scale_result(scale_result(clean_trace, SILU, 1.3), DIVISION, 1.3)
        result = locate_divergence(damaged_trace, clean_trace)
        assert result.notes[0].startswith("2 values differ without consequence, first: layers.1.")


class TestAligned:
    @pytest.mark.parametrize(
        "pair", [("pt_none", "pt_none"), ("ms_mf_none", "pt_none"), ("ms_graph", "v6.0_api_stack")]
    )
    def test_clean_pairs_are(self, trace, pair):
        result = locate_divergence(*map(trace, pair))
        assert (result.verdict, result.findings) == ("aligned", ())
        assert result.first_divergence is None

    def test_a_backward_pass_that_only_one_side_recorded_is_not_needed(self, trace):
        clean_trace = trace("pt_none")
        assert (
            locate_divergence(select_phases(clean_trace, "forward"), clean_trace).verdict
            == "aligned"
        )

    def test_noise_is_no_divergence(self, trace):
        assert (
            locate_divergence(add_noise(trace("pt_none"), 2e-6), trace("pt_none")).verdict
            == "aligned"
        )


class TestDiverged:
    def test_the_verdict_is_diverged_if_anything_was_introduced(self, trace):
        clean_trace = trace("pt_none")
        result = locate_divergence(
            scale_result(clean_trace, SILU, 1.05, and_after=True), clean_trace
        )
        assert result.verdict == "diverged"
        assert result.first_divergence is result.findings[0]

    def test_though_little_was_compared(self, trace):
        """A divergence that was seen is one, whatever was not seen."""
        clean_trace = trace("pt_none")
        result = locate_divergence(
            scale_result(clean_trace, SILU, 1.05, and_after=True), clean_trace, min_coverage=1.01
        )
        assert result.verdict == "diverged"


class TestInconclusive:
    def test_the_verdict_is_inconclusive_if_too_little_was_compared(self, trace):
        result = locate_divergence(trace("pt_none"), trace("pt_none"), min_coverage=1.01)
        assert result.verdict == "inconclusive"
        assert result.notes[0].startswith("only 100% of the target's forward ops could be compared")

    def test_the_verdict_is_inconclusive_if_there_is_no_forward_pass(self, trace):
        backward = select_phases(trace("pt_none"), "backward")
        result = locate_divergence(backward, backward)
        assert result.verdict == "inconclusive"
        assert any("no forward op" in note for note in result.notes)

    def test_the_verdict_is_inconclusive_if_the_dumps_are_of_different_models(self, trace):
        """Nearly nothing has a partner: what differs then means nothing."""
        result = locate_divergence(trace("ms_graph"), trace("pt_none"))
        assert result.verdict == "inconclusive"
        assert "are these dumps of one model?" in result.notes[0]

    def test_the_verdict_is_inconclusive_if_one_side_has_only_checksums(self, trace):
        result = locate_divergence(trace("ms_graph"), trace("v6.0_api_stack_md5"))
        assert result.verdict == "inconclusive"
        assert "the reference recorded only checksums" in result.notes[0]


class TestNotes:
    def test_a_clean_complete_pair_needs_few(self, trace):
        assert not [
            note
            for note in locate_divergence(trace("pt_none"), trace("pt_none")).notes
            if "only" in note
        ]

    def test_bridged_missing_edges_are_reported(self, trace):
        notes = locate_divergence(trace("demo_pytorch"), trace("demo_pytorch")).notes
        assert any(note.startswith("missing edges were bridged: ") for note in notes)

    def test_a_scalar_that_differs_without_effect_is_reported(self, trace):
        """Its effect is below the noise or was not recorded: it may still be the fault."""
        clean_trace = trace("pt_none")
        quiet = edit_tensors(
            clean_trace,
            find_tensor(clean_trace, DIVISION, "input.1"),
            max=16.0,
            min=16.0,
            mean=16.0,
            norm=16.0,
        )
        result = locate_divergence(quiet, clean_trace)
        assert result.verdict == "aligned"
        assert f"scalar argument of {DIVISION} is 16, of {DIVISION} 4" in result.notes


class TestNoiseFloor:
    def test_the_noise_floor_is_the_median_error_of_agreeing_pairs(self, trace):
        quiet, loud = (
            locate_divergence(add_noise(trace("pt_none"), size), trace("pt_none")).noise_floor
            for size in (2e-7, 1e-6)
        )
        assert loud == pytest.approx(5 * quiet, rel=0.2)

    def test_the_noise_floor_is_zero_if_all_is_equal(self, trace):
        assert locate_divergence(trace("pt_none"), trace("pt_none")).noise_floor == 0

    def test_the_noise_floor_is_unknown_if_nothing_agrees(self, trace):
        assert math.isnan(
            locate_divergence(trace("ms_graph"), trace("v6.0_api_stack_md5")).noise_floor
        )


class TestSides:
    def test_the_sides_are_the_two_dumps_in_figures(self, trace):
        result = locate_divergence(trace("ms_mf_none"), trace("pt_none"))
        assert (result.target.ops, result.reference.ops) == (584, 351)
        assert result.target.source == trace("ms_mf_none").source
        assert result.reference.tensors == len(trace("pt_none").tensors)

    def test_the_sides_have_the_problems_of_their_reader(self, trace):
        clean_trace = trace("pt_none")
        problem = Problem("dump.json", "cut off")
        result = locate_divergence(replace(clean_trace, problems=(problem,)), clean_trace)
        assert problem in result.target.problems
        assert problem not in result.reference.problems


class TestDetails:
    def test_what_the_reader_proved_of_its_graph(self, trace):
        details = locate_divergence(trace("ms_graph"), trace("v6.0_api_stack_summary")).details
        assert details["target_npy_matched"] == (2471, 2471)
        assert "reference_npy_matched" not in details

    def test_thresholds_and_bridges(self, trace):
        result = locate_divergence(trace("pt_none"), trace("pt_none"), min_coverage=0.6)
        assert result.details["min_coverage"] == 0.6
        assert result.details["matching_tolerance"] == pytest.approx(1.5e-6)
        assert isinstance(result.details["bridges"], dict)


def test_a_pair_whose_parameters_differ_is_diverged_though_gradients_agree(trace):
    clean_trace = trace("pt_none")
    weight = find_tensors_like(clean_trace, "Functional.linear.11.forward", "input.1")
    assert (
        locate_divergence(edit_tensors(clean_trace, weight, max=2.0), clean_trace).verdict
        == "diverged"
    )


@pytest.mark.parametrize("are_named", [True, False])
def test_inputs_without_a_producer_are_no_weights_of_another_model(are_named):
    """The steps of a loop read parts of a tensor that no record shows, and these differ."""
    rng = np.random.default_rng(4)
    weights, parts = rng.standard_normal((4, 6, 6)), rng.standard_normal((8, 6, 6))
    traces = []
    for factor in (1.0, 1.5):
        trace = record_calls(
            *(("matmul", [weight, weight.T], weight @ weight.T) for weight in weights),
            *(("tanh", [factor * part], np.tanh(factor * part)) for part in parts),
        )
        for n in range(len(weights) if are_named else 0):
            row = find_tensor(trace, f"call.{n}", "input.0")
            trace = edit_tensors(trace, row, parameter=f"layers.{n}.weight")
        traces.append(trace)
    assert _have_equal_weights(align_traces(*traces)) == are_named
