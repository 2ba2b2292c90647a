"""Networks whose body has another form: sound forms are aligned, faulty ones have one finding.

All pairs are compared in both directions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import dumpdiff
from dumpdiff import Result

Align = Callable[[str, str], Result]
ARCHIVES = {
    "order": "pt_forms", "groups": "pt_forms", "latent": "pt_key_forms", "window": "pt_key_forms",
    "quantize": "pt_axis_forms", "direction": "pt_axis_forms",
    "modulate": "pt_attention_forms", "masked": "pt_attention_forms",
    "couple": "pt_coupling_forms", "gate": "pt_coupling_forms",
}  # fmt: skip


@pytest.fixture(scope="module")
def align_forms(dump: Callable[[str], Path]) -> Align:
    """Return the result of two recorded networks, by the names of their folders."""

    @cache
    def align(target: str, reference: str) -> Result:
        folder = dump(ARCHIVES[target.partition("_")[0]])
        return dumpdiff.align(folder / target, folder / reference)

    return align


def explain_both_ways(align: Align, faulty: str, clean: str) -> list[tuple[str, str]]:
    """Return (cause, sentence) of the first finding, the fault in the target, then in the other."""
    causes = []
    for names in ((faulty, clean), (clean, faulty)):
        cause = align(*names).findings[0].causes[0]
        causes.append((cause.name, cause.text))
    return causes


class TestOrder:
    """What one side applies elsewhere is moved, not missing."""

    def test_a_norm_after_the_sum_in_place_of_before_the_sublayer_is_moved(
        self, align_forms: Align
    ) -> None:
        (name, text), mirrored = explain_both_ways(align_forms, "order_post", "order_pre")
        assert name == mirrored[0] == "layer-order"
        assert (
            "layer_norm (body.norm1.weight) applied to Tensor.__add__.0.forward; "
            "the reference applies it to Functional.embedding.0.forward"
        ) in text
        assert "the target applies it to Functional.embedding.0.forward" in mirrored[1]

    def test_sublayers_in_another_order_are_no_missing_term(self, align_forms: Align) -> None:
        for name, _ in explain_both_ways(align_forms, "order_swapped", "order_pre"):
            assert name == "layer-order"


class TestGroups:
    """Keys repeated one after the other, with the weights in that order, compute the same."""

    @pytest.mark.parametrize("is_mirrored", [False, True])
    def test_the_gradient_of_permuted_columns_is_compared_in_their_order(
        self, align_forms: Align, is_mirrored: bool
    ) -> None:
        names = sorted(["groups_tile", "groups_interleave"], reverse=is_mirrored)
        result = align_forms(*names)
        assert result.verdict == "aligned"
        layouts = set(result.pairs["layout"])
        assert {"rows permuted", "columns permuted"} <= layouts


class TestSteps:
    """A difference reaches what was cut or joined from it unseen: it is one finding."""

    def test_keys_that_were_joined_unseen_follow_from_the_norm(self, align_forms: Align) -> None:
        for name, _ in explain_both_ways(align_forms, "latent_eps", "latent_norm"):
            assert name == "epsilon"
        for names in (("latent_eps", "latent_norm"), ("latent_norm", "latent_eps")):
            assert len(align_forms(*names).findings) == 1


class TestWords:
    """The cause is that of the fault, not another one that explains the numbers as well."""

    def test_parts_of_keys_in_another_order_are_no_heads(self, align_forms: Align) -> None:
        for name, text in explain_both_ways(align_forms, "latent_order", "latent_norm"):
            assert name == "input-order"
            assert "the two parts joined along axis" in text

    def test_tokens_that_are_not_rolled_have_no_exchanged_axes(self, align_forms: Align) -> None:
        for name, text in explain_both_ways(align_forms, "window_bare", "window_roll"):
            assert name == "row-shift"
            assert "without rolling each 6 of its rows by -1" in text

    def test_tokens_that_are_rolled_twice_are_no_heads_in_another_order(
        self, align_forms: Align
    ) -> None:
        (name, text), mirrored = explain_both_ways(align_forms, "window_twice", "window_roll")
        assert name == mirrored[0] == "row-shift"
        assert "rolled by -2 along axis 1" in text
        assert "rolled by 2 along axis 1" in mirrored[1]


class TestAxes:
    """What follows from a reduction over other axes is computed with the other shape."""

    @pytest.mark.parametrize(
        ("form", "axes"), [("quantize_channel", "over axes 0, 1"), ("quantize_tensor", "over all")]
    )
    def test_scales_of_channels_or_of_all_are_named(
        self, align_forms: Align, form: str, axes: str
    ) -> None:
        (name, text), mirrored = explain_both_ways(align_forms, form, "quantize_token")
        assert name == mirrored[0] == "quantization-axis"
        assert f"max (Tensor.amax.0.forward) {axes}" in text
        assert "reduces over axis 2" in text
        assert "max (Tensor.amax.0.forward) over axis 2" in mirrored[1]

    def test_norms_of_columns_are_no_transposed_weight(self, align_forms: Align) -> None:
        for name, text in explain_both_ways(align_forms, "direction_columns", "direction_rows"):
            assert name == "reduction-axis"
            assert "norm (Tensor.norm.0.forward) over axis" in text


class TestFusedForms:
    """One side is fused, the other is written out: masks, norms and parts are still recognized."""

    @pytest.mark.parametrize(
        ("faulty", "clean", "cause", "sentence"),
        [
            ("modulate_exchanged", "modulate_fused", "split-order", "of the 2 parts"),
            ("modulate_after", "modulate_fused", "layer-order", "layer_norm (body.norm.weight)"),
            ("masked_exchanged", "masked_fused", "split-order", "keys and values exchanged"),
            ("masked_later", "masked_fused", "mask-shifted", "hides from diagonal 2 on"),
            ("masked_unbiased", "masked_fused", "relative-bias", "no bias of the scores"),
            (
                "masked_other",
                "masked_fused",
                "weight-swapped",
                "body.query_norm.weight in its place",
            ),
        ],
    )
    def test_the_cause_is_named_in_both_directions(
        self, align_forms: Align, faulty: str, clean: str, cause: str, sentence: str
    ) -> None:
        for name, text in explain_both_ways(align_forms, faulty, clean):
            assert name == cause
            assert sentence in text


class TestCouplings:
    """Modules cut and join their channels unseen, and each side adds up its terms in an order."""

    @pytest.mark.parametrize("is_mirrored", [False, True])
    def test_partial_sums_in_another_order_are_no_difference(
        self, align_forms: Align, is_mirrored: bool
    ) -> None:
        names = sorted(["couple_chained", "couple_summed"], reverse=is_mirrored)
        assert align_forms(*names).verdict == "aligned"

    @pytest.mark.parametrize("clean", ["couple_chained", "couple_summed"])
    def test_what_a_module_joins_unseen_comes_from_the_results_inside(
        self, align_forms: Align, clean: str
    ) -> None:
        for name, text in explain_both_ways(align_forms, "couple_late", clean):
            assert name == "layer-order"
            assert "add applied later" in text

    def test_a_gate_behind_the_sum_reads_the_mean_of_the_sum(self, align_forms: Align) -> None:
        for name, text in explain_both_ways(align_forms, "gate_outer", "gate_inner"):
            assert name == "layer-order"
            assert "add applied later" in text

    def test_a_kernel_read_with_its_axes_in_another_order_is_named(
        self, align_forms: Align
    ) -> None:
        for name, text in explain_both_ways(align_forms, "gate_flat", "gate_inner"):
            assert name == "kernel-axes"
            assert "axes" in text
