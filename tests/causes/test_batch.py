"""Inputs of which a part are other numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.hypotheses.batch import HYPOTHESES
from dumpdiff.causes.region import Region, Step, StepInput

from .fault_cases import make_fault_case

RNG = np.random.default_rng(5)
IMAGES = RNG.standard_normal((3, 1, 4, 8))
IMAGES[0, ..., 5:] = IMAGES[2, ..., 3:] = 0


def explain_input(faulty: np.ndarray, faithful: np.ndarray, side: str = "target"):
    case = make_fault_case(faulty, faithful, {}, kind="input", scope="stem")
    return search_causes([replace(case, faulty_side=side)], HYPOTHESES).causes


def test_padding_that_repeats_the_last_column():
    repeated = IMAGES.copy()
    repeated[0, ..., 5:], repeated[2, ..., 3:] = IMAGES[0, ..., 4:5], IMAGES[2, ..., 2:3]
    text = "32 of 96 numbers of the input are the number before along axis 3"
    for faulty, faithful, start in (
        (repeated, IMAGES, f"{text}; the reference has 0 there"),
        (IMAGES, repeated, "32 of 96 numbers of the input are 0; the reference has the number"),
    ):
        (cause,) = explain_input(faulty, faithful)
        assert cause.name == "padding-mode"
        assert cause.text.startswith(f"stem behaves as {start}")


def test_other_columns_are_named():
    boxes = RNG.uniform(0, 1, (7, 4))
    corners = boxes.copy()
    corners[:, :2] -= boxes[:, 2:] / 2
    (cause,) = explain_input(corners, boxes)
    assert cause.name == "batch"
    assert "another batch: 14 of 28 numbers differ, all at 0 to 1 of 4 along axis 1" in cause.text


def test_rows_may_be_in_another_order_too():
    boxes = RNG.uniform(0, 1, (7, 4))
    corners = np.roll(boxes, 3, axis=0)
    corners[:, :2] -= 0.125
    (cause,) = explain_input(corners, boxes)
    assert "14 of 28 numbers are not among the reference's" in cause.text


def test_a_part_that_one_side_takes_of_its_inputs_is_of_the_batch_too():
    """One run cuts the first columns from what it is given, the other one is given them alone."""
    faithful = RNG.uniform(0, 1, (7, 4))
    faulty = faithful.copy()
    faulty[2, 1] = faulty[5, 3] = 0
    whole = np.concatenate([faulty, np.ones((7, 3))], axis=1)
    for is_given, expected in ((True, "batch"), (False, "")):
        item = StepInput(1, whole, "x", is_parameter=False, agrees=False, is_given=is_given)
        region = Region((Step("slice_0", "slice", (item,), {}, 2, faulty),), None, faulty.shape)
        case = replace(make_fault_case(faulty, faithful, {}), load_faulty_region=lambda r=region: r)
        causes = search_causes([case], HYPOTHESES).causes
        assert "".join(cause.name for cause in causes) == expected


def test_inputs_of_which_nothing_is_equal_are_not_said_to_be_another_batch():
    assert explain_input(RNG.standard_normal((5, 4)), RNG.standard_normal((5, 4))) == ()


def test_columns_may_be_normalized_otherwise():
    faithful = np.random.default_rng(5).standard_normal((12, 3))
    faulty = faithful * [2.0, 0.5, 3.0] + [0.5, 1.0, -1.0]
    cause = explain_input(faulty, faithful)[0]
    assert cause.name == "batch"
    assert "times [2, 0.5, 3], plus [0.5, 1, -1]" in cause.text


def test_one_number_that_equals_its_neighbour_is_no_padding():
    faithful = np.random.default_rng(5).standard_normal((4, 3))
    faulty = faithful.copy()
    faulty[2, 1] = faulty[1, 1]
    cause = explain_input(faulty, faithful)[0]
    assert cause.name == "batch"
