"""Metrics of two whole tensors, compared with exact sums, with NumPy and with invariants."""

import numpy as np
import pytest
from exact_arithmetic import (
    COMPLEX,
    INTEGERS,
    PRECISION,
    draw_pairs,
    get_unit_roundoff,
    sum_squares,
    to_numbers,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dumpdiff.comparison.metrics import compute_metrics

NUMBERS = st.floats(-1e3, 1e3, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3)
ARRAYS = hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=6), elements=NUMBERS)
PAIRS = ARRAYS.flatmap(
    lambda a: st.tuples(st.just(a), hnp.arrays(np.float32, a.shape, elements=NUMBERS))
)


def compute_norm(array):
    return float(np.linalg.norm(np.asarray(array, dtype=np.float64).ravel()))


class TestTwoFiniteTensors:
    @given(PAIRS)
    def test_relative_l2_is_the_norm_of_the_difference_over_that_of_the_reference(self, pair):
        t, r = pair
        assume(compute_norm(r) > 0)
        wide = t.astype(np.float64) - r
        assert compute_metrics(t, r, 0).relative_l2 == pytest.approx(
            compute_norm(wide) / compute_norm(r), rel=1e-5
        )

    @given(PAIRS)
    def test_cosine_is_the_cosine_of_the_angle(self, pair):
        t, r = pair
        assume(compute_norm(t) > 0 and compute_norm(r) > 0)
        expected = (
            float(np.dot(t.ravel().astype(np.float64), r.ravel().astype(np.float64)))
            / compute_norm(t)
            / compute_norm(r)
        )
        assert compute_metrics(t, r, 0).cosine == pytest.approx(expected, abs=1e-5)

    @given(PAIRS)
    def test_max_absolute_is_the_largest_difference(self, pair):
        t, r = pair
        assert compute_metrics(t, r, 0).max_absolute == np.abs(t - r).max()

    @given(PAIRS)
    def test_mismatches_are_the_elements_that_differ(self, pair):
        t, r = pair
        assert compute_metrics(t, r, 0).mismatches == np.count_nonzero(t != r)

    @given(PAIRS, st.floats(0, 10))
    def test_beyond_is_the_share_of_elements_further_apart_than_allowed(self, pair, tolerance):
        t, r = pair
        rms = compute_norm(r) / np.sqrt(r.size)
        allowed = tolerance * np.maximum(np.abs(r), rms)
        assume(not np.any(np.isclose(np.abs(t - r), allowed, rtol=1e-4) & (t != r)))
        assert compute_metrics(t, r, tolerance).beyond == pytest.approx(
            np.mean(np.abs(t - r) > allowed)
        )

    @given(PAIRS, st.sampled_from([0.25, 4.0, 2.0**-10]))
    def test_relative_numbers_do_not_depend_on_the_unit(self, pair, factor):
        t, r = pair
        first, second = (
            compute_metrics(t, r, 0.1),
            compute_metrics(t * np.float32(factor), r * np.float32(factor), 0.1),
        )
        assert first.relative_l2 == pytest.approx(second.relative_l2, rel=1e-5)
        assert first.cosine == pytest.approx(second.cosine, rel=1e-5, nan_ok=True)
        assert first.max_relative == pytest.approx(second.max_relative, rel=1e-5)
        assert first.mismatches == second.mismatches

    @given(PAIRS, st.randoms())
    def test_the_order_of_the_elements_does_not_matter(self, pair, random):
        t, r = (array.ravel() for array in pair)
        order = list(range(t.size))
        random.shuffle(order)
        first, second = compute_metrics(t, r, 0.1), compute_metrics(t[order], r[order], 0.1)
        assert first.relative_l2 == pytest.approx(second.relative_l2, rel=1e-5)
        assert (first.max_absolute, first.mismatches) == (second.max_absolute, second.mismatches)

    @given(ARRAYS)
    def test_a_tensor_agrees_with_itself_in_any_shape(self, array):
        metrics = compute_metrics(array, array.reshape(-1), 0)
        assert (metrics.relative_l2, metrics.max_absolute, metrics.beyond, metrics.mismatches) == (
            0,
            0,
            0,
            0,
        )

    @given(ARRAYS, st.floats(1.001, 2))
    def test_a_factor_shows_in_relative_l2_and_not_in_the_cosine(self, array, factor):
        assume(compute_norm(array) > 0)
        metrics = compute_metrics(array.astype(np.float64) * factor, array.astype(np.float64), 0)
        assert metrics.relative_l2 == pytest.approx(factor - 1, rel=1e-6)
        assert metrics.cosine == pytest.approx(1)


def test_several_blocks_are_as_exact_as_one():
    rng = np.random.default_rng(0)
    r = rng.standard_normal(200_000).astype(np.float32)
    t = r + rng.standard_normal(r.size).astype(np.float32) * np.float32(1e-4)
    metrics = compute_metrics(t, r, 3e-4)
    gap = t.astype(np.float64) - r
    rms = compute_norm(r) / np.sqrt(r.size)
    assert metrics.relative_l2 == pytest.approx(compute_norm(gap) / compute_norm(r), rel=1e-6)
    assert metrics.beyond == pytest.approx(
        np.mean(np.abs(gap) > 3e-4 * np.maximum(np.abs(r), rms)), abs=1e-4
    )
    assert metrics.mismatches == np.count_nonzero(gap)


def test_element_counts_must_agree():
    with pytest.raises(ValueError, match="6 elements against 4"):
        compute_metrics(np.ones(6), np.ones((2, 2)), 0)


def test_two_empty_tensors_agree():
    assert compute_metrics(np.ones(0), np.ones((0, 3)), 0).relative_l2 == 0


class TestZeros:
    def test_only_the_reference_is_zero(self):
        metrics = compute_metrics(np.ones(4, np.float32), np.zeros(4, np.float32), 0)
        assert metrics.relative_l2 == np.inf
        assert np.isnan(metrics.cosine)

    def test_two_zero_tensors_have_no_error_and_no_cosine(self):
        metrics = compute_metrics(np.zeros(4, np.float32), np.zeros(4, np.float32), 0)
        assert metrics.relative_l2 == 0
        assert np.isnan(metrics.cosine)


class TestScale:
    """Gradients underflow and spikes overflow: both are what people look for."""

    @pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e19, 1e30])
    def test_float32_of_any_magnitude(self, scale):
        r = (np.linspace(0.5, 1, 64) * scale).astype(np.float32)
        metrics = compute_metrics(r * np.float32(1.5), r, 1e-3)
        assert metrics.relative_l2 == pytest.approx(0.5, rel=1e-3)
        assert metrics.beyond == 1

    def test_float16_near_its_largest(self):
        r = np.array([6e4, -6e4, 3e4, 1.0], dtype=np.float16)
        t = np.array([6e4, -6e4, 2e4, 1.0], dtype=np.float16)
        metrics = compute_metrics(t, r, 1e-3)
        assert metrics.mismatches == 1
        assert metrics.max_absolute == 1e4


class TestOtherTypes:
    def test_integers_are_compared_exactly(self):
        ids = np.array([2**53, 7, 8], dtype=np.int64)
        assert compute_metrics(ids, ids, 0).mismatches == 0
        assert compute_metrics(np.array([1, 7, 9]), np.array([1, 7, 8]), 0).mismatches == 1

    def test_booleans_are_zero_and_one(self):
        assert compute_metrics(np.array([True, False]), np.array([True, True]), 0).mismatches == 1

    def test_both_parts_of_complex_numbers_count(self):
        t, r = (
            np.array([1 + 2j, 3j], dtype=np.complex64),
            np.array([1 + 2j, 4j], dtype=np.complex64),
        )
        assert compute_metrics(t, r, 0).relative_l2 == pytest.approx(1 / np.sqrt(21))


class TestNotFinite:
    @given(ARRAYS, st.sampled_from([np.nan, np.inf, -np.inf]), st.data())
    def test_an_element_nonfinite_on_one_side_is_counted(self, array, value, data):
        place = data.draw(st.integers(0, array.size - 1))
        broken = array.copy().ravel()
        broken[place] = value
        for t, r in ((broken, array), (array, broken)):
            metrics = compute_metrics(t, r, 0)
            assert metrics.nonfinite_mismatch == 1
            assert metrics.mismatches == 1
            assert metrics.max_absolute == 0

    @given(ARRAYS, st.sampled_from([np.nan, np.inf, -np.inf]), st.data())
    def test_an_element_nonfinite_on_both_sides_is_no_difference(self, array, value, data):
        broken = array.copy()
        broken[np.unravel_index(data.draw(st.integers(0, array.size - 1)), array.shape)] = value
        metrics = compute_metrics(broken, broken.copy(), 0)
        assert (metrics.nonfinite_mismatch, metrics.mismatches, metrics.relative_l2) == (0, 0, 0)

    def test_infinities_of_other_sign_are_a_difference(self):
        assert (
            compute_metrics(np.array([np.inf, 1]), np.array([-np.inf, 1]), 0).nonfinite_mismatch
            == 1
        )

    def test_nan_is_not_infinity(self):
        assert (
            compute_metrics(np.array([np.nan, 1]), np.array([np.inf, 1]), 0).nonfinite_mismatch == 1
        )


class TestMasks:
    """Masked scores are -1e4, -1e9, the lowest number or -inf; they must not set the scale."""

    CONSTANTS = (
        -1e4,
        -1e9,
        float(np.finfo(np.float16).min),
        -3.3895313892515355e38,  # the lowest bfloat16
        float(np.finfo(np.float32).min),
        -np.inf,
    )
    N_MASKED = 2 * 28

    @staticmethod
    def make_scores(constant, seed=0):
        scores = np.random.default_rng(seed).standard_normal((2, 8, 8)).astype(np.float32)
        scores[:, np.triu(np.ones((8, 8), dtype=bool), 1)] = constant
        return scores

    @pytest.mark.parametrize("target_constant", CONSTANTS)
    @pytest.mark.parametrize("reference_constant", CONSTANTS)
    def test_any_two_masking_constants_are_equal(self, target_constant, reference_constant):
        metrics = compute_metrics(
            self.make_scores(target_constant), self.make_scores(reference_constant), 0, True
        )
        assert (metrics.relative_l2, metrics.nonfinite_mismatch, metrics.mismatches) == (0, 0, 0)
        assert metrics.masked == self.N_MASKED

    @pytest.mark.parametrize("constant", CONSTANTS)
    def test_a_constant_added_to_scores_is_one_that_replaces_them(self, constant):
        scores = np.random.default_rng(0).standard_normal((2, 8, 8)).astype(np.float32)
        mask = np.triu(np.full((8, 8), -1e4, dtype=np.float32), 1)
        metrics = compute_metrics(scores + mask, self.make_scores(constant), 0, True)
        assert (metrics.relative_l2, metrics.mismatches) == (0, 0)
        assert metrics.masked == self.N_MASKED

    @pytest.mark.parametrize("constant", CONSTANTS)
    def test_a_difference_between_the_others_is_relative_to_the_others(self, constant):
        r = self.make_scores(constant)
        t = r.copy()
        t[r > -1e4] *= np.float32(1.01)
        metrics = compute_metrics(t, r, 0, True)
        assert metrics.relative_l2 == pytest.approx(0.01, rel=1e-3)
        assert metrics.mismatches == r.size - self.N_MASKED

    @pytest.mark.parametrize("constant", CONSTANTS)
    def test_a_position_masked_on_one_side_only_is_counted(self, constant):
        r = self.make_scores(constant)
        t = r.copy()
        t[0, 0, 1] = 0.5
        metrics = compute_metrics(t, r, 0, True)
        assert (metrics.nonfinite_mismatch, metrics.masked) == (1, self.N_MASKED - 1)

    def test_in_float16(self):
        t = self.make_scores(float(np.finfo(np.float16).min)).astype(np.float16)
        r = self.make_scores(-1e4).astype(np.float16)
        metrics = compute_metrics(t, r, 0, True)
        assert (metrics.relative_l2, metrics.masked) == (0, self.N_MASKED)

    def test_scores_that_explode_are_no_mask(self):
        """Many different values below the limit, some of them above half of it."""
        r = np.linspace(-4e4, 4e4, 64).astype(np.float32)
        metrics = compute_metrics(r * np.float32(1.5), r, 1e-3, True)
        assert (metrics.mismatches, metrics.masked) == (64, 0)

    def test_scores_that_explode_are_compared_next_to_a_mask(self):
        r = self.make_scores(-1e9)
        r[r > -1e4] *= np.float32(2e4)
        t = r * np.where(r > -1e8, np.float32(1.01), np.float32(1))
        metrics = compute_metrics(t, r, 0, True)
        assert metrics.relative_l2 == pytest.approx(0.01, rel=1e-3)
        assert metrics.masked == self.N_MASKED

    def test_large_numbers_of_both_signs_are_no_mask(self):
        r = np.random.default_rng(0).choice([-1e8, 1e8], 1000).astype(np.float32)
        t = np.where(r < 0, np.float32(1.5), np.float32(1)) * r
        for has_mask_fill in (False, True):
            metrics = compute_metrics(t, r, 0, has_mask_fill)
            assert metrics.relative_l2 == pytest.approx(0.5 * np.sqrt(np.mean(r < 0)), rel=1e-6)
            assert metrics.masked == 0

    def test_different_fill_and_nothing_else_cannot_be_compared(self):
        metrics = compute_metrics(np.full(8, -1e4), np.full(8, -np.inf), 0, True)
        assert np.isnan(metrics.relative_l2)
        assert metrics.masked == 8
        assert compute_metrics(np.full(8, -1e4), np.full(8, -1e4), 0, True).relative_l2 == 0


class TestLargeNegativeNumbersOutsideOfMasks:
    """What feeds no softmax is compared as it is, however large."""

    @pytest.mark.parametrize(
        ("count", "target_value", "reference_value"),
        [(1, -7e4, -9e4), (4, -2e4, -1.2e4), (1, -1e9, -3.4e38), (100, -1e4, -1e5)],
    )
    def test_different_constants_differ(self, count, target_value, reference_value):
        r = np.random.default_rng(5).standard_normal(1000).astype(np.float32)
        t = r.copy()
        t[:count], r[:count] = target_value, reference_value
        metrics = compute_metrics(t, r, 1e-3)
        expected = compute_norm(t.astype(np.float64) - r) / compute_norm(r)
        assert metrics.relative_l2 == pytest.approx(expected, rel=1e-5)
        assert metrics.mismatches == count
        assert metrics.masked == 0

    def test_infinity_is_no_number(self):
        r = np.random.default_rng(5).standard_normal(1000).astype(np.float32)
        t = r.copy()
        t[7], r[7] = -np.inf, -7e4
        assert compute_metrics(t, r, 0).nonfinite_mismatch == 1
        assert compute_metrics(t, r, 0, True).nonfinite_mismatch == 0


DTYPES = pytest.mark.parametrize(
    "dtypes",
    [[np.float16], [np.float32], [np.float64], INTEGERS, COMPLEX],
    ids=["float16", "float32", "float64", "integers", "complex"],
)


class TestAgainstExactSums:
    """Any finite input: the bounds are those that compute_metrics states, for n <= 12 elements."""

    @DTYPES
    @given(st.data())
    def test_relative_l2_and_cosine(self, dtypes, data):
        t, r = data.draw(draw_pairs(dtypes))
        numbers_t, numbers_r = to_numbers(t), to_numbers(r)
        square_t, square_r = sum_squares(numbers_t), sum_squares(numbers_r)
        square_difference = sum_squares(a - b for a, b in zip(numbers_t, numbers_r, strict=True))
        bound = (len(numbers_r) + 4) * get_unit_roundoff(t)
        metrics = compute_metrics(t, r, 0)
        if square_r > 0:
            expected = float(PRECISION.sqrt(square_difference / square_r))
            assert metrics.relative_l2 == pytest.approx(expected, rel=bound, abs=5e-324)
        else:
            assert metrics.relative_l2 == (0.0 if square_t == 0 else np.inf)
        if square_t > 0 and square_r > 0:
            product = PRECISION.fsum(a * b for a, b in zip(numbers_t, numbers_r, strict=True))
            cosine = float(product / PRECISION.sqrt(square_t) / PRECISION.sqrt(square_r))
            assert metrics.cosine == pytest.approx(cosine, abs=2 * bound)
        else:
            assert np.isnan(metrics.cosine)

    @DTYPES
    @given(st.data())
    def test_counts_and_largest_differences(self, dtypes, data):
        t, r = data.draw(draw_pairs(dtypes))
        numbers_t, numbers_r = to_numbers(t), to_numbers(r)
        distances = [abs(a - b) for a, b in zip(numbers_t, numbers_r, strict=True)]
        rms = PRECISION.sqrt(sum_squares(numbers_r) / len(numbers_r))
        limit = rms * PRECISION.mpf(1e-3)
        assume(not any(limit > 0 and abs(abs(b) / limit - 1) < 1e-4 for b in numbers_r))
        metrics = compute_metrics(t, r, 0)
        unit = get_unit_roundoff(t)
        assert metrics.mismatches == sum(distance > 0 for distance in distances)
        assert metrics.max_absolute == pytest.approx(float(max(distances)), rel=3 * unit)
        relative = [
            distance / abs(b)
            for distance, b in zip(distances, numbers_r, strict=True)
            if abs(b) > limit
        ]
        expected = float(max(relative, default=0.0))
        assert metrics.max_relative == pytest.approx(expected, rel=3 * unit, abs=5e-324)

    @DTYPES
    @given(st.data(), st.sampled_from([1e-6, 1e-2, 1.5]))
    def test_elements_beyond_a_tolerance(self, dtypes, data, tolerance):
        t, r = data.draw(draw_pairs(dtypes))
        numbers_t, numbers_r = to_numbers(t), to_numbers(r)
        rms = PRECISION.sqrt(sum_squares(numbers_r) / len(numbers_r))
        limits = [PRECISION.mpf(tolerance) * max(abs(b), rms) for b in numbers_r]
        distances = [abs(a - b) for a, b in zip(numbers_t, numbers_r, strict=True)]
        smallest = PRECISION.mpf(5e-324)
        assume(
            not any(
                abs(distance - limit) <= 1e-4 * limit + smallest
                for distance, limit in zip(distances, limits, strict=True)
                if distance > 0
            )
        )
        n_beyond = sum(d > limit for d, limit in zip(distances, limits, strict=True))
        assert compute_metrics(t, r, tolerance).beyond == n_beyond / len(limits)

    @pytest.mark.parametrize("value", [1e-45, 1e-25, 0.1, 1e25, 3e38])
    def test_a_whole_block_of_one_number(self, value):
        """A plain sum of 32,768 equal terms rounds in one direction."""
        n = 1 << 15
        r = np.full(n, value, dtype=np.float32)
        t = r.copy()
        t[::2] = -t[::2]
        metrics = compute_metrics(t, r, 0)
        assert metrics.relative_l2 == pytest.approx(np.sqrt(2), rel=(n + 4) * 2.0**-24)
        assert metrics.relative_l2 == pytest.approx(np.sqrt(2), rel=1e-5)  # what BLAS does
        assert metrics.max_absolute == 2 * float(r[0])

    @pytest.mark.parametrize("scale", [1e-200, 1e200, 1e307])
    def test_float64_of_any_magnitude(self, scale):
        r = np.linspace(0.5, 1, 64) * scale
        metrics = compute_metrics(r * 1.5, r, 1e-3)
        assert metrics.relative_l2 == pytest.approx(0.5, rel=70 * 2.0**-53)
        assert metrics.cosine == pytest.approx(1.0)
        assert metrics.beyond == 1

    def test_a_small_difference_next_to_large_numbers(self):
        r = np.ones(100, dtype=np.float32)
        r[3] = 0.0
        t = r.copy()
        t[3] = 1e-25
        metrics = compute_metrics(t, r, 0)
        assert metrics.relative_l2 == pytest.approx(1e-25 / np.sqrt(99), rel=1e-5)
        assert metrics.mismatches == 1

    def test_integers_that_float64_cannot_tell_apart(self):
        for dtype, start in ((np.int64, 2**53), (np.int64, -(2**63)), (np.uint64, 2**64 - 100)):
            r = np.array([start + offset for offset in range(10)], dtype=dtype)
            t = r.copy()
            t[4] += dtype(1)
            metrics = compute_metrics(t, r, 0)
            assert (metrics.mismatches, metrics.max_absolute) == (1, 1.0)
            assert metrics.relative_l2 > 0

    def test_signed_against_unsigned_and_floating(self):
        signed = np.array([-1, 2**62 + 1], dtype=np.int64)
        unsigned = np.array([2**64 - 1, 2**62 + 1], dtype=np.uint64)
        floating = np.array([-1.0, 2.0**62])
        assert compute_metrics(signed, unsigned, 0).max_absolute == 2.0**64
        assert compute_metrics(signed, unsigned, 0).mismatches == 1
        assert compute_metrics(signed, floating, 0).mismatches == 1
        assert compute_metrics(signed, floating, 0).max_absolute == 1.0

    def test_complex_against_real(self):
        t = np.array([1 + 2j, 3], dtype=np.complex64)
        assert compute_metrics(t, np.array([1.0, 3.0], np.float32), 0).max_absolute == 2
        assert compute_metrics(t, t + np.complex64(1e-30), 0).mismatches == 0
