"""A list without names finds its partners by order, or by value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dumpdiff.triage.norms import Norms, compare
from dumpdiff.triage.norms.side import norms_of
from tests.triage.norms.sides import RULES, bare, decayed_first, depth, fused, times, wrongly_paired


def test_lists_in_one_order_are_paired_in_it(ms: Norms, pt: Norms) -> None:
    order = range(len(ms))
    in_order = [pt.names.index(next(n for n in pt.names if RULES.parameter(n) == RULES.parameter(m))) for m in ms.names]
    comparison = compare(bare(ms), bare(pt, in_order))
    assert (comparison.verdict, {found.by for found in comparison.rows}) == ("agree", {"order"})
    assert all(found.target == found.reference for found in comparison.rows)
    assert len(comparison.rows) == len(order)


def test_no_order_at_all_leaves_the_values(ms: Norms, pt: Norms) -> None:
    order = np.random.default_rng(0).permutation(len(ms)).tolist()
    comparison = compare(bare(ms, order, digits=5), pt)
    assert (comparison.verdict, wrongly_paired(comparison, ms, order)) == ("agree", 0)
    assert {found.by for found in comparison.rows} == {"value"}
    assert "48 norms were paired by their values, since not both sides name them" in comparison.notes


def test_an_order_holds_where_half_of_the_norms_differ(ms: Norms, pt: Norms) -> None:
    order = decayed_first(ms)
    random = np.random.default_rng(0)
    wrong = times(ms, lambda path: 1.05 + 0.3 * random.random() if depth(path) <= 1 else 1.0)
    comparison = compare(bare(wrong, order, digits=5, squared=True), pt)
    assert (comparison.verdict, comparison.pattern, wrongly_paired(comparison, ms, order)) == ("differ", "layer", 0)


def test_an_order_holds_where_all_norms_differ(ms: Norms, pt: Norms) -> None:
    random = np.random.default_rng(0)
    comparison = compare(bare(times(ms, lambda path: 1 + random.random())), bare(ms))
    assert comparison.verdict == "differ"
    assert all(found.target == found.reference for found in comparison.rows)


def test_modules_of_a_layer_may_stand_in_another_order(ms: Norms) -> None:
    order = sorted(
        range(len(ms)),
        key=lambda i: (depth(RULES.parameter(ms.names[i])), "attention.out" not in RULES.parameter(ms.names[i])),
    )
    in_order = sorted(range(len(ms)), key=lambda i: depth(RULES.parameter(ms.names[i])))
    assert compare(bare(ms, order), bare(ms, in_order)).verdict == "agree"


def test_norms_of_other_sizes_are_never_paired(ms: Norms, pt: Norms) -> None:
    order = decayed_first(ms)
    sizes = replace(bare(ms, order), sizes=ms.sizes[order])
    comparison = compare(times(sizes, lambda path: 1.0), pt)
    by_name = {RULES.parameter(name): size for name, size in zip(pt.names, pt.sizes.tolist(), strict=True)}
    for found in comparison.rows:
        assert sizes.sizes[int(found.target[1:]) - 1] == by_name[found.path]


def test_parts_are_found_without_any_names(ms: Norms, pt: Norms) -> None:
    comparison = compare(fused(ms, named=False), bare(pt))
    assert comparison.verdict == "agree"
    assert sum(found.by == "parts" for found in comparison.rows) == 8


def test_a_weight_without_a_gradient_takes_the_place_that_is_left(ms: Norms) -> None:
    cut = times(ms, lambda path: 0.0 if path == "layers.2.mlp.gate_proj.weight" else 1.0)
    paths = [RULES.parameter(name) for name in ms.names]
    order = list(range(len(ms)))
    gate, up = (paths.index(f"layers.2.mlp.{module}.weight") for module in ("gate_proj", "up_proj"))
    order[gate], order[up] = up, gate
    bare_cut = norms_of("list.txt", "a list", (), cut.values[order], squared=False)
    comparison = compare(bare_cut, bare(ms))
    (differing,) = comparison.of_state("differ")
    assert (differing.target, differing.reference) == (f"#{up + 1}", f"#{gate + 1}")
    assert comparison.stage().headline.startswith(f"no gradient on the target for #{up + 1}/#{gate + 1}")
