"""Recorded pairs of small networks with one fault: the place and the cause, in both directions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import dumpdiff
from dumpdiff import Result

Align = Callable[[str, str], Result]


@pytest.fixture(scope="module")
def align_recorded(dump: Callable[[str], Path]) -> Align:
    """Return the result of two of the recorded networks, by the names of their folders."""
    folder = dump("pt_architectures")

    def align(target: str, reference: str) -> Result:
        return dumpdiff.align(folder / target, folder / reference)

    return align


class TestStates:
    """Steps of a sequence that no recorded op cut are no weights of the ops that read them."""

    @pytest.mark.parametrize("is_mirrored", [False, True])
    def test_a_missing_norm_is_the_only_finding(
        self, align_recorded: Align, is_mirrored: bool
    ) -> None:
        names = ("states_norm_missing", "states_none")
        result = align_recorded(*(names[::-1] if is_mirrored else names))
        assert result.verdict == "diverged"
        (finding,) = result.findings
        assert "Functional.linear.0.forward" in finding.title
        assert finding.causes[0].name == "norm-missing"

    def test_the_clean_run_is_aligned(self, align_recorded: Align) -> None:
        assert align_recorded("states_none", "states_none").verdict == "aligned"


class TestElementLosses:
    @pytest.mark.parametrize(("fault", "cause", "sentence"), [
        ("beta", "loss-threshold",
         "smooth L1 loss with beta = 0.25 (mean); the reference has smooth L1 loss"),
        ("huber", "loss-kind",
         "Huber loss with delta = 0.1 (mean); the reference has smooth L1 loss with beta = 0.1"),
        ("squared", "loss-kind",
         "mean squared error (mean); the reference has smooth L1 loss with beta = 0.1"),
        ("entropy", "loss-kind",
         "binary cross-entropy of probabilities (mean); the reference has smooth L1 loss"),
    ])  # fmt: skip
    def test_another_loss_of_the_same_tensors_is_named(
        self, align_recorded: Align, fault: str, cause: str, sentence: str
    ) -> None:
        (finding,) = align_recorded(f"loss_{fault}", "loss_none").findings
        assert finding.causes[0].name == cause
        assert sentence in finding.causes[0].text

    def test_a_threshold_is_no_other_kind_although_one_form_has_two_names(
        self, align_recorded: Align
    ) -> None:
        """Every explanation is another beta: no other kind of loss explains both values better."""
        (finding,) = align_recorded("loss_beta", "loss_none").findings
        assert {cause.name for cause in finding.causes} == {"loss-threshold"}

    def test_two_losses_are_told_apart_in_either_direction(self, align_recorded: Align) -> None:
        (finding,) = align_recorded("loss_squared", "loss_entropy").findings
        assert finding.causes[0].name == "loss-kind"


class TestClassesOfPixels:
    """Logits are (batch, classes, height, width), and pixels with the label 255 do not count."""

    @pytest.mark.parametrize(("fault", "cause", "sentence"), [
        ("weights", "loss-weight", "class weights 1, 1, 2, 0.5; the reference has 0.5, 1, 2, 1.5"),
        ("unweighted", "loss-weight", "no class weights; the reference has class weights"),
        ("mean", "loss-reduction", "the sum divided by 72; the reference has the mean"),
    ])  # fmt: skip
    def test_the_other_loss_is_named(
        self, align_recorded: Align, fault: str, cause: str, sentence: str
    ) -> None:
        (finding,) = align_recorded(f"pixels_{fault}", "pixels_none").findings
        assert finding.causes[0].name == cause
        assert sentence in finding.causes[0].text


def test_an_rms_norm_in_place_of_a_group_norm_is_named(align_recorded: Align) -> None:
    (finding,) = align_recorded("groups_rms", "groups_none").findings
    assert finding.causes[0].name == "norm-kind"
    expected = "RMS norm over axis 1, without bias; the reference has group norm with 2 groups"
    assert expected in finding.causes[0].text


@pytest.fixture(scope="module")
def explain_idiom(dump: Callable[[str], Path]) -> Callable[[str, str], tuple[str, str]]:
    """Return (cause, sentence) of the first finding of a network against the clean one.

    ``target``: the folder of the target. The other one is the clean network, or the faulty one.
    """

    def explain(target: str, reference: str) -> tuple[str, str]:
        folder = dump(f"pt_{target.partition('_')[0]}")
        cause = dumpdiff.align(folder / target, folder / reference).findings[0].causes[0]
        return cause.name, cause.text

    return explain


class TestIdioms:
    """Networks as other people write them: sums by einsum, constant tables, joined sequences."""

    @pytest.mark.parametrize(("fault", "cause", "sentence"), [
        ("timed_base", "rope-theta", "frequencies of base 500, whose logarithm"),
        ("timed_bare", "activation-kind", "without Functional.silu.0.forward (silu)"),
        ("timed_doubled", "scale", "attention scores 2 times the reference's"),
        ("timed_scale", "scale",
         "the number = 4 in Tensor.__truediv__.3.forward; the reference has 2"),
        ("timed_mixed", "input-source", "an input itself in place of 1 minus it"),
        ("sequence_base", "rope-theta",
         "frequencies of base 1000; the reference has base 10000"),
        ("sequence_interleaved", "time-embedding-order",
         "sines and cosines interleaved, not one after the other"),
        ("sequence_flipped", "kernel-flipped", "reversed along axis 2"),
        ("sequence_grouped", "norm-groups", "group_norm with 1 groups; the reference has 2 groups"),
        ("sequence_normless", "norm-missing", "without Functional.group_norm.0.forward"),
        ("sequence_features", "missing-term", "in Functional.linear.0.forward (matmul)"),
        ("sequence_scores", "missing-step", "without Torch.softmax.0.forward (softmax)"),
        ("sequence_labels", "label-shift", "labels shifted by 1"),
        ("sequence_after", "layer-order", "the reference applies it to Tensor.__add__.0.forward"),
    ])  # fmt: skip
    def test_the_fault_is_named_in_both_directions(
        self,
        explain_idiom: Callable[[str, str], tuple[str, str]],
        fault: str,
        cause: str,
        sentence: str,
    ) -> None:
        clean = f"{fault.partition('_')[0]}_none"
        name, text = explain_idiom(fault, clean)
        assert name == cause
        assert sentence in text
        assert explain_idiom(clean, fault)[0] == cause

    def test_fused_attention_is_the_one_that_einsum_writes(
        self, dump: Callable[[str], Path]
    ) -> None:
        folder = dump("pt_timed")
        result = dumpdiff.align(folder / "timed_fused", folder / "timed_none")
        assert result.verdict == "aligned"


class TestGroupedAttention:
    """One side has attention as one call, the other one writes it out, with a fault."""

    @pytest.mark.parametrize(("fault", "cause", "sentence"), [
        ("groups_tiled", "heads-permuted", "keys and values of the heads [0, 1, 0, 1]"),
        ("groups_twice", "bias-doubled", "module.query_bias"),
    ])  # fmt: skip
    def test_the_fault_is_named_in_both_directions(
        self, dump: Callable[[str], Path], fault: str, cause: str, sentence: str
    ) -> None:
        folder = dump("pt_groups")
        for pair in ((fault, "groups_fused"), ("groups_fused", fault)):
            finding = dumpdiff.align(*(folder / name for name in pair)).findings[0]
            assert finding.causes[0].name == cause
            assert sentence in finding.causes[0].text

    def test_a_mask_made_of_differing_numbers_is_no_divergence_of_its_own(
        self, dump: Callable[[str], Path]
    ) -> None:
        folder = dump("pt_groups")
        findings = dumpdiff.align(folder / "choice_doubled", folder / "choice_none").findings
        assert [finding.kind for finding in findings] == ["region"]
        assert findings[0].causes[0].name == "bias-doubled"


class TestHeads:
    """One side has the tokens before the batch: where the numbers diverge, they show no layout."""

    def test_both_orders_of_the_axes_are_aligned(self, dump: Callable[[str], Path]) -> None:
        folder = dump("pt_heads")
        result = dumpdiff.align(folder / "heads_tokens", folder / "heads_none")
        assert result.verdict == "aligned"

    @pytest.mark.parametrize("is_mirrored", [False, True])
    def test_a_missing_norm_is_found_across_the_orders(
        self, explain_idiom: Callable[[str, str], tuple[str, str]], is_mirrored: bool
    ) -> None:
        names = ("heads_normless", "heads_none")
        cause, text = explain_idiom(*(names[::-1] if is_mirrored else names))
        assert cause == "norm-missing"
        assert "Functional.layer_norm.0.forward (layer_norm)" in text


class TestFilter:
    """A flipped kernel, and the halves of a projection of which no op is recorded."""

    @pytest.mark.parametrize("is_mirrored", [False, True])
    def test_a_part_may_have_all_the_error_of_its_whole(
        self, dump: Callable[[str], Path], is_mirrored: bool
    ) -> None:
        folder = dump("pt_filter")
        names = ("filter_sums", "filter_none")
        target, reference = names[::-1] if is_mirrored else names
        result = dumpdiff.align(folder / target, folder / reference)
        assert result.verdict == "aligned"
        assert not result.findings

    def test_the_gradient_of_a_flipped_kernel_is_compared_as_the_parameter_is_stored(
        self, dump: Callable[[str], Path]
    ) -> None:
        folder = dump("pt_filter")
        pairs = dumpdiff.align(folder / "filter_sums", folder / "filter_none").pairs
        gradients = pairs[pairs["target_op"] == "Module.filter.LongKernel.parameters_grad.0"]
        assert len(gradients)
        assert set(gradients["state"]) == {"agreeing"}

    @pytest.mark.parametrize("is_mirrored", [False, True])
    def test_exchanged_halves_stay_a_finding(
        self, dump: Callable[[str], Path], is_mirrored: bool
    ) -> None:
        folder = dump("pt_filter")
        names = ("filter_halves", "filter_none")
        target, reference = names[::-1] if is_mirrored else names
        result = dumpdiff.align(folder / target, folder / reference)
        assert result.verdict == "diverged"
        assert "Tensor.__radd__.0.forward" in result.findings[0].title
