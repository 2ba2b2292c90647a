"""Values that one side scales here and the other side elsewhere, on recorded pairs."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dumpdiff
from dumpdiff.divergence.split_scalings import find_scaled_gradients
from dumpdiff.graph import Gradients
from dumpdiff.model.trace import BACKWARD


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
        ("early", "late"),
        ("late", "early"),
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


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(0.5, {0}), (2.0, set()), (1.0, set()), (-0.5, set())],
    ids=["inverse", "not inverse", "equal", "other sign"],
)
def test_gradients_of_multiples_are_scaled_inversely(factor, expected):
    """The target's value is twice the reference's; its gradient has the given factor."""
    rng = np.random.default_rng(3)
    value, gradient = rng.standard_normal((2, 12))
    target, reference = (
        build_side(2 * value, factor * gradient),
        build_side(value, gradient),
    )
    alignment = SimpleNamespace(
        gradients=(Gradients({1: 0}, {}), Gradients({}, {(2, 1, False): 0}))
    )
    graph: Any = SimpleNamespace(
        comparison=SimpleNamespace(
            pairs=pd.DataFrame({"error": [1.0], "tolerance": [1e-6]}), alignment=alignment
        ),
        phase=np.array([BACKWARD], dtype=object),
        sides=(target, reference),
        target_classes=np.array([0]),
        reference_classes=np.array([0]),
    )
    assert find_scaled_gradients(graph) == expected


def build_side(value, gradient):
    """Return a side with the classes gradient and value, of which the pair is the gradient."""
    columns = {
        "size": [gradient.size, value.size],
        "max": [gradient.max(), value.max()],
        "min": [gradient.min(), value.min()],
        "norm": [np.linalg.norm(gradient), np.linalg.norm(value)],
    }
    return SimpleNamespace(
        flow=SimpleNamespace(classes=pd.DataFrame(columns)), classes=np.array([0])
    )
