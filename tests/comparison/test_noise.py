"""The noise of a pair of dumps: what it shows where it agrees."""

import numpy as np
import pytest
from traces import align_traces

from dumpdiff.comparison.noise import measure_statistic_noise
from dumpdiff.graph.statistics import STATISTICS

MAX, MIN, MEAN, NORM = range(len(STATISTICS))
TOLERANCE = 32 * 2.0**-24


@pytest.fixture
def pairs(trace):
    """Return (alignment, pairs, positions) of a dump with itself, forward in execution order."""
    alignment = align_traces(trace("pt_none"), trace("pt_none"))
    table = alignment.classes.copy()
    table["tolerance"] = TOLERANCE
    target = alignment.target
    classes = target.classes.iloc[table["target"]]
    is_sample = (classes["producer"] >= 0).to_numpy() & (table["evidence"] == "value").to_numpy()
    is_sample &= (classes["phase"] == "forward").to_numpy()
    rows = np.flatnonzero(is_sample)
    return alignment, table, rows[np.argsort(classes["producer"].to_numpy()[rows], kind="stable")]


def draw_errors(table, size, seed=0):
    rng = np.random.default_rng(seed)
    return np.abs(rng.normal(0, size, (len(STATISTICS), len(table))))


def flag_gradients(alignment, table):
    """Return (pairs,) which values the backward pass computed."""
    classes = alignment.target.classes.iloc[table["target"]]
    return (classes["phase"] == "backward").to_numpy()


def test_normal_errors_stay_within_the_noise(pairs):
    alignment, table, rows = pairs
    n_beyond = 0
    for seed in range(20):
        errors = draw_errors(table, 1e-5, seed)
        noise = measure_statistic_noise(alignment, table, errors)
        n_beyond += (errors[:, rows] > noise[:, rows]).sum()
    assert n_beyond <= 20 * 4 * len(rows) / 1000


def test_a_divergence_does_not_raise_the_noise_at_its_place(pairs):
    """Whatever the values show that are computed after it."""
    alignment, table, rows = pairs
    errors = draw_errors(table, 1e-6)
    fault = len(rows) // 3
    diverged = errors.copy()
    diverged[:, rows[fault:]] = 5e-5
    before = measure_statistic_noise(alignment, table, errors)[:, rows[fault]]
    assert measure_statistic_noise(alignment, table, diverged)[:, rows[fault]] == pytest.approx(
        before
    )
    assert (before < 1e-5).all()


def test_noise_follows_errors_that_grow_along_the_network(pairs):
    alignment, table, rows = pairs
    errors = draw_errors(table, 1e-6)
    errors[:, rows] *= np.linspace(1, 10, len(rows))
    noise = measure_statistic_noise(alignment, table, errors)
    assert (noise[:, rows[-1]] > 3 * noise[:, rows[10]]).all()
    assert (errors[:, rows] <= noise[:, rows]).mean() > 0.99


def test_each_statistic_has_its_own_noise(pairs):
    alignment, table, rows = pairs
    errors = draw_errors(table, 1e-6)
    errors[NORM] /= 100
    noise = measure_statistic_noise(alignment, table, errors)
    assert noise[NORM, rows[-1]] < noise[MAX, rows[-1]] / 30


def test_a_mean_has_at_least_the_noise_of_a_norm(pairs):
    """Most tensors have a small mean. One of a single sign shows in it what its norm shows."""
    alignment, table, _ = pairs
    errors = draw_errors(table, 1e-6)
    errors[MEAN] /= 100
    noise = measure_statistic_noise(alignment, table, errors)
    assert (noise[MEAN] == noise[NORM]).all()


def test_values_that_no_op_computed_have_no_noise(pairs):
    alignment, table, _ = pairs
    noise = measure_statistic_noise(alignment, table, 1e-6 + draw_errors(table, 1e-6))
    target = alignment.target.classes.iloc[table["target"]]
    is_given = ((target["producer"] < 0) & (target["phase"] != "backward")).to_numpy()
    assert is_given.sum() > 20
    assert (noise[:, is_given] == 0).all()


def test_gradients_that_no_recorded_op_computed_have_noise(pairs):
    alignment, table, _ = pairs
    noise = measure_statistic_noise(alignment, table, 1e-6 + draw_errors(table, 1e-6))
    target = alignment.target.classes.iloc[table["target"]]
    is_lost = ((target["producer"] < 0) & (target["phase"] == "backward")).to_numpy()
    assert is_lost.any()
    assert (noise[:, is_lost] > 0).all()


def test_a_norm_has_the_noise_of_a_sum_of_equal_squares_if_all_else_is_equal(pairs):
    """torch.norm of 20,480 elements of five numbers is off by 4.5e-5, their mean by 8e-8."""
    alignment, table, rows = pairs
    errors = np.zeros((len(STATISTICS), len(table)))
    errors[NORM] = 1e-5
    sizes = alignment.reference.sizes[table["reference"].to_numpy()]
    noise = measure_statistic_noise(alignment, table, errors)
    large = rows[sizes[rows] > 256]
    assert (noise[NORM, large] >= 2.0**-24 * sizes[large] / 8).all()
    errors[MAX] = 1e-5
    lower = measure_statistic_noise(alignment, table, errors)
    assert (lower[NORM, large] < noise[NORM, large]).any()


def test_without_a_mean_a_norm_has_the_noise_of_roundings_of_either_sign(pairs):
    """MindSpore's statistic.csv has no mean unless it is asked for."""
    alignment, table, rows = pairs
    errors = np.zeros((len(STATISTICS), len(table)))
    sizes = alignment.reference.sizes[table["reference"].to_numpy()]
    row = rows[sizes[rows] > 256][0]  # of one pair, so that nothing else shows this noise
    errors[NORM, row], errors[MEAN, row] = 1e-5, np.nan
    noise = measure_statistic_noise(alignment, table, errors)[NORM, row]
    errors[MEAN, row] = 0
    with_mean = measure_statistic_noise(alignment, table, errors)[NORM, row]
    assert noise == pytest.approx(2.0**-24 * np.sqrt(sizes[row]))
    assert with_mean == pytest.approx(2.0**-24 * sizes[row] / 8)


def test_noise_is_at_most_64_tolerances(pairs):
    alignment, table, _ = pairs
    noise = measure_statistic_noise(alignment, table, draw_errors(table, 1e-2))
    assert noise.max() == pytest.approx(64 * TOLERANCE)


def test_too_few_samples_give_no_noise(pairs):
    alignment, table, rows = pairs
    errors = np.zeros((len(STATISTICS), len(table)))
    errors[:, rows[:7]] = 1e-6
    noise = measure_statistic_noise(alignment, table, errors)
    assert (noise[:, ~flag_gradients(alignment, table)] == 0).all()


def test_gradients_have_four_times_the_noise_and_at_least_four_tolerances(pairs):
    """Those of norms and roots are differences of large terms."""
    alignment, table, _ = pairs
    is_gradient = flag_gradients(alignment, table)
    without_samples = np.zeros((len(STATISTICS), len(table)))
    noise = measure_statistic_noise(alignment, table, without_samples)
    assert (noise[:, is_gradient] == 4 * TOLERANCE).all()
    equal_errors = np.full_like(without_samples, 1e-6)
    noise = measure_statistic_noise(alignment, table, equal_errors)
    others = noise[MAX, ~is_gradient & (noise[MAX] > 0)]
    assert np.unique(noise[MAX, is_gradient]) == pytest.approx(4 * np.unique(others))


def test_noise_below_what_is_allowed_anyway_need_not_be_measured(pairs):
    """What is allowed in the end, the larger of both, is the same."""
    alignment, table, rows = pairs
    errors = draw_errors(table, 1e-6)
    noise = measure_statistic_noise(alignment, table, errors)
    for allowed_error in (1e-7, noise[:, rows].mean(), 1e-4):
        allowed_errors = np.full_like(errors, allowed_error)
        needed_noise = measure_statistic_noise(alignment, table, errors, allowed_errors)
        assert (np.maximum(needed_noise, allowed_errors) == np.maximum(noise, allowed_errors)).all()
    assert (needed_noise[MAX, rows] < noise[MAX, rows]).any()
