"""Lists in the order of the other framework."""

from __future__ import annotations

import numpy as np

from dumpdiff.gradient_norms import Norms, compare
from gradient_norms.sides import (
    count_wrong_pairs,
    drop_names,
    fuse_parameters,
    get_depth,
    order_decayed_first,
    scale_norms,
)

#: Linear weights of a layer in the order of megatron-core 0.16.1,
#: ``GPTModel(...).named_parameters()``.
MEGATRON_LAYER = ("attention.out", "attention.qkv", "mlp.gate_up_proj", "mlp.down_proj")


def test_the_order_of_megatrons_optimizer_is_recognized(ms: Norms, pt: Norms) -> None:
    order = order_decayed_first(ms)
    comparison = compare(drop_names(ms, order, digits=5, squared=True), pt)
    assert (comparison.verdict, count_wrong_pairs(comparison, ms, order)) == ("agree", 0)
    assert (
        "48 norms were paired by their position in both lists, because not both sides name them"
        in comparison.notes
    )


def test_megatrons_layer_begins_with_the_attentions_output_and_is_fused(
    ms: Norms, pt: Norms
) -> None:
    random = np.random.default_rng(5)

    def change_first_layers(path: str) -> float:
        return random.uniform(1.05, 1.4) if get_depth(path) <= 1 else 1.0

    changed = fuse_parameters(scale_norms(ms, change_first_layers), named=True)

    def compute_position(index: int) -> tuple[bool, int, int]:
        path = changed.names[index]
        depth = 10 if path.startswith("head") else get_depth(path)
        for position, module in enumerate(MEGATRON_LAYER):
            if module in path:
                return "norm" in path, depth, position
        return "norm" in path, depth, -1

    order = sorted(range(len(changed)), key=compute_position)
    comparison = compare(drop_names(changed, order, digits=5, squared=True), pt)
    assert count_wrong_pairs(comparison, changed, order) == 0
    assert (comparison.pattern_kind, comparison.patterns[0].layer) == ("layer", 1)
