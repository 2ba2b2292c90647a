"""Modules that are one op on one side and many on the other, in real dumps of both frameworks."""

import pytest
from traces import edit_tensors, find_tensor, locate_divergence, scale_tensors

SIDES = ("target", "reference")


def locate_both_ways(first, second):
    return locate_divergence(first, second), locate_divergence(second, first)


def get_share(result, side, phase):
    counts = result.coverage[side][phase]
    return (counts["compared"] + counts["reconverged"]) / counts["ops"]


class TestAnUnrolledRecurrentNetwork:
    """``nn.LSTM`` is one call; its unrolled steps are 150 ops, of which 7 have a partner."""

    def test_the_steps_are_covered_by_the_sequence_and_the_gradients(self, trace):
        for result in locate_both_ways(trace("ms_lstm"), trace("pt_lstm")):
            assert result.verdict == "aligned"
            assert [get_share(result, side, "forward") for side in SIDES] == [1.0, 1.0]
            assert [get_share(result, side, "backward") for side in SIDES] == [1.0, 1.0]

    def test_they_do_not_count_as_compared(self, trace):
        result = locate_divergence(trace("ms_lstm"), trace("pt_lstm"))
        assert result.coverage["target"]["forward"]["compared"] == 7
        assert result.coverage["reference"]["forward"]["share"] == 1.0

    def test_what_ends_without_a_comparison_has_its_own_reason(self, trace):
        table = locate_divergence(trace("ms_lstm"), trace("pt_lstm")).uncompared
        reasons = table[table["state"] == "reconverged"].groupby("reason")["slot"].count()
        at_ends = reasons[reasons.index.str.contains("compared at its ends")]
        assert 0 < int(at_ends.sum()) < 10 < int(reasons.sum())

    def test_a_wrong_gradient_of_the_weight_of_all_steps_is_found(self, trace):
        """It is the only gradient left of its shape, and no other value shows the fault."""
        reference = trace("pt_lstm")
        gradient = find_tensor(
            reference, "Module.lstm.LSTM.parameters_grad.0", "output.weight_ih_l0"
        )
        without_file = edit_tensors(reference, gradient, file="")
        sound = locate_divergence(trace("ms_lstm"), without_file)
        damaged = locate_divergence(trace("ms_lstm"), scale_tensors(without_file, [gradient], 1.3))
        assert (sound.verdict, damaged.verdict) == ("aligned", "diverged")
        assert damaged.findings[0].reference_ops == ("Module.lstm.LSTM.parameters_grad.0",)


@pytest.fixture(scope="module")
def result(trace):
    return locate_divergence(trace("ms_fused"), trace("pt_fused"))


class TestAFusedLinearLayerWithBias:
    def test_weight_bias_gradients_and_new_weights_agree_in_parts(self, result):
        pairs = result.pairs[result.pairs["layout"].str.contains("concat")]
        slots = zip(pairs["reference_op"], pairs["reference_slot"], strict=True)
        assert set(slots) == {
            ("Functional.linear.0.forward", "input.1"),
            ("Functional.linear.0.forward", "input.2"),
            ("Module.layers.0.attention.in_proj.Linear.parameters_grad.0", "output.weight"),
            ("Module.layers.0.attention.in_proj.Linear.parameters_grad.0", "output.bias"),
            ("Tensor.add_.3.forward", "output.0"),
            ("Tensor.add_.4.forward", "output.0"),
        }
        assert pairs["error"].max() < 1e-6
        assert set(pairs["state"]) == {"agreeing"}

    def test_the_gradient_is_the_one_before_the_decay(self, result):
        pairs = result.pairs[result.pairs["reference_slot"] == "output.weight"]
        fused = pairs[pairs["layout"].str.contains("concat")]
        assert len(fused) == 1
        assert "Grad_MatMul" in fused["target_op"].iat[0]

    def test_the_output_of_the_fused_layer_is_covered_by_its_parts(self, result):
        table = result.uncompared
        is_output = (table["op"] == "Functional.linear.0.forward") & (table["slot"] == "output.0")
        assert table[is_output]["state"].tolist() == ["reconverged"]

    def test_everything_is_aligned_either_way(self, trace, result):
        mirrored = locate_divergence(trace("pt_fused"), trace("ms_fused"))
        assert (result.verdict, mirrored.verdict) == ("aligned", "aligned")
        assert [get_share(result, side, "forward") for side in SIDES] == [1.0, 1.0]


class TestTheScopeOfAFinding:
    def test_branches_of_a_unet_are_told_apart(self, trace):
        for result in locate_both_ways(trace("ms_unet_eps"), trace("pt_unet")):
            assert result.verdict == "diverged"
            assert result.findings[0].scope == "up.0.layers.0.input_norm"
            assert result.findings[0].title.startswith("up.0.layers.0.input_norm, ")

    def test_encoder_and_decoder_are_told_apart(self, trace):
        for result in locate_both_ways(trace("ms_encdec_scale"), trace("pt_encdec")):
            assert result.verdict == "diverged"
            assert result.findings[0].scope == "decoder.layers.0.cross_attention"
