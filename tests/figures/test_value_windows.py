"""Windows of two tensors: which elements they show, and where the tensors differ most."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from dumpdiff.figures.value_windows import cut_window, find_largest_difference, find_window_start


@given(array_shapes(min_dims=0, max_dims=4, max_side=20), st.data())
def test_the_largest_difference_is_in_the_window_around_it(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    reference = np.zeros(shape, dtype=np.float32)
    index = tuple(data.draw(st.integers(0, length - 1)) for length in shape)
    target = reference.copy()
    target[index] = 3
    assert find_largest_difference(target, reference) == (index, 3.0)
    start = find_window_start(cut_window(target, reference), index)
    window = cut_window(target, reference, start)
    assert max(max(row) for row in window.target) == 3
    assert not any(any(row) for row in window.reference)


def test_a_window_shows_two_axes_at_an_index_of_the_others() -> None:
    array = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    window = cut_window(array, array, (1, 0, 2), axes=(2, 1))
    assert (window.row_axis, window.column_axis) == (2, 1)
    assert window.target == tuple(tuple(map(float, row)) for row in array[1].T.tolist())
    assert window.start == (1, 0, 0)  # moved, so that the window is full


@pytest.mark.parametrize("axes", [None, (0, 0), (1, 7), (-1, 0)])
def test_axes_that_do_not_exist_are_the_last_long_ones(axes: tuple[int, int] | None) -> None:
    window = cut_window(np.zeros((5, 1, 6)), np.zeros((5, 1, 6)), axes=axes)
    assert (window.row_axis, window.column_axis) == (0, 2)


def test_an_infinity_on_one_side_is_the_largest_difference() -> None:
    target = np.array([0.0, np.inf, np.nan, np.nan, 9.0])
    reference = np.array([0.0, np.inf, np.nan, 1.0, 1.0])
    assert find_largest_difference(target, reference) == ((3,), np.inf)


def test_an_empty_tensor_has_no_difference() -> None:
    assert find_largest_difference(np.zeros((0, 3)), np.zeros((0, 3))) is None
