"""Squares and roots on both sides are told from each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dumpdiff.gradient_norms import Norms, compare
from gradient_norms.sides import bare


@pytest.mark.parametrize("squared", [True, False])
def test_whether_a_list_holds_squares_is_decided_by_what_agrees(
    ms: Norms, pt: Norms, squared: bool
) -> None:
    listed = replace(bare(ms, digits=6, squared=squared), squared=None, because="")
    comparison = compare(listed, pt)
    assert (comparison.verdict, comparison.target.squared) == ("agree", squared)
    assert (
        comparison.target.squared_reason
        == f"taken as {'squares' if squared else 'roots'}: so the sides agree best"
    )
