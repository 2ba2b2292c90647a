"""What pairs by value leave alone."""

from __future__ import annotations

from dumpdiff.gradient_norms import Norms, compare
from gradient_norms.sides import bare, fused


def test_parts_are_found_without_any_names(ms: Norms, pt: Norms) -> None:
    comparison = compare(fused(ms, named=False), bare(pt))
    assert comparison.verdict == "agree"
    assert sum(found.by == "parts" for found in comparison.rows) == 8
