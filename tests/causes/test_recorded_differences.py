"""What only one side's records have: a number, a sign, an input or a step, on recorded pairs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dumpdiff
from dumpdiff.causes.element_places import find_window


@pytest.mark.parametrize("is_mirrored", [False, True])
@pytest.mark.parametrize(
    ("form", "cause", "sentence"),
    [
        ("sign", "constant-factor", "Tensor.__rmul__.5.forward subtracted in"),
        ("weights", "loss-weight", "0.7 in Tensor.__rmul__.0.forward and 0.3 in"),
        ("factor", "constant-factor", "a factor of 0.1 (Tensor.__mul__.4.forward (mul))"),
        ("target", "input-source", "Tensor.__sub__.3.forward (sub) of an input"),
        ("unsoftened", "activation-kind", "no activation in place of softplus"),
        ("source", "input-source", "(mul) of Torch.tanh.0.forward"),
    ],
)
def test_the_difference_is_named(
    dump: Callable[[str], Path], form: str, cause: str, sentence: str, is_mirrored: bool
) -> None:
    folder = dump("pt_terms")
    paths = [folder / f"terms_{form}", folder / "terms_plain"]
    result = dumpdiff.align(*(reversed(paths) if is_mirrored else paths))
    first_cause = result.findings[0].causes[0]
    assert first_cause.name == cause
    if not is_mirrored:
        assert sentence in first_cause.text
    assert first_cause.residual < 1e-6


def test_an_index_cuts_a_window_of_one_place_and_leaves_its_axis_out() -> None:
    """Zeros of relu are not recognized by value."""
    source = np.maximum(np.random.default_rng(3).standard_normal((4, 6, 2)), 0)
    places = find_window(source, source[..., 1])
    assert places is not None
    assert np.array_equal(source.reshape(-1)[places].reshape(4, 6), source[..., 1])
    assert places[0] == 1
