"""Divergence, bias and spikes of series whose answer is known; numbers as logs print them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dumpdiff.training_logs.curve_shape import (
    compute_block_rms,
    find_lasting_divergence,
    find_spikes,
    measure_fluctuation,
)
from dumpdiff.training_logs.log_text import estimate_resolution, parse_number, strip_terminal_codes


@given(seed=st.integers(0, 10_000), begin=st.integers(30, 270), factor=st.floats(100, 1e4))
def test_a_step_in_noise_is_found_at_its_index(seed: int, begin: int, factor: float) -> None:
    difference = np.random.default_rng(seed).normal(0, 1e-4, 300)
    difference[begin:] *= factor
    index = find_lasting_divergence(difference, 1e-7)
    assert index is not None
    assert abs(index - begin) <= 5


@example(seed=6824, scale=1.0)  # begins with seven small values, two of them tiny
@given(seed=st.integers(0, 10_000), scale=st.floats(1e-6, 10))
def test_noise_alone_does_not_diverge(seed: int, scale: float) -> None:
    assert find_lasting_divergence(np.random.default_rng(seed).normal(0, scale, 400), 1e-7) is None


@pytest.mark.parametrize(
    "values", [np.zeros(100), np.full(100, 0.3), np.array([1.0, 2.0]), np.array([])]
)
def test_constant_or_short_series_do_not_diverge(values: np.ndarray) -> None:
    assert find_lasting_divergence(values, 0.0) is None


def test_a_temporary_difference_is_no_lasting_divergence() -> None:
    difference = np.random.default_rng(0).normal(0, 1e-4, 500)
    difference[240:250] += 0.05
    assert find_lasting_divergence(difference, 1e-7) is None


def test_noise_is_around_zero_and_a_bias_is_not() -> None:
    random = np.random.default_rng(3)
    assert measure_fluctuation(random.normal(0, 1, 2000)).is_unbiased
    assert not measure_fluctuation(random.normal(0.3, 1, 2000)).is_unbiased
    assert measure_fluctuation(np.zeros(100)).is_unbiased


def test_the_error_of_a_mean_grows_with_the_correlation_of_neighbors() -> None:
    white = np.random.default_rng(4).normal(0, 1, 4000)
    smooth = np.convolve(white, np.ones(50) / 50, mode="same") * np.sqrt(50)
    assert (
        measure_fluctuation(smooth).standard_error > 3 * measure_fluctuation(white).standard_error
    )


def test_a_spike_is_found_and_a_slope_is_none() -> None:
    loss = 8 * np.exp(-np.arange(300) / 50) + np.random.default_rng(5).normal(0, 0.01, 300)
    assert len(find_spikes(loss)) == 0
    loss[150] += 1  # of a noise of 0.01
    assert find_spikes(loss).tolist() == [150]


def test_blocks_are_root_mean_squares() -> None:
    assert compute_block_rms(np.array([3.0, 4.0, 0.0, 0.0]), 2).tolist() == pytest.approx(
        [np.sqrt(12.5), 0.0]
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [("[0.27662084]", 0.27662084), ("'4.699'", 4.699), ("8.35E+00", 8.35), ("inf", np.inf)],
)
def test_numbers_are_parsed_in_every_notation(text: str, value: float) -> None:
    assert parse_number(text) == value


def test_text_without_a_number_is_nan() -> None:
    assert np.isnan([parse_number(text) for text in ("None", "", "unavailable", "nan")]).all()


def test_terminal_codes_are_removed() -> None:
    assert strip_terminal_codes("a\x1b[A\rb\x1b[0m") == "a\nb"


def test_the_resolution_is_half_of_the_last_printed_decimal() -> None:
    assert estimate_resolution(["4.143", "4.1"]) == pytest.approx(5e-4)
    assert estimate_resolution(["8.351725E+00"]) == pytest.approx(5e-7)
    assert estimate_resolution(["None", ""]) == 0
