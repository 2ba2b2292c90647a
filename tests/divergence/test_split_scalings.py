"""Values that one side scales here and the other side elsewhere, on recorded pairs."""

import pytest

import dumpdiff


@pytest.fixture(scope="module")
def align_forms(dump):
    folder = dump("pt_scalings")
    return lambda *forms: dumpdiff.align(*(folder / f"scalings_{form}" for form in forms))


@pytest.mark.parametrize(
    "forms",
    [
        ("split", "plain"),
        ("plain", "split"),
        ("negated", "plain"),
        ("plain", "negated"),
        ("negated", "split"),
        ("masks", "branches"),
        ("branches", "masks"),
    ],
)
def test_a_scale_that_is_split_or_has_another_sign_is_no_difference(align_forms, forms):
    result = align_forms(*forms)
    assert (result.verdict, result.findings) == ("aligned", ())


def test_the_scaled_values_are_not_counted_as_compared(align_forms):
    pairs = align_forms("split", "plain").pairs
    is_scaled = pairs["target_op"] == "Tensor.__mul__.0.forward"
    assert set(pairs.loc[is_scaled & (pairs["target_slot"] == "output.0"), "state"]) == {
        "reconverged"
    }


@pytest.mark.parametrize("forms", [("lacking", "plain"), ("plain", "lacking")])
def test_half_of_a_scale_is_a_difference(align_forms, forms):
    finding = align_forms(*forms).findings[0]
    assert "Tensor.__mul__.0.forward" in finding.title
    assert finding.causes[0].name in ("constant-factor", "residual-scale", "scale")


def test_keys_that_are_not_scaled_are_named_where_the_products_differ(align_forms):
    """The queries are those of the other side then."""
    finding = align_forms("lacking", "split").findings[0]
    assert "Tensor.__matmul__.0.forward" in finding.title
    assert "without Tensor.__mul__.1.forward" in finding.causes[0].text


@pytest.mark.parametrize("forms", [("branches_lacking", "masks"), ("masks", "branches_lacking")])
def test_scaled_masks_are_no_difference_where_what_they_multiply_differs(align_forms, forms):
    result = align_forms(*forms)
    assert "Tensor.__mul__.1.forward" in result.findings[0].title
    assert len(result.findings) == 1
