"""Values are counted in common bins while their range is unknown, and none is lost."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dumpdiff.figures.histograms import Bins, count_values, merge_bins
from dumpdiff.model.arrays import Floats
from dumpdiff.model.finding_context import Histogram

numbers = st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False)
samples = arrays(np.float64, st.integers(1, 50), elements=numbers)


def count_pieces(*pieces: tuple[Floats, Floats]) -> Bins:
    counts = [count_values(target, reference) for target, reference in pieces]
    return merge_bins([bins for bins in counts if bins is not None])


def count_directly(histogram: Histogram, values: Floats) -> tuple[int, ...]:
    """Count with the edges: bins hold their lower edge and not their upper one."""
    edges = np.array(histogram.edges)
    return tuple(int(((values >= low) & (values < high)).sum()) for low, high in pairwise(edges))


@given(samples, samples)
def test_every_value_is_in_the_bin_whose_edges_hold_it(target: Floats, reference: Floats) -> None:
    histogram = count_pieces((target, reference)).to_histogram()
    assert histogram.target == count_directly(histogram, target)
    assert histogram.reference == count_directly(histogram, reference)
    assert sum(histogram.target) == target.size


@given(st.lists(st.tuples(samples, samples), min_size=1, max_size=5))
def test_piece_by_piece_no_value_is_lost(pieces: list[tuple[Floats, Floats]]) -> None:
    histogram = count_pieces(*pieces).to_histogram()
    for side, counts in enumerate((histogram.target, histogram.reference)):
        assert counts == count_directly(
            histogram, np.concatenate([piece[side] for piece in pieces])
        )


@given(samples)
def test_the_edges_rise_and_are_few(values: Floats) -> None:
    edges = count_pieces((values, values)).to_histogram().edges
    assert list(edges) == sorted(set(edges))
    assert 2 <= len(edges) <= 65


def test_zero_is_an_edge() -> None:
    values = np.random.default_rng(0).normal(0, 1, 5000)
    histogram = count_pieces((values, values)).to_histogram()
    assert 0.0 in histogram.edges
    assert 33 <= len(histogram.edges) <= 65


def test_few_values_have_few_bins() -> None:
    values = np.linspace(0, 1, 32)
    assert len(count_pieces((values, values)).to_histogram().edges) <= 14


@pytest.mark.parametrize("value", [0.0, 3.0, -1e-8, 1e30])
def test_one_value_has_one_bin_that_can_be_drawn(value: float) -> None:
    histogram = count_pieces((np.full(3, value), np.full(2, value))).to_histogram()
    low, high = histogram.edges
    assert (histogram.target, histogram.reference) == ((3,), (2,))
    assert low <= value < high
    assert high - low >= abs(value) / 128


def test_a_late_outlier_leaves_detail_where_the_values_are() -> None:
    values = np.random.default_rng(0).normal(0, 1, 4000)
    histogram = count_pieces((values, values), (np.array([20.0]), values)).to_histogram()
    assert sum(count > 0 for count in histogram.target) > 8


def test_nothing_is_no_histogram() -> None:
    assert count_values(np.zeros(0), np.zeros(0)) is None


def test_one_side_may_hold_nothing() -> None:
    histogram = count_pieces((np.zeros(0), np.array([1.0, 2.0]))).to_histogram()
    assert sum(histogram.target) == 0
    assert sum(histogram.reference) == 2
