"""Squares are distinguished from roots by comparing both sides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dumpdiff.gradient_norms import Norms, compare
from gradient_norms.sides import drop_names


@pytest.mark.parametrize(("squared", "form"), [(True, "squares"), (False, "roots")])
def test_a_list_holds_squares_if_the_sides_then_agree(
    ms: Norms, pt: Norms, squared: bool, form: str
) -> None:
    target = replace(drop_names(ms, digits=6, squared=squared), squared=None, squared_reason="")
    comparison = compare(target, pt)
    assert (comparison.verdict, comparison.target.squared) == ("agree", squared)
    assert comparison.target.squared_reason == (
        f"interpreted as {form}, because the sides agree best this way"
    )
