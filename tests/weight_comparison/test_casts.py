"""Roundings: each is what torch or the bits say, and the one that was used is the one that is found."""

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
def test_nearest_is_torchs(values: np.ndarray) -> None:
    for dtype in ("bfloat16", "float16"):
        expected = torch.from_numpy(values).to(getattr(torch, dtype)).float().numpy()
        np.testing.assert_array_equal(casts.round_values(values, dtype, casts.NEAREST), expected)


@given(FLOATS)
def test_every_rounding_to_bfloat16_leaves_sixteen_bits(values: np.ndarray) -> None:
    for dtype, way, _ in casts.list_candidate_casts("bfloat16", "float32"):
        made = casts.round_values(values, dtype, way)
        assert not np.any(made.astype(np.float32).view(np.uint32) & 0xFFFF)
        assert np.all(np.abs(made - values) <= np.maximum(np.abs(values) * 2.0**-7, 1e-7))


@pytest.mark.parametrize("way", [way for _, way, _ in casts.list_candidate_casts("bfloat16", "float32")])
def test_the_rounding_that_was_used_is_found(way: str) -> None:
    values = np.random.default_rng(1).normal(size=(64, 32)).astype(np.float32)
    # halves exactly: where nearest even and away from zero part
    values[:8] = (np.arange(256, dtype=np.uint32).reshape(8, 32) << 16 | 0x3F808000).view(
        np.float32
    )
    made = casts.round_values(values, "bfloat16", way).astype(np.float32)
    bits = (made.view(np.uint32) >> 16).astype(np.uint16)
    found = measure_distance(Matrix.from_array(bits, "bfloat16"), Matrix.from_array(values, "float32"))
    assert found.rounding == ("bfloat16", way, True)
    assert found.classify() == "rounded"


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_decoding_is_torchs(dtype: str) -> None:
    width = 1 if "8_" in dtype else 2
    bits = np.arange(1 << 8 * width, dtype=f"u{width}")
    expected = torch.from_numpy(bits.view(f"i{width}")).view(getattr(torch, dtype)).float().numpy()
    np.testing.assert_array_equal(decode(bits, dtype), expected)


@given(arrays(np.float32, (8, 20), elements=st.floats(-10, 10, width=32)), st.integers(0, 7))
def test_one_wrong_row_is_the_one(values: np.ndarray, row: int) -> None:
    other = values.copy()
    other[row] += 100
    found = measure_distance(Matrix.from_array(other, "float32"), Matrix.from_array(values, "float32"))
    assert found.wrong_rows.tolist() == [row]
    assert found.unequal.tolist() == [20 if i == row else 0 for i in range(8)]
    assert found.identical_rows.tolist() == [i != row for i in range(8)]
