"""Lists in one order, in which the modules of a layer may be reordered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dumpdiff.gradient_norms import Norms, compare
from dumpdiff.gradient_norms.norms import build_norms
from gradient_norms.sides import (
    RULES,
    count_wrong_pairs,
    drop_names,
    get_depth,
    order_by_depth,
    order_decayed_first,
    scale_norms,
)


def test_lists_in_one_order_are_paired_by_position(ms: Norms, pt: Norms) -> None:
    pt_paths = [RULES.resolve_parameter(name) for name in pt.names]
    same_order = [pt_paths.index(RULES.resolve_parameter(name)) for name in ms.names]
    comparison = compare(drop_names(ms), drop_names(pt, same_order))
    assert (comparison.verdict, {row.evidence for row in comparison.rows}) == ("agree", {"order"})
    assert all(row.target == row.reference for row in comparison.rows)
    assert len(comparison.rows) == len(ms)


def test_the_order_is_used_if_half_of_the_norms_differ(ms: Norms, pt: Norms) -> None:
    order = order_decayed_first(ms)
    random = np.random.default_rng(0)

    def change_first_layers(path: str) -> float:
        return 1.05 + 0.3 * random.random() if get_depth(path) <= 1 else 1.0

    changed = scale_norms(ms, change_first_layers)
    comparison = compare(drop_names(changed, order, digits=5, squared=True), pt)
    assert (comparison.verdict, comparison.pattern_kind) == ("differ", "layer")
    assert count_wrong_pairs(comparison, ms, order) == 0


def test_the_order_is_used_if_all_norms_differ(ms: Norms, pt: Norms) -> None:
    random = np.random.default_rng(0)
    changed = scale_norms(ms, lambda path: 1 + random.random())
    comparison = compare(drop_names(changed), drop_names(ms))
    assert comparison.verdict == "differ"
    assert all(row.target == row.reference for row in comparison.rows)


def test_modules_of_a_layer_may_have_another_order(ms: Norms) -> None:
    paths = [RULES.resolve_parameter(name) for name in ms.names]

    def order_output_first(index: int) -> tuple[int, bool]:
        return get_depth(paths[index]), "attention.out" not in paths[index]

    reordered = drop_names(ms, sorted(range(len(ms)), key=order_output_first))
    assert compare(reordered, drop_names(ms, order_by_depth(ms))).verdict == "agree"


def test_a_weight_without_a_gradient_takes_the_position_that_is_free(ms: Norms) -> None:
    target = scale_norms(ms, lambda path: 0.0 if path == "layers.2.mlp.gate_proj.weight" else 1.0)
    paths = [RULES.resolve_parameter(name) for name in ms.names]
    order = list(range(len(ms)))
    gate, up = (paths.index(f"layers.2.mlp.{module}.weight") for module in ("gate_proj", "up_proj"))
    order[gate], order[up] = up, gate
    reordered = build_norms("list.txt", "a list", (), target.values[order], squared=False)
    comparison = compare(reordered, drop_names(ms))
    (row,) = comparison.select_rows("differ")
    assert (row.target, row.reference) == (f"#{up + 1}", f"#{gate + 1}")
    assert comparison.to_stage().headline.startswith(
        f"no gradient on the target for #{up + 1}/#{gate + 1}"
    )


def test_two_norms_that_are_exchanged_between_lists_of_one_framework_are_two_differences(
    ms: Norms,
) -> None:
    """A gate's gradient in place of the up projection's: both have the same size."""
    paths = [RULES.resolve_parameter(name) for name in ms.names]
    order = list(range(len(ms)))
    gate, up = (paths.index(f"layers.2.mlp.{module}.weight") for module in ("gate_proj", "up_proj"))
    order[gate], order[up] = up, gate
    lists = (drop_names(ms, order), drop_names(ms))
    assert compare(*lists).verdict == "agree", "lists of unknown origin may be in another order"
    printed = [replace(side, list_format="MindSpore Transformers' 'local_norm'") for side in lists]
    comparison = compare(*printed)
    assert comparison.verdict == "differ"
    differing = {row.target for row in comparison.select_rows("differ")}
    assert differing == {f"#{gate + 1}", f"#{up + 1}"}
