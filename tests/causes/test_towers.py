"""Features of sequences compared with other features: sound forms and causes, either side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import dumpdiff


@pytest.fixture(scope="module")
def folder(dump: Callable[[str], Path]) -> Path:
    return dump("pt_towers")


@pytest.mark.parametrize(
    ("target", "reference"),
    [("towers_written", "towers_plain"), ("towers_plain", "towers_written")],
)
def test_products_that_are_computed_twice_and_added_masks_are_aligned(
    folder: Path, target: str, reference: str
) -> None:
    """A product and its transpose have shares of one gradient; a flag is no number to add."""
    assert dumpdiff.align(folder / target, folder / reference).verdict == "aligned"


@pytest.mark.parametrize(
    ("form", "cause", "sentence"),
    [
        ("axis", "reduction-axis", "along axis -2; the reference has axis -1"),
        # 0.5 x and 1.702 x are each other's multiples, and neither is the cause
        ("gelu", "gelu-variant", "gelu (erf); the reference has gelu (sigmoid)"),
        ("zeroed", "zeroed", "attention.bias filled with 0"),
        ("last", "pooling", "token 5 for each sequence"),
    ],
)
def test_the_cause_is_named_in_both_directions(
    folder: Path, form: str, cause: str, sentence: str
) -> None:
    faulty, clean = folder / f"towers_{form}", folder / "towers_plain"
    finding = dumpdiff.align(faulty, clean).findings[0]
    assert finding.causes[0].name == cause
    assert sentence in finding.causes[0].text
    mirrored = dumpdiff.align(clean, faulty).findings[0]
    assert mirrored.causes[0].name == cause
