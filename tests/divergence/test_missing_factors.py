"""Ops that may lack a factor which only the other side applies as an op of its own."""

import pytest
from traces import find_dependents, locate_divergence, rename_kind, scale_tensors, skip_op

PRODUCT, SCALED, MASKED = (
    "Torch.matmul.2.forward",
    "Tensor.__truediv__.1.forward",
    "Tensor.__add__.3.forward",
)


def make_sides(trace, kind):
    """Return (without the factor, with it); ``kind`` is that of the op before the factor."""
    clean_trace = rename_kind(trace("pt_none"), PRODUCT, kind)
    scaled_trace = scale_tensors(clean_trace, find_dependents(clean_trace, SCALED), 1.3)
    return skip_op(scaled_trace, SCALED), clean_trace


@pytest.fixture(scope="module")
def sides(trace):
    """Scores that are added up, as the product of queries and keys is; one side scales them."""
    return make_sides(trace, "Tensor.sum")


def test_the_op_that_may_lack_a_factor_is_named(sides):
    finding = locate_divergence(*sides).findings[0]
    assert finding.target_ops == (PRODUCT, MASKED)
    assert finding.reference_ops == (SCALED, MASKED)
    sentence = f"a factor may be missing in {PRODUCT}: both sides agree before only one of them"
    assert f"{sentence} applies it" in finding.evidence


def test_either_side_may_lack_it(sides):
    finding = locate_divergence(*sides[::-1]).findings[0]
    assert finding.target_ops == (SCALED, MASKED)
    assert finding.reference_ops == (PRODUCT, MASKED)


def test_it_is_no_op_that_only_one_side_has(sides):
    """It lies before the last agreement: only the op after it is missing."""
    finding = locate_divergence(*sides).findings[0]
    assert finding.kind == "missing"
    assert finding.title.endswith("only the reference has div")


def test_a_matrix_product_contains_no_factor(trace):
    finding = locate_divergence(*make_sides(trace, "Torch.matmul")).findings[0]
    assert (finding.target_ops, finding.reference_ops) == ((MASKED,), (SCALED, MASKED))
    assert not any("a factor may be missing" in fact for fact in finding.evidence)
