"""How far two norms may be apart: rounding, digits, one factor for all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dumpdiff.gradient_norms import Norms, compare, read_norms
from dumpdiff.gradient_norms.side import build_norms
from gradient_norms.sides import MEGATRON, bare, noisy, times, unknown


def test_noise_of_bfloat16_is_allowed_where_it_is_known(ms: Norms, pt: Norms) -> None:
    target, reference = unknown(noisy(ms, 4e-3)), unknown(pt)
    assert compare(target, reference, precision="bfloat16").verdict == "agree"
    assert compare(replace(target, precision="bfloat16"), reference).precision == "bfloat16"
    assert compare(target, reference, precision="float32").verdict == "differ"


def test_noise_of_a_precision_that_nobody_knows_cannot_be_told(ms: Norms, pt: Norms) -> None:
    comparison = compare(unknown(noisy(ms, 4e-3)), unknown(pt))
    assert comparison.verdict == "inconclusive"
    assert "rounding in bfloat16 may do that, in float32 it does not" in comparison.to_stage().headline


def test_one_norm_off_among_exact_ones_is_no_noise(ms: Norms, pt: Norms) -> None:
    changed = times(unknown(ms), lambda path: 1.003 if path == "embedding.weight" else 1)
    assert compare(changed, unknown(pt)).pattern_kind == "precision"


def test_no_precision_allows_what_is_far_beyond_rounding(ms: Norms, pt: Norms) -> None:
    assert compare(noisy(ms, 0.2), pt, precision="bfloat16").verdict == "differ"


def test_digits_that_were_not_printed_are_left_open(ms: Norms, pt: Norms) -> None:
    comparison = compare(bare(ms, digits=3), bare(pt, digits=3))
    assert comparison.verdict == "agree"
    assert all(found.tolerance > 1e-4 for found in comparison.rows)


def test_too_few_digits_are_too_few() -> None:
    comparison = compare(read_norms(MEGATRON), read_norms(MEGATRON))
    coarse = comparison.select_rows("coarse")
    assert (comparison.verdict, len(coarse)) == (
        "agree",
        4,
    )  # tensor(0.0003) and the like, of little weight
    assert all(found.reference_norm < 0.03 for found in coarse)


def test_the_gradient_of_a_keys_bias_is_rounding_alone() -> None:
    names = tuple(f"layers.0.attention.{part}.bias" for part in "qkv")
    one, other = (
        build_norms("a", "", names, np.array([1.0, key, 2.0]), squared=False) for key in (3e-8, 9e-9)
    )
    assert compare(one, other).verdict == "agree"
    assert compare(one, replace(other, given=np.array([1.0, 0.5, 2.0]))).verdict == "differ"


def test_what_is_finite_on_neither_side_cannot_be_told(ms: Norms, pt: Norms) -> None:
    lost = [
        times(side, lambda path: np.inf if path == "layers.2.mlp.up_proj.weight" else 1.0)
        for side in (ms, pt)
    ]
    comparison = compare(*lost)
    (row,) = comparison.select_rows("inconclusive")
    assert (comparison.verdict, row.path) == ("inconclusive", "layers.2.mlp.up_proj.weight")
    assert comparison.to_stage().headline == "1 norms are not finite on both sides"
    assert compare(lost[0], pt).pattern_kind == "nonfinite"


def test_norms_whose_squares_overflow_differ_none_the_less() -> None:
    one, other = (
        build_norms("a", "", ("a", "b"), np.array([1.0, value]), squared=False)
        for value in (1e200, 2e200)
    )
    assert [row.path for row in compare(one, other).select_rows("differ")] == ["b"]
