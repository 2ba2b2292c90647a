"""How much two norms may differ: rounding, printed digits, vanishing gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dumpdiff.gradient_norms import Norms, compare, read_norms
from dumpdiff.gradient_norms.norms import build_norms
from gradient_norms.sides import MEGATRON, add_noise, drop_names, drop_precision, scale_norms


def test_noise_of_bfloat16_is_tolerated_if_the_precision_is_known(ms: Norms, pt: Norms) -> None:
    target, reference = drop_precision(add_noise(ms, 4e-3)), drop_precision(pt)
    assert compare(target, reference, precision="bfloat16").verdict == "agree"
    assert compare(replace(target, precision="bfloat16"), reference).precision == "bfloat16"
    assert compare(target, reference, precision="float32").verdict == "differ"


def test_noise_of_an_unknown_precision_is_inconclusive(ms: Norms, pt: Norms) -> None:
    comparison = compare(drop_precision(add_noise(ms, 4e-3)), drop_precision(pt))
    assert comparison.verdict == "inconclusive"
    headline = comparison.to_stage().headline
    assert "bfloat16 rounding may cause this, float32 rounding does not" in headline


def test_one_differing_norm_among_exact_ones_is_no_noise(ms: Norms, pt: Norms) -> None:
    changed = scale_norms(ms, lambda path: 1.003 if path == "embedding.weight" else 1)
    assert compare(drop_precision(changed), drop_precision(pt)).pattern_kind == "precision"


def test_differences_far_beyond_rounding_are_tolerated_in_no_precision(
    ms: Norms, pt: Norms
) -> None:
    assert compare(add_noise(ms, 0.2), pt, precision="bfloat16").verdict == "differ"


def test_the_tolerance_includes_the_rounding_of_printed_digits(ms: Norms, pt: Norms) -> None:
    comparison = compare(drop_names(ms, digits=3), drop_names(pt, digits=3))
    assert comparison.verdict == "agree"
    assert all(row.tolerance > 1e-4 for row in comparison.rows)


def test_norms_of_too_few_digits_are_coarse() -> None:
    comparison = compare(read_norms(MEGATRON), read_norms(MEGATRON))
    coarse = comparison.select_rows("coarse")
    assert comparison.verdict == "agree"
    assert len(coarse) == 4  # tensor(0.0003) and the like, which hardly add to the global norm
    assert all(row.reference_norm < 0.03 for row in coarse)


def test_the_gradient_of_a_keys_bias_is_only_rounding() -> None:
    names = tuple(f"layers.0.attention.{part}.bias" for part in "qkv")
    target = build_norms("a", "", names, np.array([1.0, 3e-8, 2.0]), squared=False)
    reference = build_norms("a", "", names, np.array([1.0, 9e-9, 2.0]), squared=False)
    assert compare(target, reference).verdict == "agree"
    reference = replace(reference, raw_values=np.array([1.0, 0.5, 2.0]))
    assert compare(target, reference).verdict == "differ"


def test_norms_that_are_finite_on_neither_side_are_inconclusive(ms: Norms, pt: Norms) -> None:
    def overflow_one(path: str) -> float:
        return np.inf if path == "layers.2.mlp.up_proj.weight" else 1.0

    target, reference = scale_norms(ms, overflow_one), scale_norms(pt, overflow_one)
    comparison = compare(target, reference)
    (row,) = comparison.select_rows("inconclusive")
    assert (comparison.verdict, row.path) == ("inconclusive", "layers.2.mlp.up_proj.weight")
    assert comparison.to_stage().headline == "1 norms are not finite on both sides"
    assert compare(target, pt).pattern_kind == "nonfinite"


def test_norms_whose_squares_overflow_are_compared() -> None:
    target = build_norms("a", "", ("a", "b"), np.array([1.0, 1e200]), squared=False)
    reference = build_norms("a", "", ("a", "b"), np.array([1.0, 2e200]), squared=False)
    assert [row.path for row in compare(target, reference).select_rows("differ")] == ["b"]
