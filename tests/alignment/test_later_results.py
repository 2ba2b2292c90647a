"""What one side computes in several steps is the other side's value at the last of them."""

import numpy as np
import pytest
from traces import find_value, record_calls, start_matching

from dumpdiff.alignment.later_results import pair_later_results
from dumpdiff.alignment.structure import pair_by_structure

X = np.random.default_rng(4).standard_normal((6, 5))
TOTAL = np.array(np.square(X).sum())


def record_divergence(*factors):
    """A sum of squares that is multiplied by one number after the other."""
    calls = [("square", [X], np.square(X)), ("sum", [np.square(X)], TOTAL)]
    value = TOTAL
    for factor in factors:
        calls.append(("mul", [value], value * factor))
        value = value * factor
    return record_calls(*calls)


def match(target, reference):
    matching = start_matching(target, reference)
    for name in ("input.0", "output.0"):
        matching.pair(
            *(find_value(flow, "call.0", name) for flow in (matching.target, matching.reference)),
            "value",
            0.98,
        )
    pair_by_structure(matching)
    return matching


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_two_factors_are_their_product(is_mirrored):
    traces = record_divergence(9.0, 0.4), record_divergence(3.6)
    matching = match(*(traces[::-1] if is_mirrored else traces))
    stepwise, at_once = "call.3", "call.2"
    names = (at_once, stepwise) if is_mirrored else (stepwise, at_once)
    assert pair_later_results(matching)
    t, r = (
        find_value(flow, name, "output.0")
        for flow, name in zip((matching.target, matching.reference), names, strict=True)
    )
    assert matching.classes_t[t] == r
    first = find_value((matching.target, matching.reference)[is_mirrored], "call.2", "output.0")
    assert (matching.classes_t, matching.classes_r)[is_mirrored][first] == -1


def test_a_minus_that_a_recorder_leaves_out_is_no_step():
    """All values behind it have the other sign; the last one is no exception."""
    matching = match(record_divergence(-3.6, -1.0), record_divergence(3.6))
    assert not pair_later_results(matching)


def test_a_wrong_factor_keeps_its_partner():
    """Nothing behind it agrees."""
    matching = match(record_divergence(9.0, 0.5), record_divergence(3.6))
    partners = matching.classes_t.copy()
    assert not pair_later_results(matching)
    assert (matching.classes_t == partners).all()


def test_what_a_mask_leaves_is_no_later_result():
    """Each step follows from single numbers only: what a mask hides may be why it agrees."""
    mask = np.eye(6, 5)
    traces = (
        record_calls(("square", [X], np.square(X)), ("mul", [np.square(X)], 2 * np.square(X)),
                     ("mul", [2 * np.square(X), mask], 2 * np.square(X) * mask)),
        record_calls(("square", [X], np.square(X)),
                     ("mul", [np.square(X)], 2 * np.square(X) * mask)),
    )  # fmt: skip
    assert not pair_later_results(match(*traces))
