"""Statistics of whole tensors equal exact sums and NumPy's, for every type, size and magnitude."""

import numpy as np
import pytest
from exact_arithmetic import (
    COMPLEX,
    INTEGERS,
    PRECISION,
    draw_arrays,
    get_unit_roundoff,
    sum_squares,
    to_numbers,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dumpdiff import read
from dumpdiff.graph.statistics import STATISTICS, complete_statistics, compute_statistics

FLOATS = st.floats(-1e6, 1e6, width=32).filter(lambda x: x == 0 or abs(x) > 1e-6)
DTYPES = st.sampled_from(
    [np.float16, np.float32, np.float64, np.int8, np.int32, np.int64, np.uint8, np.bool_]
)


def compute_with_numpy(array):
    wide = array.astype(np.float64)
    return wide.max(), wide.min(), wide.mean(), np.sqrt((wide**2).sum())


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=4), elements=FLOATS))
def test_statistics_equal_those_of_numpy(array):
    high, low, mean, norm = compute_with_numpy(array)
    numbers = compute_statistics(array)
    assert numbers[:2] == (high, low)
    assert numbers[2] == pytest.approx(mean, abs=1e-6 * max(abs(high), abs(low)))
    assert numbers[3] == pytest.approx(norm, rel=1e-6)
    assert numbers[4] == 0


@given(DTYPES, st.data())
def test_statistics_of_every_dtype_are_computed(dtype, data):
    finite = {"allow_nan": False, "allow_infinity": False} if np.dtype(dtype).kind == "f" else {}
    elements = hnp.from_dtype(np.dtype(dtype), **finite)
    array = data.draw(hnp.arrays(dtype, st.integers(1, 50), elements=elements))
    with np.errstate(all="ignore"):
        high, low, mean, norm = compute_with_numpy(array)
        numbers = compute_statistics(array)
    assert numbers[:2] == (high, low)
    if np.isfinite(norm):
        assert numbers[3] == pytest.approx(norm, rel=1e-5)
        assert numbers[2] == pytest.approx(mean, rel=1e-5, abs=1e-5 * max(abs(high), abs(low)))


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-20, 1e19, 1e30, 3e38])
def test_statistics_of_float32_of_any_magnitude_are_accurate(scale):
    """Sums of squares leave float32 long before the values do."""
    array = (np.linspace(0.5, 1, 100) * scale).astype(np.float32)
    numbers = compute_statistics(array)
    assert numbers[3] == pytest.approx(np.linalg.norm(array.astype(np.float64)), rel=1e-4)
    assert numbers[2] == pytest.approx(array.astype(np.float64).mean(), rel=1e-4)


@pytest.mark.parametrize(
    "dtypes",
    [[np.float16], [np.float32], [np.float64], INTEGERS],
    ids=["float16", "float32", "float64", "integers"],
)
@given(st.data())
def test_statistics_of_any_finite_numbers_are_those_of_exact_sums(dtypes, data):
    """The bounds are those that compute_statistics states; the array is one block."""
    array = data.draw(draw_arrays(dtypes))
    numbers, unit = to_numbers(array), get_unit_roundoff(array)
    high, low, mean, norm, nonfinite = compute_statistics(array)
    assert (high, low, nonfinite) == (float(max(numbers)), float(min(numbers)), 0)
    expected_norm = float(PRECISION.sqrt(sum_squares(numbers)))
    # integers are rounded to float64 first, which is one more unit
    bound = (array.size + 2) * unit / 2 + 2 * 2.0**-53
    assert norm == pytest.approx(expected_norm, rel=bound, abs=5e-324)
    expected_mean = float(PRECISION.fsum(numbers) / array.size)
    mean_magnitude = float(PRECISION.fsum(map(abs, numbers)) / array.size)
    assert mean == pytest.approx(expected_mean, abs=33 * unit * mean_magnitude + 5e-324)


@given(draw_arrays(COMPLEX))
def test_complex_numbers_of_any_size(array):
    numbers, unit = to_numbers(array), 2.0**-53
    expected = float(PRECISION.sqrt(sum_squares(numbers)))
    *_, norm, nonfinite = compute_statistics(array)
    # the magnitude of each number is rounded, near zero to a multiple of 5e-324
    near_zero = 5e-324 * (1 + array.size**0.5)
    assert norm == pytest.approx(expected, rel=(array.size + 6) * unit, abs=near_zero)
    assert nonfinite == 0


@pytest.mark.parametrize("value", [5e-324, 1e-200, 1e200, 1e308])
def test_float64_of_any_magnitude_over_several_blocks(value):
    array = np.full(200_000, value)
    array[::2] *= -0.5
    _, _, mean, norm, _ = compute_statistics(array)
    exact = PRECISION.mpf(value), PRECISION.mpf(float(array[0]))
    expected = PRECISION.sqrt((exact[0] ** 2 + exact[1] ** 2) * 100_000)
    assert norm == pytest.approx(float(expected), rel=65_538 * 2.0**-54)
    assert mean == pytest.approx(float((exact[0] + exact[1]) / 2), rel=1e-14, abs=5e-324)


def test_float32_below_the_root_of_the_smallest_number():
    """Its squares underflow: the norm was 0."""
    for value in (1e-45, 1e-38, 1e-25, 1e-20):
        array = np.full(100, value, dtype=np.float32)
        assert compute_statistics(array)[3] == pytest.approx(10 * float(array[0]), rel=1e-5)


def test_over_many_blocks():
    array = np.random.default_rng(0).standard_normal((7, 300, 100)).astype(np.float32) + np.float32(
        0.1
    )
    high, low, mean, norm = compute_with_numpy(array)
    assert compute_statistics(array) == (
        high,
        low,
        pytest.approx(mean, rel=1e-6),
        pytest.approx(norm, rel=1e-6),  # as for classes of values; each CPU has its own order
        0,
    )


@given(hnp.arrays(np.float32, (3, 4, 5), elements=FLOATS), st.permutations([0, 1, 2]))
def test_a_view_has_those_of_what_it_views_but_for_summation_order(array, axes):
    own_numbers, view_numbers = compute_statistics(array), compute_statistics(array.transpose(axes))
    assert own_numbers[:2] == view_numbers[:2]
    assert own_numbers[2] == pytest.approx(
        view_numbers[2], abs=1e-6 * max(abs(own_numbers[0]), abs(own_numbers[1]))
    )
    assert own_numbers[3] == pytest.approx(view_numbers[3], rel=1e-6)


@pytest.mark.parametrize("place", [0, 70_000, 199_999])
class TestNotFinite:
    def test_one_nan_makes_all_four_statistics_nan(self, place):
        array = np.ones(200_000, dtype=np.float32)
        array[place] = np.nan
        *numbers, nonfinite = compute_statistics(array)
        assert np.isnan(numbers).all()
        assert nonfinite == 1

    def test_infinity_takes_part(self, place):
        array = np.ones(200_000, dtype=np.float32)
        array[place] = -np.inf
        assert compute_statistics(array) == (1, -np.inf, -np.inf, np.inf, 1)

    def test_nan_counts_more_than_infinity(self, place):
        array = np.full(200_000, np.inf, dtype=np.float32)
        array[place] = np.nan
        assert np.isnan(compute_statistics(array)[0])


def test_an_empty_tensor_has_none():
    *numbers, nonfinite = compute_statistics(np.empty((0, 3), dtype=np.float32))
    assert np.isnan(numbers).all()
    assert nonfinite == 0


def test_complex_numbers_are_taken_by_magnitude():
    assert compute_statistics(np.array([3 + 4j, 0], dtype=np.complex64)) == (5, 0, 2.5, 5, 0)


@pytest.fixture(scope="module")
def trace(dump):
    return read(dump("ms_graph"))


class TestCompletingATrace:
    def test_every_tensor_with_a_file_gets_all_four(self, trace):
        assert trace.tensors["norm"].isna().any()
        tensors, problems = complete_statistics(trace)
        assert not problems
        with_file = tensors[(tensors["file"] != "") & (tensors["size"] > 0)]
        assert with_file[list(STATISTICS)].notna().all().all()

    def test_completed_statistics_are_those_of_the_file(self, trace):
        tensors, _ = complete_statistics(trace)
        rows = np.flatnonzero(tensors["file"] != "")[::100]
        for row in rows.tolist():
            *numbers, nonfinite = compute_statistics(trace.array(row))
            assert tensors.loc[row, list(STATISTICS)].tolist() == pytest.approx(
                numbers, rel=1e-6, abs=1e-9
            )
            assert tensors["nonfinite"].iat[row] == nonfinite

    def test_the_trace_itself_is_left_alone(self, trace):
        before = trace.tensors.copy()
        complete_statistics(trace)
        assert before.equals(trace.tensors)

    def test_recorded_statistics_are_kept_as_recorded(self, dump):
        summary = read(dump("v6.0_api_stack_summary"))
        tensors, _ = complete_statistics(summary)
        for name in STATISTICS:
            np.testing.assert_array_equal(tensors[name], summary.tensors[name])
