"""One fault, one finding: of the right kind, at the right op, with the reasons for it."""

import numpy as np
import pytest
from traces import (
    find_dependents,
    edit_tensors,
    find_tensors_like,
    locate_divergence,
    find_op,
    find_result,
    scale_result,
    skip_op,
    find_tensor,
    scale_tensors,
    find_value,
    add_noise,
)

from dumpdiff.graph import build_flow

SILU, DIVISION = "Functional.silu.1.forward", "Tensor.__truediv__.1.forward"
MASKED, SOFTMAX = "Tensor.__add__.3.forward", "Functional.softmax.1.forward"
GATE = "Functional.linear.11.forward"
EMBEDDING = "Functional.embedding.0.forward"


def only(result):
    """The one finding of a result that diverged."""
    assert result.verdict == "diverged"
    (finding,) = result.findings
    return finding


@pytest.fixture(scope="module")
def found(trace):
    """What is said of one op that makes 5 % too much, in a pair that else differs by noise."""
    whole = trace("pt_none")
    return only(locate_divergence(scale_result(add_noise(whole, 3e-7), SILU, 1.05, and_after=True), whole))


class TestIntroduced:
    def test_the_op_whose_inputs_agree_and_whose_output_does_not(self, found):
        assert found.kind == "introduced"
        assert found.target_ops == found.reference_ops == (SILU,)
        assert found.slots == (("output.0", "output.0"),)

    def test_where_it_is(self, found):
        assert (found.phase, found.scope) == ("forward", "layers.1.mlp.activation")
        assert "layers.1.mlp.activation" in found.title

    def test_how_far_apart_and_from_what(self, found):
        assert found.metrics["error"] == pytest.approx(0.05, rel=0.01)
        assert found.metrics["norm_ratio"] == pytest.approx(1.05, rel=1e-4)
        assert found.metrics["input_error"] < found.tolerance < 1e-4

    def test_why_it_is_believed(self, found):
        assert "paired by structure" in found.evidence
        assert any("values it was computed from agree" in reason for reason in found.evidence)
        assert 0.5 < found.confidence < 1


def test_the_user_line_that_called_it_is_named(trace):
    whole = trace("pt_none")
    found = only(locate_divergence(scale_result(whole, SILU, 1.05, and_after=True), whole))
    assert set(found.source) == {"target", "reference"}
    assert found.source["target"].startswith("pt_model.py:")


def test_a_gradient_that_parts_where_the_forward_pass_agrees(trace):
    whole = trace("pt_none")
    wrong = "Functional.silu.1.backward"  # gradients add up unrecorded: all that is recorded later depends on it
    later = np.flatnonzero(whole.tensors["op"] > find_op(whole, wrong))
    found = only(locate_divergence(scale_tensors(whole, {*find_result(whole, wrong), *later}, 1.1), whole))
    assert (found.kind, found.phase) == ("introduced", "backward")
    assert found.reference_ops == ("Functional.silu.1.backward",)


def test_an_update_that_parts_where_gradients_agree(trace):
    whole = trace("pt_none")
    found = only(locate_divergence(scale_result(whole, "Tensor.add_.3.forward", 1.1), whole))
    assert (found.phase, found.scope) == ("optimizer", "layers.0.attention.q")


class TestLeaves:
    def test_a_parameter_that_differs_is_named_with_its_reader(self, trace):
        whole = trace("pt_none")
        faulty = scale_tensors(
            scale_result(whole, GATE, 1.01, and_after=True), find_tensors_like(whole, GATE, "input.1"), 1.01
        )
        found = only(locate_divergence(faulty, whole))
        assert found.kind == "parameter"
        assert found.title.startswith("parameter model.layers.1.mlp.gate_proj.weight differs")
        assert found.reference_ops == (GATE,)
        assert found.scope == "layers.1.mlp.gate_proj"
        assert "norm is 1.01 times the reference's" in found.evidence

    def test_a_weight_that_no_record_names_is_a_parameter_too(self, trace):
        whole = trace("v6.0_api_stack_summary")
        reader = "Functional.linear.18.forward"
        faulty = scale_tensors(
            scale_result(whole, reader, 1.01, and_after=True), find_tensors_like(whole, reader, "input.1"), 1.01
        )
        assert only(locate_divergence(faulty, whole)).kind == "parameter"

    def test_a_batch_that_differs_is_an_input(self, trace):
        whole = trace("pt_none")
        tensors = whole.tensors
        tokens = tensors["max"].iat[find_tensor(whole, EMBEDDING, "input.0")]
        rows = tensors.index[
            (tensors["dtype"] == "int64")
            & (tensors["max"] == tokens)
            & (tensors["role"] == "input")
        ]
        faulty = edit_tensors(
            scale_result(whole, EMBEDDING, 1.3, and_after=True), rows.tolist(), max=tokens - 1
        )
        found = locate_divergence(faulty, whole).findings[0]
        assert found.kind == "input"
        assert EMBEDDING in found.reference_ops

    def test_they_come_before_any_op(self, trace):
        """A bias of the last layer explains less than an op of the first, and is reported first all the same."""
        whole = trace("pt_none")
        norm = "Functional.layer_norm.8.forward"
        faulty = scale_tensors(
            scale_result(whole, SILU, 1.05, and_after=True), find_tensors_like(whole, norm, "input.2"), 1.01
        )
        found = locate_divergence(faulty, whole).findings
        assert [(finding.rank, finding.kind) for finding in found] == [
            (1, "parameter"),
            (2, "introduced"),
        ]


class TestNotFinite:
    @pytest.mark.parametrize("swapped", [False, True], ids=["target", "reference"])
    def test_nan_on_one_side_is_said(self, trace, swapped):
        whole = trace("pt_none")
        lost = edit_tensors(
            whole, find_dependents(whole, SILU), max=np.nan, min=np.nan, mean=np.nan, norm=np.nan, nonfinite=1
        )
        found = locate_divergence(*((whole, lost) if swapped else (lost, whole))).findings[0]
        assert found.kind == "nonfinite"
        assert found.scope == "layers.1.mlp.activation"
        assert "on one side only" in found.title


class TestTypes:
    def test_an_error_that_rounding_explains_is_a_dtype_policy(self, trace):
        whole = trace("pt_none")
        policy = edit_tensors(
            scale_result(whole, SILU, 1.003, and_after=True),
            find_tensors_like(whole, SILU, "output.0"),
            dtype="bfloat16",
        )
        found = only(locate_divergence(policy, whole))
        assert found.kind == "dtype"
        assert "one side computes in bfloat16" in found.title

    def test_a_larger_one_is_a_fault(self, trace):
        whole = trace("pt_none")
        fault = edit_tensors(
            scale_result(whole, SILU, 1.3, and_after=True),
            find_tensors_like(whole, SILU, "output.0"),
            dtype="bfloat16",
        )
        assert only(locate_divergence(fault, whole)).kind == "introduced"


class TestRegions:
    """Ops that only one side has, between an agreement and a disagreement."""

    def parted(self, trace):
        """All from the masked scores of layer 1 on differs."""
        return scale_result(scale_result(trace, MASKED, 3.0), SOFTMAX, 1.07, and_after=True)

    def test_what_the_reference_alone_has_is_missing(self, trace):
        whole = trace("pt_none")
        found = only(locate_divergence(skip_op(self.parted(whole), DIVISION), whole))
        assert found.kind == "missing"
        assert "only the reference has div" in found.title
        assert found.target_ops == (MASKED,)
        assert found.reference_ops == (DIVISION, MASKED)

    def test_what_the_target_alone_has_is_a_region_with_both_its_ends(self, trace):
        whole = trace("pt_none")
        found = only(locate_divergence(self.parted(whole), skip_op(whole, DIVISION)))
        assert found.kind == "region"
        assert found.target_ops == (DIVISION, MASKED)
        assert found.reference_ops == (MASKED,)
        assert any(
            reason == "unpaired values in between: 1 target, 0 reference"
            for reason in found.evidence
        )


class TestScalars:
    def test_a_wrong_scalar_argument_of_the_op_is_the_reason(self, trace):
        whole = trace("pt_none")
        divisor = find_tensor(whole, DIVISION, "input.1")
        wrong = edit_tensors(whole, divisor, max=16.0, min=16.0, mean=16.0, norm=16.0)
        faulty = scale_result(scale_result(wrong, DIVISION, 0.25), MASKED, 1.07, and_after=True)
        found = locate_divergence(faulty, whole).findings[0]
        assert found.reference_ops == (DIVISION,)
        assert "scalar argument 16 against 4" in found.title
        assert "scalar argument 16 against 4" in found.evidence


class TestRanking:
    def test_independent_faults_are_ranked_as_they_were_executed(self, trace):
        """Gradients of different weights do not depend on each other."""
        whole = trace("pt_none")
        faulty = scale_result(whole, "Tensor.add_.7.forward", 1.1)
        faulty = scale_result(faulty, "Tensor.add_.3.forward", 1.1)
        found = locate_divergence(faulty, whole).findings
        assert [finding.reference_ops[0] for finding in found] == [
            "Tensor.add_.3.forward",
            "Tensor.add_.7.forward",
        ]
        assert [finding.rank for finding in found] == [1, 2]

    def test_what_follows_from_a_fault_is_no_finding(self, trace):
        whole = trace("pt_none")
        result = locate_divergence(scale_result(whole, "Tensor.__add__.1.forward", 1.07, and_after=True), whole)
        assert only(result).reference_ops == ("Tensor.__add__.1.forward",)
        assert (result.pairs["state"] == "propagated").sum() > 50


class TestShapes:
    def test_a_parameter_of_another_shape_comes_first(self, trace):
        whole = trace("pt_none")
        faulty = edit_tensors(whole, find_tensors_like(whole, GATE, "input.1"), size=9999, shape=(99, 101))
        found = only(locate_divergence(faulty, whole))
        assert (found.kind, found.rank) == ("shape", 1)
        assert "has shape (99, 101) against (176, 64)" in found.title

    def test_equal_shapes_are_no_finding(self, trace):
        assert locate_divergence(trace("ms_mf_none"), trace("pt_none")).findings == ()


def test_a_fault_of_a_real_pair(trace):
    """Scores of layer 1 multiplied by 1/16 in place of divided by 4."""
    found = locate_divergence(trace("ms_mf_attn_scale"), trace("pt_none")).findings[0]
    assert found.scope == "layers.1.attention"
    assert found.metrics["error"] == pytest.approx(0.75, rel=0.01)


def test_the_edits_do_what_they_say(trace):
    whole = trace("pt_none")
    flow, larger = build_flow(whole), build_flow(scale_result(whole, SILU, 1.05))
    silu = find_value(flow, SILU, "output.0")
    assert larger.norms[silu] == pytest.approx(1.05 * flow.norms[silu])
    assert (larger.norms != flow.norms).sum() == (flow.norms != flow.norms).sum() + 1
