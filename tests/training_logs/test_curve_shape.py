"""Where a difference begins, whether it wanders around zero, what stands out: on series whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dumpdiff.training_logs.curve_shape import blocks, lasting_departure, spikes, wander
from dumpdiff.training_logs.numbers import number, plain, resolution


@given(seed=st.integers(0, 10_000), begin=st.integers(30, 270), factor=st.floats(100, 1e4))
def test_a_step_in_noise_is_found_at_its_place(seed: int, begin: int, factor: float) -> None:
    difference = np.random.default_rng(seed).normal(0, 1e-4, 300)
    difference[begin:] *= factor
    found = lasting_departure(difference, 1e-7)
    assert found is not None
    assert abs(found - begin) <= 5


@example(seed=6824, scale=1.0)  # begins with seven small values, two of them tiny
@given(seed=st.integers(0, 10_000), scale=st.floats(1e-6, 10))
def test_noise_alone_has_no_departure(seed: int, scale: float) -> None:
    assert lasting_departure(np.random.default_rng(seed).normal(0, scale, 400), 1e-7) is None


@pytest.mark.parametrize(
    "values", [np.zeros(100), np.full(100, 0.3), np.array([1.0, 2.0]), np.array([])]
)
def test_what_never_changes_or_is_too_short_has_no_departure(values: np.ndarray) -> None:
    assert lasting_departure(values, 0.0) is None


def test_a_difference_that_comes_and_goes_is_no_lasting_departure() -> None:
    difference = np.random.default_rng(0).normal(0, 1e-4, 500)
    difference[240:250] += 0.05
    assert lasting_departure(difference, 1e-7) is None


def test_noise_wanders_around_zero_and_a_bias_does_not() -> None:
    random = np.random.default_rng(3)
    assert wander(random.normal(0, 1, 2000)).around_zero
    assert not wander(random.normal(0.3, 1, 2000)).around_zero
    assert wander(np.zeros(100)).around_zero


def test_the_error_of_a_mean_grows_with_the_likeness_of_neighbours() -> None:
    white = np.random.default_rng(4).normal(0, 1, 4000)
    smooth = np.convolve(white, np.ones(50) / 50, mode="same") * np.sqrt(50)
    assert wander(smooth).error > 3 * wander(white).error


def test_spikes_stand_out_of_their_neighbours_and_a_slope_does_not() -> None:
    loss = 8 * np.exp(-np.arange(300) / 50) + np.random.default_rng(5).normal(0, 0.01, 300)
    assert len(spikes(loss)) == 0
    loss[150] += 1  # of a noise of 0.01
    assert spikes(loss).tolist() == [150]


def test_blocks_are_root_mean_squares() -> None:
    assert blocks(np.array([3.0, 4.0, 0.0, 0.0]), 2).tolist() == pytest.approx([np.sqrt(12.5), 0.0])


@pytest.mark.parametrize(
    ("text", "value"),
    [("[0.27662084]", 0.27662084), ("'4.699'", 4.699), ("8.35E+00", 8.35), ("inf", np.inf)],
)
def test_numbers_are_read_in_every_dress(text: str, value: float) -> None:
    assert number(text) == value


def test_no_number_is_nan() -> None:
    assert np.isnan([number(text) for text in ("None", "", "unavailable", "nan")]).all()


def test_what_drives_a_terminal_is_gone() -> None:
    assert plain("a\x1b[A\rb\x1b[0m") == "a\nb"


def test_the_resolution_is_half_of_the_last_printed_decimal() -> None:
    assert resolution(["4.143", "4.1"]) == pytest.approx(5e-4)
    assert resolution(["8.351725E+00"]) == pytest.approx(5e-7)
    assert resolution(["None", ""]) == 0
