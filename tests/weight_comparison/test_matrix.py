"""Matrices of blocks equal the array of the joined blocks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.weight_comparison.matrix import Matrix, concatenate_columns, concatenate_rows


@st.composite
def draw_block_matrices(draw: st.DrawFn) -> tuple[Matrix, np.ndarray]:
    """Draw a matrix with up to two levels of blocks, with the equal array."""
    widths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    bands, arrays = [], []
    for _ in range(draw(st.integers(1, 3))):
        height = draw(st.integers(1, 4))
        parts = [
            np.random.default_rng(len(arrays)).integers(0, 99, (height, width)) for width in widths
        ]
        bands.append(concatenate_columns([Matrix.from_array(part, "int64") for part in parts]))
        arrays.append(np.concatenate(parts, axis=1))
    matrix, array = concatenate_rows(bands), np.concatenate(arrays)
    return (matrix.T, array.T) if draw(st.booleans()) else (matrix, array)


@given(draw_block_matrices(), st.data())
def test_rows_equal_those_of_the_array(
    matrix_and_array: tuple[Matrix, np.ndarray], data: st.DataObject
) -> None:
    matrix, array = matrix_and_array
    assert matrix.shape == array.shape
    start, stop = sorted(data.draw(st.lists(st.integers(0, len(array)), min_size=2, max_size=2)))
    np.testing.assert_array_equal(matrix.read_raw(slice(start, stop)), array[start:stop])
    rows = np.array(data.draw(st.lists(st.integers(0, len(array) - 1), max_size=6)), dtype=np.int64)
    np.testing.assert_array_equal(matrix.read_raw(rows), array[rows])
    if stop > start:
        part = matrix.slice_rows(start, stop)
        assert part.shape == array[start:stop].shape
        np.testing.assert_array_equal(part.read_values(slice(0, stop - start)), array[start:stop])


def test_vectors_are_columns_and_kernels_are_flat() -> None:
    assert Matrix.from_array(np.zeros(5), "float64").shape == (5, 1)
    assert Matrix.from_array(np.zeros(()), "float64").shape == (1, 1)
    assert Matrix.from_array(np.zeros((4, 3, 2, 2)), "float64").shape == (4, 12)
    assert Matrix.from_array(np.zeros((0, 3)), "float64").size == 0


def test_a_slice_of_a_transpose_is_a_view() -> None:
    array = np.zeros((6, 4))
    assert np.shares_memory(Matrix.from_array(array, "float64").T.read_raw(slice(1, 3)), array)
