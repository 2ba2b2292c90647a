"""Parts of two batches that differ are partners if both are read beside one value."""

from __future__ import annotations

import numpy as np
from traces import find_value, record_calls, start_matching

from dumpdiff.alignment.given_values import pair_given_values

RNG = np.random.default_rng(8)
X, PREDICTED, BOXES, OTHER_BOXES = RNG.standard_normal((4, 7, 4))


def record_loss(kind: str, boxes: np.ndarray, *others: np.ndarray):
    """Record a prediction and its distance from the boxes of a batch, which were there before."""
    return record_calls(
        ("max", [boxes, *others], boxes.max(axis=0)),
        ("exp", [X], PREDICTED),
        (kind, [PREDICTED, boxes, *others], np.abs(PREDICTED - boxes)),
    )


def pair_boxes(target, reference) -> bool:
    """Return whether the boxes are paired after the predictions are."""
    matching = start_matching(target, reference)
    traces = (matching.target, matching.reference)
    predictions, boxes = (
        [find_value(flow, name, slot) for flow in traces]
        for name, slot in (("call.1", "output.0"), ("call.2", "input.1"))
    )
    assert not pair_given_values(matching)
    matching.pair(*predictions, "value", 0.9)
    progress = pair_given_values(matching)
    assert progress == (matching.classes_t[boxes[0]] == boxes[1])
    return progress


def test_the_ops_that_read_them_may_be_of_other_kinds():
    assert pair_boxes(record_loss("sub", BOXES), record_loss("l1_loss", OTHER_BOXES))


def test_of_two_given_values_beside_it_none_is_the_partner():
    target = record_loss("sub", BOXES, RNG.standard_normal((7, 4)))
    assert not pair_boxes(target, record_loss("l1_loss", OTHER_BOXES))


def test_values_of_other_shapes_are_no_partners():
    other_shape = OTHER_BOXES.reshape(4, 7)
    reference = record_calls(
        ("max", [other_shape], other_shape.max(axis=0)),
        ("exp", [X], PREDICTED),
        ("l1_loss", [PREDICTED, other_shape], np.abs(PREDICTED)),
    )
    assert not pair_boxes(record_loss("sub", BOXES), reference)
