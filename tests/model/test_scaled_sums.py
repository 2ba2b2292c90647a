"""Sums of squares of any finite numbers, against arithmetic with 60 digits."""

import math

import numpy as np
import pytest
from exact_arithmetic import PRECISION, draw_arrays, sum_squares, to_numbers
from hypothesis import given

from dumpdiff.model.scaled_sums import (
    ScaledNumber,
    compute_norm,
    sum_products,
    sum_values,
)
from dumpdiff.model.scaled_sums import sum_squares as sum_scaled_squares

#: Of a sum of at most 12 squares: one rounding for each product and each addition.
BOUND = 14 * 2.0**-53


def to_number(scaled: ScaledNumber):
    return PRECISION.mpf(scaled.fraction) * PRECISION.mpf(2) ** scaled.exponent


@given(draw_arrays([np.float64]))
def test_a_sum_of_squares_has_the_error_of_its_additions(array):
    expected = sum_squares(to_numbers(array))
    error = abs(to_number(sum_scaled_squares(array)) - expected)
    assert error <= BOUND * expected


@given(draw_arrays([np.float64]), draw_arrays([np.float64]))
def test_sums_of_any_size_are_added_and_divided(a, b):
    exact_a, exact_b = sum_squares(to_numbers(a)), sum_squares(to_numbers(b))
    scaled_a, scaled_b = sum_scaled_squares(a), sum_scaled_squares(b)
    assert abs(to_number(scaled_a + scaled_b) - exact_a - exact_b) <= BOUND * (exact_a + exact_b)
    if exact_b > 0:
        quotient = to_number(scaled_a / scaled_b)
        assert abs(quotient * exact_b - exact_a) <= 3 * BOUND * exact_a


@given(draw_arrays([np.float64]))
def test_the_norm_is_the_nearest_number_or_infinite(array):
    expected = float(PRECISION.sqrt(sum_squares(to_numbers(array))))
    assert compute_norm(array) == pytest.approx(expected, rel=BOUND, abs=5e-324)


@given(draw_arrays([np.float64]))
def test_a_sum_errs_relative_to_its_largest_terms(array):
    numbers = to_numbers(array)
    error = abs(to_number(sum_values(array)) - PRECISION.fsum(numbers))
    assert error <= BOUND * PRECISION.fsum(map(abs, numbers))


def test_a_product_of_small_and_large_numbers():
    product = sum_products(np.full(4, 1e-300), np.full(4, 1e300))
    assert product.to_float() == pytest.approx(4.0, rel=BOUND)


def test_nan_and_infinity_stay():
    assert compute_norm(np.array([1e200, np.inf])) == math.inf
    assert math.isnan(compute_norm(np.array([1e200, np.nan])))
    assert compute_norm(np.zeros((2, 0))) == 0.0
