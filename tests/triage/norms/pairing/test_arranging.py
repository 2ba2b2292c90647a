"""A list in the order of the other framework."""

from __future__ import annotations

from dumpdiff.triage.norms import Norms, compare
from tests.triage.norms.sides import bare, decayed_first, wrongly_paired


def test_the_optimizers_order_is_known(ms: Norms, pt: Norms) -> None:
    order = decayed_first(ms)
    comparison = compare(bare(ms, order, digits=5, squared=True), pt)
    assert (comparison.verdict, wrongly_paired(comparison, ms, order)) == ("agree", 0)
    assert "48 norms were paired by their place in both lists, since not both sides name them" in comparison.notes
