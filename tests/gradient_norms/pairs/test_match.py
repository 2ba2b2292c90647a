"""Items of a list of norms and the distances between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.gradient_norms import Norms, compare
from dumpdiff.gradient_norms.pairs.match import build_items, combine_items
from gradient_norms.sides import RULES, drop_names, order_decayed_first, scale_norms


def test_parameters_of_different_sizes_are_never_paired(ms: Norms, pt: Norms) -> None:
    order = order_decayed_first(ms)
    target = replace(drop_names(ms, order), sizes=ms.sizes[order])
    comparison = compare(scale_norms(target, lambda path: 1.0), pt)
    size_by_path = {}
    for name, size in zip(pt.names, pt.sizes.tolist(), strict=True):
        size_by_path[RULES.resolve_parameter(name)] = size
    for row in comparison.rows:
        assert target.sizes[int(row.target[1:]) - 1] == size_by_path[row.path]


def test_squared_norms_and_sizes_of_combined_items_add_up(ms: Norms) -> None:
    parts = build_items(ms, [1, 2, 3], {})
    fused = combine_items(parts, "layers.0.attention.qkv.weight")
    assert fused.value == pytest.approx(float(np.linalg.norm(ms.values[1:4])))
    assert (fused.indices, fused.size) == ((1, 2, 3), ms.sizes[1:4].sum())
