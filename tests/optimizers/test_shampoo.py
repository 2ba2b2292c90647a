"""The arithmetic of Shampoo; its recordings are in test_packages.py."""

from __future__ import annotations

import numpy as np
import pytest

from dumpdiff.optimizers.history import build_history
from dumpdiff.optimizers.shampoo import Shampoo, precondition


@pytest.mark.parametrize("shape", [(5, 12), (40, 3)], ids=["wide", "long"])
def test_the_root_of_the_sum_of_products(shape: tuple[int, int]) -> None:
    """Of a long matrix only the eigenvectors that its columns reach are computed."""
    columns = np.random.default_rng(0).normal(size=shape)
    matrix = columns @ columns.T + 1e-3 * np.eye(shape[0])
    product = columns
    for _ in range(4):
        product = precondition(columns, product, 1e-3, 4)
    assert np.allclose(matrix @ product, columns)


def test_the_first_update_of_a_vector_has_the_length_one() -> None:
    gradient = np.array([3.0, 4.0, 0.0])
    history = build_history("bias", [np.zeros(3), np.zeros(3)], [gradient])
    terms = Shampoo().compute_terms(history, np.ones(1), {"epsilon": 1e-12})
    assert terms.direction[0] == pytest.approx([0.6, 0.8, 0.0])


def test_gradients_that_are_not_finite_have_no_update_from_there_on() -> None:
    gradients = [np.ones(3), np.full(3, np.inf), np.ones(3)]
    history = build_history("bias", [np.zeros(3)] * 4, gradients)
    terms = Shampoo().compute_terms(history, np.ones(3), {"epsilon": 1e-6})
    assert np.isfinite(terms.direction).all(axis=1).tolist() == [True, False, False]
