"""Steps of a network of images that one side leaves out, or orders otherwise, on recorded pairs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import dumpdiff


@pytest.mark.parametrize("is_mirrored", [False, True])
@pytest.mark.parametrize(
    ("form", "causes", "sentence"),
    [
        ("shuffled", {"axes-swapped"}, "2 x 2 pixels in the other order of channel and offset"),
        ("bare", {"affine-missing", "missing-step"}, "Tensor.__mul__.1.forward"),
        ("judged", {"activation-kind", "missing-step"}, "no activation in place of sigmoid"),
    ],
)
def test_the_difference_is_named(
    dump: Callable[[str], Path],
    form: str,
    causes: set[str],
    sentence: str,
    is_mirrored: bool,
) -> None:
    folder = dump("pt_images")
    paths = [folder / f"images_{form}", folder / "images_plain"]
    result = dumpdiff.align(*(reversed(paths) if is_mirrored else paths))
    first_cause = result.findings[0].causes[0]
    assert first_cause.name in causes
    assert sentence in first_cause.text
    assert first_cause.residual < 1e-6
