"""What an entry of a list is, and how far two are apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.gradient_norms import Norms, compare
from dumpdiff.gradient_norms.pairs.item import items_of, together
from gradient_norms.sides import RULES, bare, decayed_first, times


def test_norms_of_other_sizes_are_never_paired(ms: Norms, pt: Norms) -> None:
    order = decayed_first(ms)
    sizes = replace(bare(ms, order), sizes=ms.sizes[order])
    comparison = compare(times(sizes, lambda path: 1.0), pt)
    by_name = {
        RULES.resolve_parameter(name): size for name, size in zip(pt.names, pt.sizes.tolist(), strict=True)
    }
    for found in comparison.rows:
        assert sizes.sizes[int(found.target[1:]) - 1] == by_name[found.path]


def test_parts_together_are_as_large_as_the_whole(ms: Norms) -> None:
    parts = items_of(ms, [1, 2, 3], {})
    whole = together(parts, "layers.0.attention.qkv.weight")
    assert whole.value == pytest.approx(float(np.linalg.norm(ms.values[1:4])))
    assert (whole.rows, whole.size) == ((1, 2, 3), ms.sizes[1:4].sum())
