"""Ops that put the numbers of a value in another order before a difference."""

from dataclasses import replace

import numpy as np
import pytest
from traces import (
    find_dependents,
    find_tensor,
    locate_divergence,
    scale_arrays,
    scale_tensors,
)

TRANSPOSE, PRODUCT = "Tensor.transpose.2.forward", "Torch.matmul.1.forward"


@pytest.fixture(scope="module")
def clean_trace(trace):
    """Whole tensors of a real run."""
    return trace("v6.0_api_stack")


@pytest.fixture(scope="module")
def wrong_trace(clean_trace):
    """The product, and all that is computed from it, is another one."""
    rows = find_dependents(clean_trace, PRODUCT)
    return scale_arrays(scale_tensors(clean_trace, rows, 1.3), rows, 1.3)


@pytest.fixture(scope="module")
def rolled_trace(clean_trace, wrong_trace):
    """The values of an attention are rolled by one token: another result, with the same numbers."""
    rows = [
        find_tensor(clean_trace, TRANSPOSE, "output.0"),
        find_tensor(clean_trace, PRODUCT, "input.1"),
    ]
    rolled_files = set(clean_trace.tensors["file"].iloc[rows])

    def load(file):
        array = wrong_trace.load(file)
        return np.roll(array, 1, axis=2) if file in rolled_files else array

    return replace(wrong_trace, load=load)


class TestRearrangedInput:
    def test_the_op_that_rearranges_is_part_of_the_finding(self, rolled_trace, clean_trace):
        finding = locate_divergence(rolled_trace, clean_trace).findings[0]
        assert finding.target_ops == (TRANSPOSE, PRODUCT)
        assert finding.reference_ops == (PRODUCT,)
        assert f"an input is in another order from {TRANSPOSE} on" in finding.title

    def test_the_same_in_the_other_direction(self, rolled_trace, clean_trace):
        finding = locate_divergence(clean_trace, rolled_trace).findings[0]
        assert finding.target_ops == (PRODUCT,)
        assert finding.reference_ops == (TRANSPOSE, PRODUCT)

    def test_inputs_in_one_order_name_no_op(self, wrong_trace, clean_trace):
        finding = locate_divergence(wrong_trace, clean_trace).findings[0]
        assert finding.target_ops == finding.reference_ops == (PRODUCT,)
        assert "another order" not in finding.title

    def test_statistics_do_not_show_an_order(self, rolled_trace, clean_trace):
        sides = [
            replace(side, tensors=side.tensors.assign(file=""))
            for side in (rolled_trace, clean_trace)
        ]
        (finding, *_) = locate_divergence(*sides).findings
        assert "another order" not in finding.title
