"""A list in the order of the other framework."""

from __future__ import annotations

import numpy as np

from dumpdiff.gradient_norms import Norms, compare
from gradient_norms.sides import bare, decayed_first, depth, fused, times, wrongly_paired

#: What ``GPTModel(...).named_parameters()`` of megatron-core 0.16.1 lists in a layer, in its order.
LINEAR_OF_CORE = ("attention.out", "attention.qkv", "mlp.gate_up_proj", "mlp.down_proj")


def test_the_optimizers_order_is_known(ms: Norms, pt: Norms) -> None:
    order = decayed_first(ms)
    comparison = compare(bare(ms, order, digits=5, squared=True), pt)
    assert (comparison.verdict, wrongly_paired(comparison, ms, order)) == ("agree", 0)
    assert (
        "48 norms were paired by their place in both lists, since not both sides name them"
        in comparison.notes
    )


def test_megatrons_layer_begins_with_the_attentions_output_and_is_fused(
    ms: Norms, pt: Norms
) -> None:
    random = np.random.default_rng(5)
    wrong = fused(
        times(ms, lambda path: random.uniform(1.05, 1.4) if depth(path) <= 1 else 1.0), named=True
    )

    def place(row: int) -> tuple[bool, int, int]:
        path = wrong.names[row]
        linear = [name in path for name in LINEAR_OF_CORE]
        layer = 10 if path.startswith("head") else depth(path)
        return "norm" in path, layer, linear.index(True) if any(linear) else -1

    order = sorted(range(len(wrong)), key=place)
    comparison = compare(bare(wrong, order, digits=5, squared=True), pt)
    assert wrongly_paired(comparison, wrong, order) == 0
    assert (comparison.pattern_kind, comparison.patterns[0].layer) == ("layer", 1)
