"""Lists of one order, in which the modules of a layer may have changed places."""

from __future__ import annotations

import numpy as np

from dumpdiff.gradient_norms import Norms, compare
from dumpdiff.gradient_norms.side import build_norms
from gradient_norms.sides import RULES, bare, decayed_first, depth, times, wrongly_paired


def test_lists_in_one_order_are_paired_in_it(ms: Norms, pt: Norms) -> None:
    order = range(len(ms))
    in_order = [
        pt.names.index(next(n for n in pt.names if RULES.resolve_parameter(n) == RULES.resolve_parameter(m)))
        for m in ms.names
    ]
    comparison = compare(bare(ms), bare(pt, in_order))
    assert (comparison.verdict, {found.by for found in comparison.rows}) == ("agree", {"order"})
    assert all(found.target == found.reference for found in comparison.rows)
    assert len(comparison.rows) == len(order)


def test_an_order_holds_where_half_of_the_norms_differ(ms: Norms, pt: Norms) -> None:
    order = decayed_first(ms)
    random = np.random.default_rng(0)
    wrong = times(ms, lambda path: 1.05 + 0.3 * random.random() if depth(path) <= 1 else 1.0)
    comparison = compare(bare(wrong, order, digits=5, squared=True), pt)
    assert (comparison.verdict, comparison.pattern_kind, wrongly_paired(comparison, ms, order)) == (
        "differ",
        "layer",
        0,
    )


def test_an_order_holds_where_all_norms_differ(ms: Norms, pt: Norms) -> None:
    random = np.random.default_rng(0)
    comparison = compare(bare(times(ms, lambda path: 1 + random.random())), bare(ms))
    assert comparison.verdict == "differ"
    assert all(found.target == found.reference for found in comparison.rows)


def test_modules_of_a_layer_may_stand_in_another_order(ms: Norms) -> None:
    order = sorted(
        range(len(ms)),
        key=lambda i: (
            depth(RULES.resolve_parameter(ms.names[i])),
            "attention.out" not in RULES.resolve_parameter(ms.names[i]),
        ),
    )
    in_order = sorted(range(len(ms)), key=lambda i: depth(RULES.resolve_parameter(ms.names[i])))
    assert compare(bare(ms, order), bare(ms, in_order)).verdict == "agree"


def test_a_weight_without_a_gradient_takes_the_place_that_is_left(ms: Norms) -> None:
    cut = times(ms, lambda path: 0.0 if path == "layers.2.mlp.gate_proj.weight" else 1.0)
    paths = [RULES.resolve_parameter(name) for name in ms.names]
    order = list(range(len(ms)))
    gate, up = (paths.index(f"layers.2.mlp.{module}.weight") for module in ("gate_proj", "up_proj"))
    order[gate], order[up] = up, gate
    bare_cut = build_norms("list.txt", "a list", (), cut.values[order], squared=False)
    comparison = compare(bare_cut, bare(ms))
    (differing,) = comparison.select_rows("differ")
    assert (differing.target, differing.reference) == (f"#{up + 1}", f"#{gate + 1}")
    assert comparison.to_stage().headline.startswith(
        f"no gradient on the target for #{up + 1}/#{gate + 1}"
    )
