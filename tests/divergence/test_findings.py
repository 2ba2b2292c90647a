"""One fault, one finding: of the right kind, at the right op, with the reasons for it."""

import numpy as np
import pytest
from traces import (
    add_noise,
    edit_tensors,
    find_dependents,
    find_op,
    find_result,
    find_tensor,
    find_tensors_like,
    find_value,
    locate_divergence,
    scale_result,
    scale_tensors,
    skip_op,
)

from dumpdiff.graph import build_flow

SILU, DIVISION = "Functional.silu.1.forward", "Tensor.__truediv__.1.forward"
MASKED, SOFTMAX = "Tensor.__add__.3.forward", "Functional.softmax.1.forward"
GATE = "Functional.linear.11.forward"
EMBEDDING = "Functional.embedding.0.forward"


def get_only_finding(result):
    """Return the one finding of a result that diverged."""
    assert result.verdict == "diverged"
    (finding,) = result.findings
    return finding


@pytest.fixture(scope="module")
def finding(trace):
    """The finding for one op whose output is 5 % too large; the rest differs by noise."""
    clean_trace = trace("pt_none")
    return get_only_finding(
        locate_divergence(
            scale_result(add_noise(clean_trace, 3e-7), SILU, 1.05, and_after=True), clean_trace
        )
    )


class TestIntroduced:
    def test_the_op_whose_inputs_agree_and_whose_output_does_not(self, finding):
        assert finding.kind == "introduced"
        assert finding.target_ops == finding.reference_ops == (SILU,)
        assert finding.slots == (("output.0", "output.0"),)

    def test_an_introduced_finding_names_its_place(self, finding):
        assert (finding.phase, finding.scope) == ("forward", "layers.1.mlp.activation")
        assert "layers.1.mlp.activation" in finding.title

    def test_an_introduced_finding_has_its_error_and_that_of_its_inputs(self, finding):
        assert finding.metrics["error"] == pytest.approx(0.05, rel=0.01)
        assert finding.metrics["norm_ratio"] == pytest.approx(1.05, rel=1e-4)
        assert finding.metrics["input_error"] < finding.tolerance < 1e-4

    def test_an_introduced_finding_has_evidence_and_confidence(self, finding):
        assert "paired by structure" in finding.evidence
        assert any("nearest compared input" in reason for reason in finding.evidence)
        assert 0.5 < finding.confidence < 1


def test_the_user_line_that_called_the_op_is_named(trace):
    clean_trace = trace("pt_none")
    finding = get_only_finding(
        locate_divergence(scale_result(clean_trace, SILU, 1.05, and_after=True), clean_trace)
    )
    assert set(finding.source) == {"target", "reference"}
    assert finding.source["target"].startswith("pt_model.py:")


def test_a_gradient_that_diverges_where_the_forward_pass_agrees(trace):
    clean_trace = trace("pt_none")
    # gradients add up unrecorded: everything that is recorded later depends on this one
    wrong_record = "Functional.silu.1.backward"
    later = np.flatnonzero(clean_trace.tensors["op"] > find_op(clean_trace, wrong_record))
    finding = get_only_finding(
        locate_divergence(
            scale_tensors(clean_trace, {*find_result(clean_trace, wrong_record), *later}, 1.1),
            clean_trace,
        )
    )
    assert (finding.kind, finding.phase) == ("introduced", "backward")
    assert finding.reference_ops == ("Functional.silu.1.backward",)


def test_an_update_that_diverges_where_gradients_agree(trace):
    clean_trace = trace("pt_none")
    finding = get_only_finding(
        locate_divergence(scale_result(clean_trace, "Tensor.add_.3.forward", 1.1), clean_trace)
    )
    assert (finding.phase, finding.scope) == ("optimizer", "layers.0.attention.q")


class TestLeaves:
    def test_a_parameter_that_differs_is_named_with_its_consumer(self, trace):
        clean_trace = trace("pt_none")
        faulty = scale_tensors(
            scale_result(clean_trace, GATE, 1.01, and_after=True),
            find_tensors_like(clean_trace, GATE, "input.1"),
            1.01,
        )
        finding = get_only_finding(locate_divergence(faulty, clean_trace))
        assert finding.kind == "parameter"
        assert finding.title.startswith("parameter model.layers.1.mlp.gate_proj.weight differs")
        assert finding.reference_ops == (GATE,)
        assert finding.scope == "layers.1.mlp.gate_proj"
        assert "norm is 1.01 times the reference's" in finding.evidence

    def test_a_weight_that_no_record_names_is_a_parameter_too(self, trace):
        clean_trace = trace("v6.0_api_stack_summary")
        consumer = "Functional.linear.18.forward"
        faulty = scale_tensors(
            scale_result(clean_trace, consumer, 1.01, and_after=True),
            find_tensors_like(clean_trace, consumer, "input.1"),
            1.01,
        )
        assert get_only_finding(locate_divergence(faulty, clean_trace)).kind == "parameter"

    def test_a_batch_that_differs_is_an_input(self, trace):
        clean_trace = trace("pt_none")
        tensors = clean_trace.tensors
        tokens = tensors["max"].iat[find_tensor(clean_trace, EMBEDDING, "input.0")]
        rows = tensors.index[
            (tensors["dtype"] == "int64")
            & (tensors["max"] == tokens)
            & (tensors["slot_kind"] == "input")
        ]
        faulty = edit_tensors(
            scale_result(clean_trace, EMBEDDING, 1.3, and_after=True), rows.tolist(), max=tokens - 1
        )
        finding = locate_divergence(faulty, clean_trace).findings[0]
        assert finding.kind == "input"
        assert EMBEDDING in finding.reference_ops

    def test_inputs_and_parameters_come_before_any_op(self, trace):
        """A bias of the last layer explains less than an op of the first, but is reported first."""
        clean_trace = trace("pt_none")
        norm = "Functional.layer_norm.8.forward"
        faulty = scale_tensors(
            scale_result(clean_trace, SILU, 1.05, and_after=True),
            find_tensors_like(clean_trace, norm, "input.2"),
            1.01,
        )
        findings = locate_divergence(faulty, clean_trace).findings
        assert [(finding.rank, finding.kind) for finding in findings] == [
            (1, "parameter"),
            (2, "introduced"),
        ]


class TestNotFinite:
    @pytest.mark.parametrize("swapped", [False, True], ids=["target", "reference"])
    def test_nan_on_one_side_is_reported(self, trace, swapped):
        clean_trace = trace("pt_none")
        lost = edit_tensors(
            clean_trace,
            find_dependents(clean_trace, SILU),
            max=np.nan,
            min=np.nan,
            mean=np.nan,
            norm=np.nan,
            nonfinite=1,
        )
        finding = locate_divergence(
            *((clean_trace, lost) if swapped else (lost, clean_trace))
        ).findings[0]
        assert finding.kind == "nonfinite"
        assert finding.scope == "layers.1.mlp.activation"
        assert "on one side only" in finding.title


class TestTypes:
    def test_an_error_that_rounding_explains_is_a_dtype_policy(self, trace):
        clean_trace = trace("pt_none")
        policy = edit_tensors(
            scale_result(clean_trace, SILU, 1.003, and_after=True),
            find_tensors_like(clean_trace, SILU, "output.0"),
            dtype="bfloat16",
        )
        finding = get_only_finding(locate_divergence(policy, clean_trace))
        assert finding.kind == "dtype"
        assert "one side computes in bfloat16" in finding.title

    def test_a_larger_difference_is_a_fault(self, trace):
        clean_trace = trace("pt_none")
        fault = edit_tensors(
            scale_result(clean_trace, SILU, 1.3, and_after=True),
            find_tensors_like(clean_trace, SILU, "output.0"),
            dtype="bfloat16",
        )
        assert get_only_finding(locate_divergence(fault, clean_trace)).kind == "introduced"


class TestRegions:
    """Ops that only one side has, between an agreement and a disagreement."""

    def diverge(self, trace):
        """Change the masked scores of layer 1 and everything after them."""
        return scale_result(scale_result(trace, MASKED, 3.0), SOFTMAX, 1.07, and_after=True)

    def test_what_the_reference_alone_has_is_missing(self, trace):
        clean_trace = trace("pt_none")
        finding = get_only_finding(
            locate_divergence(skip_op(self.diverge(clean_trace), DIVISION), clean_trace)
        )
        assert finding.kind == "missing"
        assert "only the reference has div" in finding.title
        assert finding.target_ops == (MASKED,)
        assert finding.reference_ops == (DIVISION, MASKED)

    def test_what_the_target_alone_has_is_a_region_with_both_its_ends(self, trace):
        clean_trace = trace("pt_none")
        finding = get_only_finding(
            locate_divergence(self.diverge(clean_trace), skip_op(clean_trace, DIVISION))
        )
        assert finding.kind == "region"
        assert finding.target_ops == (DIVISION, MASKED)
        assert finding.reference_ops == (MASKED,)
        assert any(
            reason == "unpaired values in between: 1 target, 0 reference"
            for reason in finding.evidence
        )


class TestScalars:
    def test_a_wrong_scalar_argument_of_the_op_is_the_reason(self, trace):
        clean_trace = trace("pt_none")
        divisor = find_tensor(clean_trace, DIVISION, "input.1")
        wrong_record = edit_tensors(clean_trace, divisor, max=16.0, min=16.0, mean=16.0, norm=16.0)
        faulty = scale_result(
            scale_result(wrong_record, DIVISION, 0.25), MASKED, 1.07, and_after=True
        )
        finding = locate_divergence(faulty, clean_trace).findings[0]
        assert finding.reference_ops == (DIVISION,)
        assert "scalar argument 16 against 4" in finding.title
        assert "scalar argument 16 against 4" in finding.evidence


class TestRanking:
    def test_independent_faults_are_ranked_as_they_were_executed(self, trace):
        """Gradients of different weights do not depend on each other."""
        clean_trace = trace("pt_none")
        faulty = scale_result(clean_trace, "Tensor.add_.7.forward", 1.1)
        faulty = scale_result(faulty, "Tensor.add_.3.forward", 1.1)
        findings = locate_divergence(faulty, clean_trace).findings
        assert [finding.reference_ops[0] for finding in findings] == [
            "Tensor.add_.3.forward",
            "Tensor.add_.7.forward",
        ]
        assert [finding.rank for finding in findings] == [1, 2]

    def test_what_follows_from_a_fault_is_no_finding(self, trace):
        clean_trace = trace("pt_none")
        result = locate_divergence(
            scale_result(clean_trace, "Tensor.__add__.1.forward", 1.07, and_after=True), clean_trace
        )
        assert get_only_finding(result).reference_ops == ("Tensor.__add__.1.forward",)
        assert (result.pairs["state"] == "propagated").sum() > 50


class TestShapes:
    def test_a_parameter_of_another_shape_comes_first(self, trace):
        clean_trace = trace("pt_none")
        faulty = edit_tensors(
            clean_trace, find_tensors_like(clean_trace, GATE, "input.1"), size=9999, shape=(99, 101)
        )
        finding = get_only_finding(locate_divergence(faulty, clean_trace))
        assert (finding.kind, finding.rank) == ("shape", 1)
        assert "has shape (99, 101) against (176, 64)" in finding.title

    def test_equal_shapes_are_no_finding(self, trace):
        assert locate_divergence(trace("ms_mf_none"), trace("pt_none")).findings == ()


def test_a_fault_of_a_real_pair(trace):
    """Scores of layer 1 multiplied by 1/16 in place of divided by 4."""
    finding = locate_divergence(trace("ms_mf_attn_scale"), trace("pt_none")).findings[0]
    assert finding.scope == "layers.1.attention"
    assert finding.metrics["error"] == pytest.approx(0.75, rel=0.01)


def test_the_edits_do_what_they_say(trace):
    clean_trace = trace("pt_none")
    flow, larger = build_flow(clean_trace), build_flow(scale_result(clean_trace, SILU, 1.05))
    silu = find_value(flow, SILU, "output.0")
    assert larger.norms[silu] == pytest.approx(1.05 * flow.norms[silu])
    assert (larger.norms != flow.norms).sum() == (flow.norms != flow.norms).sum() + 1
