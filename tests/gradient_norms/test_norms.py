"""The norms of one run."""

from __future__ import annotations

import numpy as np

from dumpdiff.gradient_norms import Norms, read_norms
from gradient_norms.sides import MEGATRON


def test_values_and_their_rounding_are_roots_of_squares() -> None:
    norms: Norms = read_norms(MEGATRON)
    low = np.sqrt(norms.raw_values - norms.raw_rounding)
    high = np.sqrt(norms.raw_values + norms.raw_rounding)
    assert np.all(norms.values - norms.value_rounding <= low + 1e-15)
    assert np.all(high - 1e-15 <= norms.values + norms.value_rounding)
