"""Figures of two tensors have the numbers that plain numpy gives, without copying a tensor."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dumpdiff.figures import tensor_figures
from dumpdiff.figures.tensor_figures import MAX_BLOCKS, draw_tensors
from dumpdiff.model.arrays import AnyArray, Floats
from dumpdiff.model.finding_context import DifferenceMap


def draw_difference(target: AnyArray, reference: AnyArray) -> DifferenceMap:
    difference = draw_tensors(target, reference)[1]
    assert difference is not None
    return difference


def compute_block_maxima(gap: Floats) -> Floats:
    """Return the map: last axis as columns, the others as rows, line i of n in its block."""
    matrix = gap.reshape(-1, gap.shape[-1])
    down, across = (np.arange(n) * min(n, MAX_BLOCKS) // n for n in matrix.shape)
    values = np.zeros((down[-1] + 1, across[-1] + 1))
    np.maximum.at(values, (down[:, None], across[None, :]), matrix)
    return values


def make_noise(*shape: int, seed: int = 0) -> AnyArray:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


@given(st.lists(st.integers(1, 90), min_size=1, max_size=3), st.integers(1, 20))
@settings(max_examples=50)
def test_a_block_holds_the_largest_difference_in_it(shape: list[int], pieces: int) -> None:
    target, reference = make_noise(*shape), make_noise(*shape, seed=1)
    if target.size < 2:
        return
    gap = np.abs(target.astype(float) - reference).squeeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_figures, "_SLAB", target.size // pieces + 1)
        assert np.array(draw_difference(target, reference).values) == pytest.approx(
            compute_block_maxima(gap), rel=0, abs=0
        )


def test_a_single_wrong_element_is_where_it_is() -> None:
    target, reference = make_noise(4, 32, 256), make_noise(4, 32, 256)
    target[2, 5, 200] += 1
    values = np.array(draw_difference(target, reference).values)
    assert np.argwhere(values).tolist() == [[(2 * 32 + 5) // 2, 200 // 4]]
    assert values.max() == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize(
    ("shape", "rows", "columns"),
    [
        ((2, 16, 64), "axes 0, 1 (2 x 16)", "axis 2 (64)"),
        ((2, 1, 16, 1), "axis 0 (2)", "axis 2 (16)"),
        ((5,), "", "axis 0 (5)"),
    ],
)
def test_the_axes_are_named(shape: tuple[int, ...], rows: str, columns: str) -> None:
    difference = draw_difference(make_noise(*shape), make_noise(*shape))
    assert (difference.rows, difference.columns) == (rows, columns)


def test_the_scale_is_that_of_the_reference() -> None:
    reference = make_noise(8, 8)
    assert draw_difference(reference * 3, reference).scale == pytest.approx(
        np.sqrt(np.mean(reference.astype(float) ** 2))
    )


def test_values_that_are_nonfinite_in_the_same_way_count_as_equal() -> None:
    reference = np.array([[np.inf, 1.0], [np.nan, 1.0], [-np.inf, 1.0], [2.0, 1.0]])
    target = np.array([[np.inf, 1.0], [np.nan, 1.0], [np.inf, 1.0], [np.nan, 1.0]])
    assert [row[0] for row in draw_difference(target, reference).values] == pytest.approx(
        [0, 0, np.nan, np.nan], nan_ok=True
    )


def test_two_values_of_one_mask_count_as_equal_and_a_missing_mask_shows() -> None:
    reference, target = make_noise(8, 8), make_noise(8, 8)
    reference[np.triu_indices(8, 1)] = -np.inf
    target[np.triu_indices(8, 1)] = -1e9
    target[0, 1] = 0.5
    histogram, difference = draw_tensors(target, reference, has_mask_fill=True)
    assert histogram is not None
    assert difference is not None
    values = np.array(difference.values)
    assert np.argwhere(values != 0).tolist() == [[0, 1]]
    assert (sum(histogram.target), sum(histogram.reference)) == (64 - 27, 64 - 28)
    assert max(map(abs, histogram.edges)) < 10


def test_a_histogram_counts_what_is_finite() -> None:
    values = np.array([0.0, 1.0, np.inf, np.nan, 2.0])
    histogram = draw_tensors(values, values)[0]
    assert histogram is not None
    assert sum(histogram.target) == 3


def test_without_finite_values_there_is_no_histogram() -> None:
    assert draw_tensors(np.full(3, np.nan), np.full(3, np.nan))[0] is None


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (0,), (3, 0)])
def test_a_single_number_has_no_figures(shape: tuple[int, ...]) -> None:
    assert draw_tensors(np.zeros(shape), np.zeros(shape)) == (None, None)


@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.uint8, np.float16, np.complex64])
def test_every_type_of_number(dtype: type) -> None:
    values = np.arange(12).reshape(3, 4) % 2
    difference = draw_difference(values.astype(dtype), np.zeros((3, 4), dtype=dtype))
    assert max(max(row) for row in difference.values) == 1


def test_a_transposed_mapped_file_is_read_in_place(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", make_noise(300, 500))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r").T
    target = np.array(mapped)
    target[:, 7] += 1
    values = np.array(draw_difference(target, mapped).values)
    assert np.unique(np.argwhere(values > 0)[:, 1]).tolist() == [7 * MAX_BLOCKS // 300]


def test_bins_are_common_to_both_sides() -> None:
    histogram = draw_tensors(make_noise(1000), make_noise(1000) * 4)[0]
    assert histogram is not None
    assert len(histogram.edges) == len(histogram.target) + 1 == len(histogram.reference) + 1
    assert len({high - low for low, high in pairwise(histogram.edges)}) == 1
