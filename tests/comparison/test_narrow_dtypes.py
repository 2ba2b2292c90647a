"""Rounding to the narrow types is what PyTorch does, bit for bit."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dumpdiff.comparison.narrow_dtypes import round_to_dtype
from dumpdiff.model.dtypes import UNIT_ROUNDOFF

ANY_FLOAT32 = hnp.arrays(np.uint32, st.integers(1, 64)).map(lambda bits: bits.view(np.float32))
TORCH = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.mark.parametrize("dtype", TORCH)
@given(array=ANY_FLOAT32)
def test_every_bit_pattern_is_rounded_as_pytorch_rounds_it(dtype, array):
    expected = torch.from_numpy(array.copy()).to(TORCH[dtype]).float().numpy()
    np.testing.assert_array_equal(round_to_dtype(array, dtype), expected)


@pytest.mark.parametrize("dtype", TORCH)
@given(array=ANY_FLOAT32)
def test_rounding_twice_changes_nothing(dtype, array):
    once = round_to_dtype(array, dtype)
    np.testing.assert_array_equal(round_to_dtype(once, dtype), once)


@pytest.mark.parametrize("dtype", TORCH)
@given(
    array=hnp.arrays(
        np.float32, 16, elements=st.floats(-1e4, 1e4, width=32).filter(lambda x: abs(x) > 1e-3)
    )
)
def test_the_error_is_at_most_the_unit_roundoff(dtype, array):
    error = np.abs(round_to_dtype(array, dtype) - array) / np.abs(array)
    assert error.max() <= UNIT_ROUNDOFF[dtype]


def test_halfway_goes_to_even():
    first, second = np.float32(1), np.float32(1 + 2**-7)
    halfway = np.array([1 + 2**-8, 1 + 3 * 2**-8], dtype=np.float32)
    assert round_to_dtype(halfway, "bfloat16").tolist() == [first, second + np.float32(2**-7)]


@pytest.mark.parametrize("dtype", ["float32", "int64", ""])
def test_other_types_are_left_alone(dtype):
    array = np.array([1.2345678])
    assert round_to_dtype(array, dtype) is array


def test_a_float64_tensor_that_is_not_contiguous_is_rounded():
    array = np.arange(12, dtype=np.float64).reshape(3, 4).T / 7
    np.testing.assert_array_equal(
        round_to_dtype(array, "bfloat16"), round_to_dtype(array.astype(np.float32), "bfloat16")
    )
