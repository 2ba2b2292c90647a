"""Sketches: how near the estimate of a distance is, and that the definition never changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dumpdiff.model.arrays import Floats
from dumpdiff.model.sketches import (
    CELLS,
    LENGTH,
    N_STATISTICS,
    STANDARD_ERROR,
    compute_cosines,
    compute_sample_positions,
    compute_sketch,
    estimate_distances,
    measure_array,
)

SIZE = 120_000
GOLDEN_BUCKETS = [1157158.0, 1377540.0, 949585.0, -561789.0]
GOLDEN_POSITIONS = [760, 3098, 3619, 6224]


def change_all(random: np.random.Generator) -> Floats:
    return random.standard_normal(SIZE)


def change_one_element(random: np.random.Generator) -> Floats:
    difference = np.zeros(SIZE)
    difference[random.integers(SIZE)] = 1.0
    return difference


def change_one_channel(random: np.random.Generator) -> Floats:
    difference = np.zeros(SIZE)
    difference[random.integers(64) :: 64] = random.standard_normal()
    return difference


def change_one_row(random: np.random.Generator) -> Floats:
    difference = np.zeros(SIZE)
    start = random.integers(SIZE - 512)
    difference[start : start + 512] = random.standard_normal(512)
    return difference


def add_a_constant(random: np.random.Generator) -> Floats:
    return np.ones(SIZE)


def change_a_few_strongly(random: np.random.Generator) -> Floats:
    return random.standard_t(1.5, SIZE)


@pytest.mark.parametrize(
    "make_difference",
    [
        change_all,
        change_one_element,
        change_one_channel,
        change_one_row,
        add_a_constant,
        change_a_few_strongly,
    ],
)
def test_relative_l2_from_1e_6_to_1_is_within_25_percent(
    make_difference: Callable[[np.random.Generator], Floats],
) -> None:
    random = np.random.default_rng(19)
    ratios = []
    for _ in range(20):
        reference = random.standard_normal(SIZE).astype(np.float32)
        difference = make_difference(random)
        error = 10 ** random.uniform(-6, 0)
        scale = error * np.linalg.norm(reference) / np.linalg.norm(difference)
        target = (reference + scale * difference).astype(np.float32)
        true_distance = np.linalg.norm(target.astype(float) - reference)
        sketches = compute_sketch(target)[None], compute_sketch(reference)[None]
        ratios.append(estimate_distances(*sketches)[0] / true_distance)
    within = np.mean(np.abs(np.array(ratios) - 1) <= 0.25)
    assert within >= 0.95
    assert np.std(ratios) < 2 * STANDARD_ERROR


def test_a_sketch_is_a_five_hundredth_of_a_tensor_of_1e5_elements() -> None:
    assert LENGTH * 4 <= 100_000 * 4 / 500


def test_equal_tensors_have_distance_0_whatever_their_shape() -> None:
    array = np.random.default_rng(0).standard_normal((30, 1000)).astype(np.float32)
    distance = estimate_distances(compute_sketch(array)[None], compute_sketch(array.ravel())[None])
    assert distance.tolist() == [0.0]


def test_a_tensor_of_64_elements_is_known_exactly() -> None:
    target, reference = np.arange(64.0), np.zeros(64)
    distance = estimate_distances(compute_sketch(target)[None], compute_sketch(reference)[None])
    assert distance[0] >= np.linalg.norm(target)
    assert compute_sketch(target)[-64:].tolist() == target.tolist()


def test_nan_and_inf_show_in_the_statistics_and_count_as_0_in_the_sketch() -> None:
    array = np.ones(1000, dtype=np.float32)
    array[3], array[5] = np.nan, np.inf
    high, low, mean, _ = measure_array(array)[:N_STATISTICS]
    assert np.isnan([high, low, mean]).all()
    cleared = np.nan_to_num(array, nan=0.0, posinf=0.0)
    assert compute_sketch(array).tolist() == compute_sketch(cleared).tolist()


def test_statistics_are_right_to_the_precision_of_float32() -> None:
    array = np.random.default_rng(0).standard_normal(3 * CELLS + 7).astype(np.float32)
    high, low, mean, norm = measure_array(array)[:N_STATISTICS]
    assert (high, low) == (array.max(), array.min())
    assert mean == pytest.approx(array.mean(dtype=np.float64), abs=1e-8)
    assert norm == pytest.approx(np.linalg.norm(array.astype(np.float64)), rel=1e-7)


def test_the_definition_never_changes() -> None:
    """Dumps of two versions must be comparable: a change needs another VERSION."""
    sketch = compute_sketch(np.arange(100_000, dtype=np.float32))
    assert sketch[:4].tolist() == GOLDEN_BUCKETS
    assert compute_sample_positions(100_000)[:4].tolist() == GOLDEN_POSITIONS


def test_cosine_follows_from_distance_and_norms() -> None:
    cosines = compute_cosines(np.array([1.0, 2.0]), np.array([1.0, 1.0]), np.array([1.0, 1.0]))
    assert cosines.tolist() == [0.5, -1.0]
