"""One run's norms, of whatever was given."""

from __future__ import annotations

import numpy as np

from dumpdiff.gradient_norms import Norms, read_norms
from gradient_norms.sides import MEGATRON


def test_values_take_the_root_of_squares_and_digits_with_them() -> None:
    norms: Norms = read_norms(MEGATRON)
    low, high = np.sqrt(norms.raw_values - norms.raw_rounding), np.sqrt(norms.raw_values + norms.raw_rounding)
    assert np.all(norms.values - norms.value_rounding <= low + 1e-15)
    assert np.all(high - 1e-15 <= norms.values + norms.value_rounding)
