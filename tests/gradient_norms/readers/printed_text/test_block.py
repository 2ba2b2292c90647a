"""The digits of printed numbers."""

from __future__ import annotations

import pytest

from dumpdiff.gradient_norms import read_norms
from gradient_norms.sides import MEGATRON


def test_the_rounding_of_each_norm_follows_from_its_digits() -> None:
    norms = read_norms(MEGATRON)
    assert norms.raw_rounding[0] == pytest.approx(5e-5)  # tensor(0.7230)
    assert norms.raw_rounding[10] == pytest.approx(5e-11)  # tensor(2.4887e-06)
