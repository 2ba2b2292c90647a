"""Sums of what neighbours send, behind indices: edges in the other direction, or lost ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import dumpdiff

EXCHANGED = "the indices of gather_rows and of scatter_add exchanged"
LOST = "without the last 3 of 13 rows; the reference sums all of them up (scatter_add)"


@pytest.mark.parametrize(
    ("faulty", "clean", "cause", "sentence"),
    [
        ("reversed", "scattered", "input-order", EXCHANGED),
        ("reversed", "product", "input-order", EXCHANGED),
        ("shortened", "scattered", "missing-term", LOST),
        ("outgoing", "scattered", "input-source", "other indices (scatter_add)"),
        ("outgoing", "product", "input-source", "other indices (scatter_add)"),
    ],
)
def test_the_first_cause_says_what_is_wrong_with_the_indices(
    dump: Callable[[str], Path], faulty: str, clean: str, cause: str, sentence: str
) -> None:
    folder = dump("pt_messages")
    result = dumpdiff.align(folder / f"messages_{faulty}", folder / f"messages_{clean}")
    assert result.first_divergence is not None
    first_cause = result.first_divergence.explain().causes[0]
    assert first_cause.name == cause
    assert sentence in first_cause.text


def test_a_product_with_an_incidence_matrix_is_the_same_sum(dump: Callable[[str], Path]) -> None:
    folders = [dump("pt_messages") / f"messages_{form}" for form in ("scattered", "product")]
    assert dumpdiff.align(*folders).verdict == "aligned"
    assert dumpdiff.align(*reversed(folders)).verdict == "aligned"
