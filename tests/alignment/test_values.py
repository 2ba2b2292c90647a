"""Value evidence: bounds of the distance of statistics, and no possible pair is missed."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dumpdiff.alignment.values import Fingerprints, compute_distances, find_candidates
from dumpdiff.graph.statistics import compute_statistics

NUMBERS = st.floats(-100, 100).filter(lambda x: x == 0 or abs(x) > 1e-3)
ARRAYS = hnp.arrays(np.float64, st.integers(2, 40), elements=NUMBERS)
PAIRS = ARRAYS.flatmap(
    lambda a: st.tuples(st.just(a), hnp.arrays(np.float64, a.shape, elements=NUMBERS))
)


def build_fingerprints(arrays, evidence=4):
    rows = [(array.size, *compute_statistics(array)[:4], evidence) for array in arrays]
    return Fingerprints.from_table(
        pd.DataFrame(rows, columns=["size", "max", "min", "mean", "norm", "evidence"])
    )


def compute_distance(t, r):
    return float(
        compute_distances(
            build_fingerprints([t]), np.array([0]), build_fingerprints([r]), np.array([0])
        )[0]
    )


def remove_statistics(side, *names):
    """Return the fingerprints without some statistics."""
    return dataclasses.replace(
        side, **{name: np.full_like(getattr(side, name), np.nan) for name in names}
    )


def compute_relative_l2(t, r):
    return float(np.linalg.norm(t - r) / np.linalg.norm(r))


class TestDistance:
    @given(PAIRS)
    def test_norm_and_mean_differ_by_no_more_than_the_tensors(self, pair):
        """Cauchy-Schwarz: with d = ||t - r|| norms differ by at most d, means by d / sqrt(n)."""
        t, r = pair
        assume(np.linalg.norm(r) > 0)
        sides = [remove_statistics(build_fingerprints([array]), "high", "low") for array in (t, r)]
        candidates = compute_distances(sides[0], np.array([0]), sides[1], np.array([0]))[0]
        assert candidates <= compute_relative_l2(t, r) * (1 + 1e-6) + 1e-9

    @given(PAIRS)
    def test_all_four_statistics_differ_by_at_most_root_n_times_the_error(self, pair):
        t, r = pair
        assume(np.linalg.norm(r) > 0)
        assert (
            compute_distance(t, r)
            <= compute_relative_l2(t, r) * np.sqrt(r.size) * (1 + 1e-6) + 1e-9
        )

    @given(ARRAYS)
    def test_a_tensor_has_no_distance_from_itself(self, array):
        assert compute_distance(array, array) == 0

    @given(ARRAYS, ARRAYS)
    def test_tensors_joined_have_the_distance_0_from_their_concatenation(self, a, b):
        joined = build_fingerprints([a, b]).join([0, 1])
        whole = build_fingerprints([np.concatenate([a, b])])
        assert compute_distances(joined, np.array([0]), whole, np.array([0]))[0] < 1e-9

    @given(ARRAYS, st.randoms())
    def test_nor_from_its_elements_in_another_order(self, array, random):
        shuffled = array.tolist()
        random.shuffle(shuffled)
        assert compute_distance(np.array(shuffled), array) < 1e-9

    @given(PAIRS, st.sampled_from([2.0**-20, 0.5, 8.0]))
    def test_the_distance_does_not_depend_on_the_unit(self, pair, factor):
        t, r = pair
        assert compute_distance(t * factor, r * factor) == pytest.approx(
            compute_distance(t, r), rel=1e-6, abs=1e-12
        )

    @given(ARRAYS, st.floats(1e-6, 0.5))
    def test_a_factor_of_one_plus_e_is_a_distance_of_e(self, array, error):
        assume(np.linalg.norm(array) > 0)
        assert compute_distance(array * (1 + error), array) == pytest.approx(
            error / (1 + error), rel=1e-3
        )

    def test_infinities_of_one_sign_are_equal(self):
        assert compute_distance(np.array([1.0, -np.inf, 2.0]), np.array([1.0, -np.inf, 2.0])) == 0

    def test_nothing_recorded_is_infinitely_far(self):
        side = remove_statistics(build_fingerprints([np.ones(4)]), "high", "low", "mean", "norm")
        assert compute_distances(side, np.array([0]), side, np.array([0]))[0] == np.inf

    def test_statistics_that_one_side_lacks_do_not_count(self):
        t, r = (
            build_fingerprints([np.array([1.0, 2.0, 3.0])]),
            build_fingerprints([np.array([1.0, 2.0, 4.0])]),
        )
        assert (
            compute_distances(
                remove_statistics(t, "high", "mean", "norm"), np.array([0]), r, np.array([0])
            )[0]
            == 0
        )

    @pytest.mark.parametrize("mask", [-1e9, -65504.0, float(np.finfo(np.float32).min), -np.inf])
    def test_a_masking_constant_sets_no_scale(self, mask):
        scores = np.random.default_rng(0).standard_normal(64)
        scores[::2] = mask
        other = np.where(scores > -1e4, scores * 1.5, scores)
        assert compute_distance(other, scores) > 0.1


def find_all_near_pairs(target, reference, tolerance):
    """Return every pair of equal size within the tolerance; all pairs are tried."""
    rows, columns = (grid.ravel() for grid in np.indices((len(target.size), len(reference.size))))
    is_near = (compute_distances(target, rows, reference, columns) <= tolerance) & (
        target.size[rows] == reference.size[columns]
    )
    return set(zip(rows[is_near].tolist(), columns[is_near].tolist(), strict=True))


class TestCandidates:
    @given(
        st.integers(0, 10_000),
        st.sampled_from([1e-6, 1e-3, 1e-2, 0.1]),
        st.sampled_from(["", "norm", "mean", "high"]),
    )
    def test_none_is_missed_and_none_is_too_far(self, seed, tolerance, missing):
        rng = np.random.default_rng(seed)
        base = [rng.standard_normal(size) for size in rng.choice([16, 17, 64], 12)]
        noisy = [
            array + rng.standard_normal(array.size) * 10.0 ** rng.uniform(-8, -1) for array in base
        ]
        target, reference = build_fingerprints(base), build_fingerprints(noisy)
        if missing:
            target = remove_statistics(target, missing)
        candidates = find_candidates(target, reference, tolerance)
        assert set(
            zip(candidates.target.tolist(), candidates.reference.tolist(), strict=True)
        ) == find_all_near_pairs(target, reference, tolerance)

    @given(st.integers(0, 10_000))
    def test_candidates_are_sorted_by_target_then_distance(self, seed):
        rng = np.random.default_rng(seed)
        base = rng.standard_normal(32)
        arrays = [base + rng.standard_normal(32) * 1e-3 for _ in range(10)]
        candidates = find_candidates(
            build_fingerprints(arrays), build_fingerprints(arrays[::-1]), 0.1
        )
        keys = list(zip(candidates.target.tolist(), candidates.distance.tolist(), strict=True))
        assert keys == sorted(keys)

    def test_a_tensor_without_information_has_none(self):
        side = build_fingerprints([np.random.default_rng(0).standard_normal(32)], evidence=0)
        assert len(find_candidates(side, side, 0.1).target) == 0

    def test_no_tensors_have_none(self):
        assert len(find_candidates(build_fingerprints([]), build_fingerprints([]), 0.1).target) == 0

    def test_many_similar_tensors_are_limited_to_the_nearest(self):
        base = np.random.default_rng(0).standard_normal(32)
        arrays = [base * (1 + 1e-7 * number) for number in range(500)]
        candidates = find_candidates(
            build_fingerprints(arrays), build_fingerprints(arrays), 1e-2, limit=8
        )
        assert len(candidates.target) <= 500 * 16
        nearest = candidates.target[candidates.distance == 0]
        assert set(nearest.tolist()) == set(range(500))
