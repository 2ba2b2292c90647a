"""A value that is split into parts of different widths: read in another order."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dumpdiff.causes.region import Region, Step, StepInput
from dumpdiff.model.arrays import AnyArray

from .fault_cases import explain_fault_case, make_fault_case
from .test_composites import explain_region

RNG = np.random.default_rng(5)
#: Two heads, each with six columns of one part and four of another.
N_TOKENS, N_HEADS, WIDTHS = 3, 2, (6, 4)
WHOLE = RNG.standard_normal((N_TOKENS, N_HEADS * sum(WIDTHS)))
PLACES = np.arange(WHOLE.size).reshape(N_TOKENS, N_HEADS, -1)


def make_slice_region(start: int, end: int) -> Region:
    """Return the region of one step that reads some columns of each head."""
    places = PLACES[..., start:end]
    output = WHOLE.reshape(-1)[places]
    whole = StepInput(100, WHOLE, "projection", False, agrees=True, producer_kind="matmul")
    step = Step("slice_0", "slice", (whole,), {}, 0, output, places=places.reshape(-1))
    return Region((step,), None, output.shape)


def read_columns(start: int, end: int) -> AnyArray:
    return WHOLE.reshape(-1)[PLACES[..., start:end]]


def test_parts_of_different_widths_in_the_other_order() -> None:
    rest_first = make_slice_region(0, 6)
    assert explain_region(rest_first, read_columns(4, 10)) == (
        "split-order",
        "the parts of projection (6, 4 columns) in the order [1, 0]; "
        "the reference has the order [0, 1]",
    )
    assert explain_region(make_slice_region(6, 10), read_columns(0, 4))[0] == "split-order"


@pytest.mark.parametrize("shift", [1, 4])
def test_most_columns_are_a_slice_that_begins_elsewhere(shift: int) -> None:
    """As a mask that is one token behind the labels, or frames that overlap."""
    whole = StepInput(100, WHOLE, "mask", is_parameter=False, agrees=True)
    places = np.arange(WHOLE.size).reshape(WHOLE.shape)
    output, width = WHOLE[:, shift:], WHOLE.shape[1] - shift
    step = Step("slice_0", "slice", (whole,), {}, 0, output, places=places[:, shift:].reshape(-1))
    assert explain_region(Region((step,), None, output.shape), WHOLE[:, :-shift]) == (
        "row-shift",
        f"the first {width} columns of mask; the reference reads the last {width} columns of mask",
    )


def test_columns_that_are_no_part_are_no_other_order() -> None:
    assert explain_region(make_slice_region(0, 6), read_columns(1, 7))[0] != "split-order"


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_joined_weights_that_are_cut_head_by_head(name: str) -> None:
    """Rows of a fused weight: queries, keys and values of one head after the other, or of all."""
    weights = {f"{kind}.weight": RNG.standard_normal((16, 5)) for kind in "qkv"}
    by_head = np.split(np.concatenate([*weights.values()]), 3 * 2)
    number = "qkv".index(name)
    faulty = np.concatenate(by_head[number::3])
    case = make_fault_case(
        faulty, weights[f"{name}.weight"], {}, kind="parameter", parameters=weights
    )
    cause = explain_fault_case(case)[0]
    assert cause.name == "split-order"
    assert cause.residual < 1e-6
    assert re.search(r"\d+ of 16 rows are those of [qkv]\.weight", cause.text)
