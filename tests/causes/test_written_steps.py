"""What one side fuses, and the other writes out with one fault, on recorded pairs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dumpdiff
from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.element_places import find_join, find_padding, take_places
from dumpdiff.causes.hypotheses import HYPOTHESES
from dumpdiff.operators.activations import is_shown

from .fault_cases import make_fault_case


@pytest.mark.parametrize("is_mirrored", [False, True])
@pytest.mark.parametrize(
    ("form", "cause", "sentence"),
    [
        ("pyramid_dilated", "dilation", "dilation 2"),
        ("pyramid_flipped", "kernel-flipped", "the kernel first.weight flipped"),
        ("pyramid_strided", "pooling", "the first element of windows of 2, stride 2"),
        ("pyramid_twice", "skip-source", "joined in an unrecorded concat"),
        ("pyramid_before", "layer-order", "silu applied later, in Functional.silu.0.forward"),
        ("shifted_before", "layer-order", "(add) applied to Functional.embedding.0.forward"),
        ("filled_zeros", "mask-fill", "hidden scores replaced by 0: they still count"),
        ("taps_axes", "reduction-axis", "over axes 0, 1"),
        ("filled_after", "mask-kind", "probabilities masked after the softmax"),
    ],
)
def test_the_fault_is_named(
    dump: Callable[[str], Path], form: str, cause: str, sentence: str, is_mirrored: bool
) -> None:
    folder = dump("pt_steps")
    paths = [folder / form, folder / f"{form.partition('_')[0]}_plain"]
    result = dumpdiff.align(*(reversed(paths) if is_mirrored else paths))
    first_cause = result.findings[0].causes[0]
    assert first_cause.name == cause
    if not is_mirrored:
        assert sentence in first_cause.text
    assert first_cause.residual < 1e-6


def test_a_piece_of_an_activation_is_no_evidence_of_it() -> None:
    """exp(x) against exp(2 x): the second is the square of the first, and both are positive."""
    x = np.random.default_rng(2).standard_normal((4, 16))
    faithful, faulty = np.exp(x), np.exp(2 * x)
    case = make_fault_case(faulty, faithful, {"a": faithful.reshape(-1, 8)})
    assert all(
        cause.name != "activation-kind" for cause in search_causes([case], HYPOTHESES).causes
    )


def test_an_activation_is_shown_by_numbers_on_both_sides_of_its_kink() -> None:
    assert is_shown("relu", np.array([-1.0, 2.0]))
    assert not is_shown("squared relu", np.array([1.0, 2.0]))
    assert not is_shown("hardtanh", np.array([-0.5, 0.5]))
    assert is_shown("silu", np.array([1.0, 2.0]))


def test_joined_tensors_of_repeated_numbers_are_found_in_any_order() -> None:
    first, second = np.zeros((2, 3, 4)), np.ones((2, 2, 4))
    output = np.concatenate([second, first], axis=1)
    places = find_join([first, second], output)
    assert places is not None
    first = np.full_like(first, 5.0)
    moved = take_places([first, second], places, output.shape)
    assert np.array_equal(moved, np.concatenate([second, first], axis=1))
    assert find_join([first, second], output) is None


def test_a_padded_tensor_of_repeated_numbers_is_understood() -> None:
    x = np.maximum(np.random.default_rng(4).standard_normal((2, 3, 5)), 0)
    output = np.pad(x, ((0, 0), (0, 0), (4, 0)))
    places = find_padding(x, output)
    assert places is not None
    assert np.array_equal(take_places([2 * x], places, output.shape), 2 * output)
    assert find_padding(x, output + 1) is None
