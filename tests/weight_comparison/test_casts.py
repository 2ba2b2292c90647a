"""Roundings equal those of torch, and the rounding that was used is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dumpdiff.checkpoints.elements import decode
from dumpdiff.weight_comparison import casts
from dumpdiff.weight_comparison.distance import measure_distance
from dumpdiff.weight_comparison.matrix import Matrix

torch = pytest.importorskip("torch")

FLOATS = arrays(np.float32, 64, elements=st.floats(-1e4, 1e4, width=32))


@given(FLOATS)
def test_rounding_to_nearest_equals_torch(values: np.ndarray) -> None:
    for dtype in ("bfloat16", "float16"):
        expected = torch.from_numpy(values).to(getattr(torch, dtype)).float().numpy()
        np.testing.assert_array_equal(casts.round_values(values, dtype, casts.NEAREST), expected)


@given(FLOATS)
def test_every_rounding_to_bfloat16_leaves_sixteen_bits(values: np.ndarray) -> None:
    for dtype, rounding, _ in casts.list_candidate_casts("bfloat16", "float32"):
        rounded = casts.round_values(values, dtype, rounding)
        assert not np.any(rounded.astype(np.float32).view(np.uint32) & 0xFFFF)
        assert np.all(np.abs(rounded - values) <= np.maximum(np.abs(values) * 2.0**-7, 1e-7))


@pytest.mark.parametrize(
    "rounding", [rounding for _, rounding, _ in casts.list_candidate_casts("bfloat16", "float32")]
)
def test_the_rounding_that_was_used_is_found(rounding: str) -> None:
    values = np.random.default_rng(1).normal(size=(64, 32)).astype(np.float32)
    # Exact halves: nearest even and away from zero give different results.
    values[:8] = (np.arange(256, dtype=np.uint32).reshape(8, 32) << 16 | 0x3F808000).view(
        np.float32
    )
    rounded = casts.round_values(values, "bfloat16", rounding).astype(np.float32)
    bits = (rounded.view(np.uint32) >> 16).astype(np.uint16)
    distance = measure_distance(
        Matrix.from_array(bits, "bfloat16"), Matrix.from_array(values, "float32")
    )
    assert distance.rounding == ("bfloat16", rounding, True)
    assert distance.classify() == "rounded"


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_decoding_equals_torch(dtype: str) -> None:
    width = 1 if "8_" in dtype else 2
    bits = np.arange(1 << 8 * width, dtype=f"u{width}")
    expected = torch.from_numpy(bits.view(f"i{width}")).view(getattr(torch, dtype)).float().numpy()
    np.testing.assert_array_equal(decode(bits, dtype), expected)


@given(arrays(np.float32, (8, 20), elements=st.floats(-10, 10, width=32)), st.integers(0, 7))
def test_one_wrong_row_is_found(values: np.ndarray, row: int) -> None:
    other = values.copy()
    other[row] += 100
    distance = measure_distance(
        Matrix.from_array(other, "float32"), Matrix.from_array(values, "float32")
    )
    assert distance.wrong_rows.tolist() == [row]
    assert distance.unequal.tolist() == [20 if i == row else 0 for i in range(8)]
    assert distance.identical_rows.tolist() == [i != row for i in range(8)]
