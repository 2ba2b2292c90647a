"""`aligned` means compared: a value that differs on one side only is in the answer."""

import numpy as np
import pytest
from traces import find_tensor, locate_divergence, scale_result, scale_tensors

from dumpdiff.model.formatting import format_percent
from dumpdiff.reports.alignment.summary import format_headline

#: Operators of one layer: a product, a norm, an activation, a sum, a division that the other side
#: writes as a product.
RESULTS = (
    "Functional.linear.11.forward",
    "Functional.silu.1.forward",
    "Functional.softmax.1.forward",
    "Tensor.__add__.5.forward",
    "Tensor.__truediv__.1.forward",
)
INPUTS = (
    ("Functional.linear.13.forward", "input.0"),
    ("Functional.softmax.1.forward", "input.0"),
    ("Tensor.__mul__.1.forward", "input.1"),
)


@pytest.fixture
def sides(trace):
    return trace("ms_mf_none"), trace("pt_none")


def test_the_undamaged_pair_is_aligned(sides):
    result = locate_divergence(*sides)
    assert (result.verdict, result.findings) == ("aligned", ())
    assert result.count_differing_values() == {}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("factor", [1.05, 1.3])
def test_a_result_that_is_off_in_every_record_is_not_aligned(sides, name, factor):
    target, reference = sides
    result = locate_divergence(target, scale_result(reference, name, factor))
    assert result.verdict != "aligned"
    assert name in format_headline(result)


@pytest.mark.parametrize("factor", [2.0, np.nan], ids=["doubled", "NaN"])
@pytest.mark.parametrize(("name", "slot"), INPUTS)
def test_a_wrong_record_of_an_input_is_in_the_answer(sides, name, slot, factor):
    """What the op computed from it agrees: nothing else shows that the record is wrong."""
    target, reference = sides
    damaged = scale_tensors(reference, [find_tensor(reference, name, slot)], factor)
    result = locate_divergence(target, damaged)
    rows = result.pairs[
        (result.pairs["reference_op"] == name) & (result.pairs["state"] != "agreeing")
    ]
    listed = result.uncompared[
        (result.uncompared["op"] == name) & (result.uncompared["slot"] == slot)
    ]
    assert len(rows) or len(listed)


def test_the_headline_names_the_smaller_share_of_both_sides(sides):
    result = locate_divergence(*sides)
    headline = format_headline(result)
    for side in ("target", "reference"):
        share = result.coverage[side]["forward"]["value_share"]
        assert f"{format_percent(share)} ({side})" in headline
