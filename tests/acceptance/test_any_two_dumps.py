"""Either side may be any framework, any format: the roles are what the user says."""

import pytest
import synthesise

from .verdicts import (
    assert_aligned,
    assert_compared,
    assert_located,
    describe_result,
    get_first_divergence,
)


class TestSidesSwapped:
    def test_pytorch_under_test_and_mindspore_trusted_is_aligned(self, dump, compared):
        assert_aligned(compared(dump("v6.0_api_stack"), dump("ms_graph")))

    def test_the_wrong_weight_is_found(self, dump, compared):
        first = get_first_divergence(compared(dump("v6.0_api_stack"), dump("ms_graph_bug_w1")))
        assert first.kind == "parameter"
        assert first.target_ops == ("Functional.linear.18.forward",)
        assert first.scope == "layers.2.mlp.gate_proj"

    @pytest.mark.record
    def test_a_fault_on_the_pytorch_side_is_located(self, recorded, compared):
        assert_located(
            compared(recorded("pytorch", "--fault", "eps"), recorded("mindspore")), "eps"
        )


class TestMindSporeAgainstMindSpore:
    def test_a_dump_against_itself_is_aligned_in_every_op(self, dump, compared):
        result = compared(dump("ms_graph"), dump("ms_graph"))
        assert_aligned(result)
        assert_compared(result, "reference", forward=1.0, backward=1.0)
        assert result.noise_floor == 0

    def test_the_wrong_weight_is_the_only_finding(self, dump, compared):
        result = compared(dump("ms_graph_bug_w1"), dump("ms_graph"))
        first = get_first_divergence(result)
        assert first.kind == "parameter"
        assert "layers.2.mlp.w1.weight" in first.title
        assert len(result.findings) == 1, describe_result(result)

    @pytest.mark.record
    def test_with_scopes_against_without(self, recorded, compared):
        assert_aligned(
            compared(
                recorded("mindspore"), recorded("mindspore", "--style", "jit", "--order", "vkq")
            )
        )

    @pytest.mark.record
    def test_a_fault_is_the_only_finding(self, recorded, compared):
        result = compared(
            recorded("mindspore", "--fault", "eps"),
            recorded("mindspore", "--style", "jit", "--order", "vkq"),
        )
        assert_located(result, "eps")
        assert len(result.findings) == 1, describe_result(result)

    def test_pynative_against_pynative(self, dump, compared):
        assert_aligned(compared(dump("ms_mf_none"), dump("ms_mf_none")))
        first = get_first_divergence(compared(dump("ms_mf_attn_scale"), dump("ms_mf_none")))
        assert (first.scope, first.kind) == ("layers.1.attention", "introduced")

    def test_pynative_against_graph_mode_of_another_model_is_not_called_aligned(
        self, dump, compared
    ):
        assert compared(dump("ms_mf_none"), dump("ms_graph")).verdict == "inconclusive"


class TestPyTorchAgainstPyTorch:
    def test_a_dump_against_itself_is_aligned_in_every_op(self, dump, compared):
        result = compared(dump("pt_none"), dump("pt_none"))
        assert_aligned(result)
        assert_compared(result, "reference", forward=1.0, backward=1.0)

    @pytest.mark.record
    def test_calls_against_calls_and_modules(self, recorded, compared):
        assert_aligned(
            compared(
                recorded("pytorch"), recorded("pytorch", "--level", "L1", "--task", "statistics")
            )
        )

    @pytest.mark.record
    def test_bfloat16_against_float32(self, recorded, compared):
        assert_aligned(compared(recorded("pytorch", "--dtype", "bf16"), recorded("pytorch")))

    @pytest.mark.record
    @pytest.mark.parametrize(
        "reference", [(), ("--level", "L0"), ("--level", "L1", "--task", "statistics")]
    )
    def test_a_fault_is_located(self, recorded, compared, reference):
        result = compared(recorded("pytorch", "--fault", "eps"), recorded("pytorch", *reference))
        assert_located(result, "eps")


class TestPtdbg:
    @pytest.mark.parametrize(
        "other", ["v4.0.T2_api_stack", "v1.0_api_stack", "v6.0_api_stack_summary"]
    )
    def test_generations_of_one_run_are_aligned(self, dump, compared, other):
        assert_aligned(compared(dump("v6.0_api_stack"), dump(other)))

    def test_equal_checksums_are_agreement(self, dump, compared):
        assert_aligned(compared(dump("v6.0_api_stack_md5"), dump("v6.0_api_stack_md5")))

    def test_checksums_against_numbers_say_nothing(self, dump, compared):
        assert compared(dump("ms_graph"), dump("v6.0_api_stack_md5")).verdict == "inconclusive"


class TestMsprobe:
    def test_mindspore_pynative_against_pytorch_is_aligned(self, dump, compared):
        result = compared(dump("ms_mf_none"), dump("pt_none"))
        assert_aligned(result)
        assert_compared(result, "reference", forward=0.95, backward=0.95)
        assert_compared(result, "target", forward=0.95, backward=0.95)

    def test_a_wrong_scale_is_located_at_the_op_that_scales(self, dump, compared):
        result = compared(dump("ms_mf_attn_scale"), dump("pt_none"))
        first = get_first_divergence(result)
        assert (first.kind, first.phase, first.scope) == (
            "introduced",
            "forward",
            "layers.1.attention",
        ), describe_result(result)
        assert first.target_ops == ("Tensor.__mul__.2.forward",)
        assert first.reference_ops == ("Tensor.__truediv__.1.forward",)
        assert len(result.findings) == 1, describe_result(result)


@pytest.mark.parametrize(
    ("target", "reference"),
    [
        ("ms_graph", "pt_none"),
        ("v6.0_api_stack", "pt_none"),
        ("ms_mf_none", "v6.0_api_stack"),
        ("pt_none", "ms_graph"),
    ],
)
def test_dumps_of_unrelated_models_are_neither_aligned_nor_diverged(
    dump, compared, target, reference
):
    result = compared(dump(target), dump(reference))
    assert result.verdict == "inconclusive", describe_result(result)
    assert result.notes


class TestPtdbgAgainstMsprobe:
    def test_one_run_in_both_formats_is_aligned(self, dump, compared, as_msprobe):
        result = compared(as_msprobe("v6.0_api_stack"), dump("v4.0.T2_api_stack"))
        assert_aligned(result)
        assert_compared(result, "target", forward=1.0, backward=1.0)

    def test_a_fault_is_located(self, dump, compared, as_msprobe, tmp_path):
        culprit = "Tensor.__add__.13.forward"
        faulty = synthesise.scaled(synthesise.load(as_msprobe("v6.0_api_stack")), culprit)
        synthesise.save(faulty, tmp_path)
        first = get_first_divergence(compared(tmp_path, dump("v4.0.T2_api_stack")))
        assert first.target_ops == (culprit,)
        assert first.reference_ops == ("Tensor___add___13_forward",)
