"""No order at all leaves the values."""

from __future__ import annotations

import numpy as np

from dumpdiff.gradient_norms import Norms, compare
from gradient_norms.sides import bare, wrongly_paired


def test_no_order_at_all_leaves_the_values(ms: Norms, pt: Norms) -> None:
    order = np.random.default_rng(0).permutation(len(ms)).tolist()
    comparison = compare(bare(ms, order, digits=5), pt)
    assert (comparison.verdict, wrongly_paired(comparison, ms, order)) == ("agree", 0)
    assert {found.by for found in comparison.rows} == {"value"}
    assert (
        "48 norms were paired by their values, since not both sides name them" in comparison.notes
    )
